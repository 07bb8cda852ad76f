"""An approval of a call to an MCP server is valid only for that server and its tool."""

from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent, Tool


def make_server(lib: Any, tools: list[str], name: str = "docs") -> Any:
    class Server(lib.MCPServer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(require_approval="always")
            self.tools, self.calls = tools, list[str]()

        @property
        def name(self) -> str:
            return name

        async def connect(self) -> None: ...

        async def cleanup(self) -> None: ...

        async def list_tools(self, *_: Any) -> Any:
            schema = {"type": "object", "properties": {}}
            return [Tool.model_validate({"name": each, "inputSchema": schema}) for each in self.tools]

        async def call_tool(self, tool_name: str, *_: Any, **__: Any) -> Any:
            self.calls.append(tool_name)
            return CallToolResult(content=[TextContent(type="text", text="found")])

        async def list_prompts(self) -> Any:
            raise AssertionError

        async def get_prompt(self, *_: Any) -> Any:
            raise AssertionError

    return Server()


async def ask(lib: Any, servers: list[Any], *, saved: bool, approve: bool = True) -> tuple[Any, Any]:
    """Return the agent and the state of its run, which waits for a decided call of ``search``."""
    model = lib.ScriptedModel([[lib.function_call("search", {}, call_id="c1")], [lib.assistant_message("done")]])
    agent = lib.Agent(name="a", model=model, mcp_servers=servers)
    paused = await lib.Runner.run(agent, "x")
    state = paused.to_state()
    (state.approve if approve else state.reject)(paused.interruptions[0])
    return agent, await lib.RunState.from_json(agent, state.to_json()) if saved else state


@pytest.mark.parametrize("saved", [False, True])
async def test_the_same_server_is_called(lib: Any, saved: bool) -> None:
    server = make_server(lib, ["search"])
    agent, state = await ask(lib, [server], saved=saved)
    assert (await lib.Runner.run(agent, state)).final_output == "done"
    assert server.calls == ["search"]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("other_name", ["docs", "mail"])
async def test_another_server_with_such_a_tool_is_not_called(lib: Any, saved: bool, other_name: str) -> None:
    asked, other = make_server(lib, ["search"]), make_server(lib, [], other_name)
    agent, state = await ask(lib, [asked, other], saved=saved)
    asked.tools, other.tools = [], ["search"]
    with pytest.raises(lib.UserError, match="recipient"):
        await lib.Runner.run(agent, state)
    assert asked.calls == other.calls == []


async def test_a_function_of_that_name_is_not_called(lib: Any) -> None:
    calls: list[str] = []

    @lib.function_tool  # type: ignore[untyped-decorator]
    def search() -> str:
        calls.append("search")
        return "found here"

    server = make_server(lib, ["search"])
    agent, state = await ask(lib, [server], saved=False)
    agent.tools, agent.mcp_servers = [search], []
    with pytest.raises(lib.UserError, match="recipient"):
        await lib.Runner.run(agent, state)
    assert server.calls == calls == []


async def test_a_rejected_call_needs_no_recipient(lib: Any) -> None:
    asked, other = make_server(lib, ["search"]), make_server(lib, [])
    agent, state = await ask(lib, [asked, other], saved=True, approve=False)
    asked.tools, other.tools = [], ["search"]
    assert (await lib.Runner.run(agent, state)).final_output == "done"
    assert asked.calls == other.calls == []
