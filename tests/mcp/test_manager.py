"""The parts that need no server: names, several servers together, servers of one's own, the missing extra."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shops import Journal, stdio

from standfast import Agent, MCPToolCancellationError, Runner
from standfast.mcp import MCPServer, MCPServerManager, MCPUnavailable
from standfast.mcp._client.tool_names import build_prefixed_name
from standfast.testing import ScriptedModel, assistant_message, function_call

ROOT = Path(__file__).parent.parent.parent


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 3))
def test_a_name_with_its_server_is_fit_for_every_provider(server: str, tool: str, twin: int) -> None:
    name = build_prefixed_name(server, tool, server_index=twin)
    assert len(name) <= 64
    assert name.isascii()
    assert name.replace("_", "").replace("-", "").isalnum()
    assert name == build_prefixed_name(server, tool, server_index=twin)


names = st.text(st.sampled_from("ab_ -é"), min_size=1, max_size=6)


@given(names, names, names, names)
def test_different_tools_never_share_a_name(server: str, tool: str, other_server: str, other_tool: str) -> None:
    same = (server, tool) == (other_server, other_tool)
    assert (build_prefixed_name(server, tool) == build_prefixed_name(other_server, other_tool)) == same


def test_a_name_that_the_agent_has_is_avoided() -> None:
    assert build_prefixed_name("shop", "stock") == "mcp_shop__stock"
    assert build_prefixed_name("shop", "stock", reserved_names={"mcp_shop__stock"}) != "mcp_shop__stock"


@pytest.mark.parametrize("parallel", [False, True])
async def test_servers_that_fail_do_not_keep_the_others_from_working(journal: Journal, parallel: bool) -> None:
    good, bad = stdio(journal), stdio(journal, "crash", name="bad")
    async with MCPServerManager([bad, good], connect_in_parallel=parallel) as manager:
        assert manager.active_servers == [good]
        assert manager.failed_servers == [bad]
        assert isinstance(manager.errors[bad], MCPUnavailable)
        assert await manager.reconnect() == [good]
    assert manager.active_servers == []


async def test_strict_raises_and_lets_all_go(journal: Journal) -> None:
    good, bad = stdio(journal), stdio(journal, "crash", name="bad")
    manager = MCPServerManager([good, bad], strict=True)
    with pytest.raises(MCPUnavailable, match="'bad'"):
        await manager.connect_all()
    assert manager.active_servers == []


async def test_a_server_that_takes_too_long_is_given_up(journal: Journal) -> None:
    slow = stdio(journal, "silent")
    manager = MCPServerManager([slow], connect_timeout_seconds=0.5, drop_failed_servers=False)
    assert await manager.connect_all() == [slow]
    assert "not connected within 0.5 seconds" in str(manager.errors[slow])
    await manager.cleanup_all()


async def test_a_server_that_gives_up_by_itself_is_quoted() -> None:
    class Late(Own):
        async def connect(self) -> None:
            raise TimeoutError("the tunnel is closed")

    late = Late()
    manager = MCPServerManager([late], connect_timeout_seconds=None)
    assert await manager.connect_all() == []
    assert str(manager.errors[late]) == "the tunnel is closed"


class Own(MCPServer):
    """A server of somebody's own making."""

    def __init__(self, error: BaseException | None = None, hints: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.error, self.hints = error, hints or {"double": None}

    @property
    def name(self) -> str:
        return "own"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        from mcp.types import Tool

        return [Tool(name=name, input_schema={}, annotations=hints) for name, hints in self.hints.items()]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        from mcp.types import CallToolResult, TextContent

        if self.error is not None:
            raise self.error
        return CallToolResult(content=[TextContent(type="text", text=str(2 * arguments["n"]))])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


def asked(server: MCPServer, arguments: str = '{"n": 4}') -> Agent[Any]:
    call = function_call("double", arguments, call_id="c")
    return Agent("a", mcp_servers=[server], model=ScriptedModel([[call], [assistant_message("done")]]))


async def test_a_server_of_ones_own_works() -> None:
    result = await Runner.run(asked(Own()), "double 4")
    assert result.new_items[1].output == "8"


async def test_a_server_that_cancels_the_call_does_not_cancel_the_run() -> None:
    with pytest.raises(MCPToolCancellationError, match="'own' cancelled the call of 'double'"):
        await Runner.run(asked(Own(asyncio.CancelledError(), failure_error_function=None)), "double 4")


async def test_arguments_that_are_no_object_are_the_models_fault() -> None:
    result = await Runner.run(asked(Own(), "[4]"), "double 4")
    assert "must be a JSON object, not list" in result.new_items[1].output


@pytest.mark.parametrize(
    ("setting", "asks"),
    [
        (None, []),
        ("never", []),
        ("always", ["stock", "refund"]),
        (False, []),
        ({"refund": "always", "stock": "never"}, ["refund"]),
        ({"always": {"tool_names": ["refund"]}}, ["refund"]),
        ({"never": {"tool_names": ["stock"]}}, ["refund"]),
        ({"always": {"tool_names": ["stock"]}, "never": {"tool_names": ["stock", "refund"]}}, ["stock"]),
        (lambda context, agent, tool: not (tool.annotations and tool.annotations.read_only_hint), ["refund"]),
    ],
)
async def test_who_has_to_ask(setting: Any, asks: list[str]) -> None:
    from mcp.types import ToolAnnotations

    server = Own(require_approval=setting, hints={"stock": ToolAnnotations(read_only_hint=True), "refund": None})
    calls = [function_call(name, {"n": 1}, call_id=name) for name in ("stock", "refund")]
    agent = Agent("clerk", mcp_servers=[server], model=ScriptedModel([calls, [assistant_message("done")]]))
    result = await Runner.run(agent, "both")
    assert [item.tool_name for item in result.interruptions] == asks


def run_without_mcp(code: str) -> str:
    program = f"import sys; sys.modules['mcp'] = None; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_without_the_library_the_error_says_what_to_install() -> None:
    said = run_without_mcp(
        "from standfast.mcp import MCPServerStdio\n"
        "try: MCPServerStdio({'command': 'x'})\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install 'standfast[mcp]'" in said


def test_declaring_a_server_does_not_import_the_library() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "from standfast.mcp import *; MCPServerStdio({'command': 'x'}); print('mcp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
