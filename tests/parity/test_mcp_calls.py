"""Calls of MCP servers that a program wrote itself."""

import asyncio
import importlib
from typing import Any

import pytest
from mcp.types import CallToolResult, TextContent, Tool

ADDRESS = "sse: https://user:s3cret@mcp.example/sse?key=KEY"


def make_server(lib: Any, error: BaseException | None = None, *, name: str = ADDRESS, **options: Any) -> Any:
    class Server(lib.MCPServer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(**options)
            self.metas = list[Any]()

        @property
        def name(self) -> str:
            return name

        async def connect(self) -> None: ...

        async def cleanup(self) -> None: ...

        async def list_tools(self, *_: Any) -> Any:
            return [make_tool()]

        async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
            self.metas.append(None if meta is None else {**meta, "tags": list(meta["tags"])})
            if meta is not None:
                meta["tags"].append("changed by the server")
            if error is not None:
                raise error
            return CallToolResult(content=[TextContent(type="text", text="found")])

        async def list_prompts(self) -> Any:
            raise AssertionError

        async def get_prompt(self, *_: Any) -> Any:
            raise AssertionError

    return Server()


def make_tool(**meta: Any) -> Tool:
    return Tool.model_validate({"name": "search", "inputSchema": {"type": "object"}, "_meta": meta or None})


async def invoke(lib: Any, server: Any) -> Any:
    return await lib.MCPUtil.invoke_mcp_tool(server, make_tool(), lib.RunContextWrapper(None), "{}")


@pytest.mark.parametrize("error", [OSError("the disk is full"), asyncio.CancelledError()])
async def test_errors_name_the_server_without_its_credentials(lib: Any, error: BaseException) -> None:
    with pytest.raises(lib.AgentsException) as raised:
        await invoke(lib, make_server(lib, error))
    assert "mcp.example/sse" in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert "KEY" not in str(raised.value)
    if isinstance(error, OSError):
        assert raised.value.__cause__ is error


async def test_an_error_ends_the_run_with_the_type_that_programs_catch(lib: Any) -> None:
    model = lib.ScriptedModel([[lib.function_call("search", {}, call_id="c1")]])
    server = make_server(lib, OSError("the disk is full"), name="docs", failure_error_function=None)
    agent = lib.Agent(name="a", model=model, mcp_servers=[server])
    with pytest.raises(lib.AgentsException) as raised:
        await lib.Runner.run(agent, "x")
    assert not isinstance(raised.value, lib.UserError)


async def test_a_cancellation_by_the_server_is_its_own_also_after_one_of_the_task(lib: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(lib.MCPToolCancellationError):
        await invoke(lib, make_server(lib, asyncio.CancelledError()))


async def test_the_metadata_of_a_tool_goes_with_every_call_unchanged(lib: Any) -> None:
    server = make_server(lib, tool_meta_resolver=lambda context: {"locale": "ja", "user": 7})
    listed = make_tool(locale="en", tags=["first"])
    tool = lib.MCPUtil.to_function_tool(listed, server, convert_schemas_to_strict=False)
    kind = importlib.import_module(f"{lib.package}.tool_context").ToolContext
    for number in range(2):
        context = kind(None, tool_name="search", tool_call_id=f"c{number}", tool_arguments="{}")
        await tool.on_invoke_tool(context, "{}")
    assert server.metas == [{"user": 7, "locale": "en", "tags": ["first"]}] * 2
