"""Branches, turns and usage as openai-agents' session has them."""

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


class Both:
    """One program, done with both sessions; what they answer must be the same."""

    def __init__(self, ours: AdvancedSQLiteSession, peer: PeerSession) -> None:
        self.ours, self.peer = ours, peer

    async def store_run_usage(self, tokens: int) -> None:
        await self.ours.store_run_usage(make_run_result(tokens))
        await self.peer.store_run_usage(make_run_result(tokens, PeerUsage))

    def __getattr__(self, name: str) -> Any:
        async def same(*args: Any, **kwargs: Any) -> Any:
            mine = await catch_value_error(getattr(self.ours, name)(*args, **kwargs))
            theirs = await catch_value_error(getattr(self.peer, name)(*args, **kwargs))
            assert comparable(mine) == comparable(theirs), f"{name}{args}"
            return mine

        return same


def comparable(value: Any) -> Any:
    """Without the second in which it happened, the order of branches of one second, and details that only one has."""
    if isinstance(value, dict):
        return {
            name: bool(part)
            if name in ("timestamp", "created_at")
            else {key: count for key, count in part.items() if key in ("cached_tokens", "reasoning_tokens")}
            if str(name).endswith("_details")
            else comparable(part)
            for name, part in value.items()
        }
    if isinstance(value, list):
        parts = [comparable(part) for part in value]
        return sorted(parts, key=lambda part: part["branch_id"]) if parts and "branch_id" in parts[0] else parts
    return value


async def look(both: Both, *branches: str | None) -> None:
    await both.list_branches()
    for branch in (None, "main", "nowhere", *branches):
        for ask in ("get_conversation_turns", "get_conversation_by_turns", "get_tool_usage", "get_session_usage"):
            await getattr(both, ask)(branch)
        await both.get_items(None, branch)
        await both.get_items(2, branch)
        await both.get_turn_usage(None, branch)
        for turn in (0, 1, 2, 9):
            await both.get_turn_usage(turn, branch)
        for term in ("weather", "WEATHER", "100%", "fine", "input_text", "zzz", ""):
            await both.find_turns_by_content(term, branch)


@pytest.fixture
def both(open_advanced: Any, tmp_path: Path) -> Iterator[Both]:
    with closing(PeerSession(session_id="s", db_path=tmp_path / "peer.db", create_tables=True)) as peer:
        yield Both(open_advanced(create_tables=True), peer)


async def test_it_answers_as_openai_agents_does(both: Both) -> None:
    await both.get_conversation_turns()
    await both.get_session_usage()
    await both.store_run_usage(5)
    await both.get_session_usage()
    await both.add_items(ITEMS[:7])
    await both.store_run_usage(10)
    await both.add_items(ITEMS[7:])
    await both.store_run_usage(20)
    await both.store_run_usage(30)
    await look(both)
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
    await look(both, "x")
    await both.add_items([user_message("in x"), function_call("w", "c"), assistant_message("yes")])
    await both.store_run_usage(100)
    await look(both, "x")
    assert await both.create_branch_from_turn(2, "x") is ValueError
    assert await both.create_branch_from_content("in X", "y") == "y"
    await both.add_items([user_message("in y"), assistant_message("no"), user_message("again")])
    await look(both, "x", "y")
    assert await both.delete_branch("y") is ValueError
    await both.switch_to_branch("main")
    await both.create_branch_from_content("weather", "z")
    await both.delete_branch("z", force=True)
    await look(both, "x", "y", "z")
    for _ in range(3):
        await both.pop_item()
        await look(both, "x", "y")
    await both.add_items([user_message("said again")])
    await look(both, "x", "y")
    await both.switch_to_branch("x")
    for _ in range(4):
        await both.pop_item()
        await look(both, "x", "y")
    await both.clear_session()
    assert await both.ours.get_items() == await both.peer.get_items() == []
    await both.add_items([user_message("new")])
    await look(both, "x")


async def test_it_works_inside_of_openai_agents_with_its_usage(open_advanced: Any) -> None:
    session = open_advanced()
    await session.add_items([user_message("hi")])
    await session.store_run_usage(make_run_result(7, PeerUsage))
    assert (await session.get_session_usage() or {})["input_tokens"] == 7
