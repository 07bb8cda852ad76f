"""AdvancedSQLiteSession returns the same results as the class of openai-agents."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agents.extensions.memory import AdvancedSQLiteSession as PeerSession
from agents.usage import Usage as PeerUsage

from factories.history import catch_value_error, make_run_result
from factories.items import assistant_message, function_call, user_message
from standfast import AdvancedSQLiteSession

LONG = "Hello Weather " + "x" * 200


ITEMS: list[Any] = [
    {"role": "assistant", "content": "greeting"},
    user_message(LONG),
    function_call("w", "c"),
    function_call("a", "c"),
    function_call("w", "c"),
    {"type": "function_call_output", "call_id": "c", "output": "ok"},
    assistant_message("fine"),
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "again 100% weather"}, {"type": "input_image", "image_url": "x"}],
    },
    {"type": "reasoning", "id": "r", "summary": []},
    {**function_call("ns", "c"), "namespace": "N"},
    {"type": "custom_tool_call", "name": "ct", "call_id": "9"},
    {"type": "mcp_call", "id": "m", "name": "mm", "server_label": "srv"},
    {"type": "mcp_list_tools", "server_label": "srv"},
    *({"type": f"{kind}_call"} for kind in ("web_search", "file_search", "computer", "code_interpreter", "shell")),
    {"type": "apply_patch_call"},
    {"type": "tool_search_call"},
    {"role": "system", "content": "sys"},
    {"type": "message", "role": "developer", "content": "dev"},
    {"type": "weird"},
    {"no": "type"},
    user_message(""),
    assistant_message("last"),
    {"type": "message", "role": "user", "content": "typed"},
]


class SessionPair:
    """Calls both sessions and asserts that their results are equal."""

    def __init__(self, ours: AdvancedSQLiteSession, peer: PeerSession) -> None:
        self.ours, self.peer = ours, peer

    async def store_run_usage(self, tokens: int) -> None:
        await self.ours.store_run_usage(make_run_result(tokens))
        await self.peer.store_run_usage(make_run_result(tokens, PeerUsage))

    def __getattr__(self, name: str) -> Any:
        async def call_both(*args: Any, **kwargs: Any) -> Any:
            actual = await catch_value_error(getattr(self.ours, name)(*args, **kwargs))
            expected = await catch_value_error(getattr(self.peer, name)(*args, **kwargs))
            assert normalize(actual) == normalize(expected), f"{name}{args}"
            return actual

        return call_both


def normalize(value: Any) -> Any:
    """Return the value without timestamps, the order of branches, and details that only one of the two has."""
    if isinstance(value, dict):
        return {
            name: bool(part)
            if name in ("timestamp", "created_at")
            else {key: count for key, count in part.items() if key in ("cached_tokens", "reasoning_tokens")}
            if str(name).endswith("_details")
            else normalize(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        parts = [normalize(part) for part in value]
        return sorted(parts, key=lambda part: part["branch_id"]) if parts and "branch_id" in parts[0] else parts
    return value


async def compare_all(both: SessionPair, *branches: str | None) -> None:
    await both.list_branches()
    for branch in (None, "main", "nowhere", *branches):
        for method in ("get_conversation_turns", "get_conversation_by_turns", "get_tool_usage", "get_session_usage"):
            await getattr(both, method)(branch)
        await both.get_items(None, branch)
        await both.get_items(2, branch)
        await both.get_turn_usage(None, branch)
        for turn in (0, 1, 2, 9):
            await both.get_turn_usage(turn, branch)
        for term in ("weather", "WEATHER", "100%", "fine", "input_text", "zzz", ""):
            await both.find_turns_by_content(term, branch)


@pytest.fixture
def both(open_advanced: Any, tmp_path: Path) -> Iterator[SessionPair]:
    with closing(PeerSession(session_id="s", db_path=tmp_path / "peer.db", create_tables=True)) as peer:
        yield SessionPair(open_advanced(create_tables=True), peer)


async def test_results_equal_those_of_openai_agents(both: SessionPair) -> None:
    await both.get_conversation_turns()
    await both.get_session_usage()
    await both.store_run_usage(5)
    await both.get_session_usage()
    await both.add_items(ITEMS[:7])
    await both.store_run_usage(10)
    await both.add_items(ITEMS[7:])
    await both.store_run_usage(20)
    await both.store_run_usage(30)
    await compare_all(both)
    for refused in (
        both.create_branch_from_turn(9),
        both.create_branch_from_turn(0),
        both.create_branch_from_content("zzz"),
        both.create_branch_from_turn(2, "main"),
        both.create_branch_from_turn(2, ""),
        both.switch_to_branch("nowhere"),
        both.delete_branch("main", True),
        both.delete_branch("nowhere"),
        both.delete_branch(""),
    ):
        assert await refused is ValueError
    assert await both.create_branch_from_turn(2, "x") == "x"
    await compare_all(both, "x")
    await both.add_items([user_message("in x"), function_call("w", "c"), assistant_message("yes")])
    await both.store_run_usage(100)
    await compare_all(both, "x")
    assert await both.create_branch_from_turn(2, "x") is ValueError
    assert await both.create_branch_from_content("in X", "y") == "y"
    await both.add_items([user_message("in y"), assistant_message("no"), user_message("again")])
    await compare_all(both, "x", "y")
    assert await both.delete_branch("y") is ValueError
    await both.switch_to_branch("main")
    await both.create_branch_from_content("weather", "z")
    await both.delete_branch("z", force=True)
    await compare_all(both, "x", "y", "z")
    for _ in range(3):
        await both.pop_item()
        await compare_all(both, "x", "y")
    await both.add_items([user_message("written again")])
    await compare_all(both, "x", "y")
    await both.switch_to_branch("x")
    for _ in range(4):
        await both.pop_item()
        await compare_all(both, "x", "y")
    await both.clear_session()
    assert await both.ours.get_items() == await both.peer.get_items() == []
    await both.add_items([user_message("new")])
    await compare_all(both, "x")


async def test_usage_of_openai_agents_is_accepted(open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("hi")])
    await session.store_run_usage(make_run_result(7, PeerUsage))
    assert (await session.get_session_usage() or {})["input_tokens"] == 7
