"""Tools that fail."""

import asyncio
from typing import Any

FAILED = "An error occurred while running the tool. Please try again."


async def get_outputs(lib: Any, *tools: Any, **options: Any) -> list[Any]:
    calls = [lib.function_call(tool.name, {}, call_id=tool.name) for tool in tools]
    model = lib.ScriptedModel([calls, [lib.assistant_message("done")]])
    result = await lib.Runner.run(
        lib.Agent(name="a", model=model, tools=list(tools)), "hi", run_config=lib.RunConfig(**options)
    )
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


async def test_the_text_of_an_exception_is_kept_from_the_model(lib: Any) -> None:
    @lib.function_tool
    def connect() -> str:
        raise RuntimeError("password=hunter2")

    assert await get_outputs(lib, connect) == [FAILED]


async def test_a_formatter_is_called_for_failed_tools(lib: Any) -> None:
    asked: list[Any] = []

    @lib.function_tool
    def connect() -> str:
        raise RuntimeError("no route")

    @lib.function_tool(failure_error_function=lambda context, error: f"own: {error}")
    def own() -> str:
        raise RuntimeError("no route")

    def format_error(args: Any) -> str:
        asked.append((args.kind, args.tool_type, args.tool_name, args.call_id, args.default_message, str(args.error)))
        return "formatted"

    assert await get_outputs(lib, connect, own, tool_error_formatter=format_error) == ["formatted", "own: no route"]
    assert asked == [("tool_exception", "function", "connect", "connect", FAILED, "no route")]


async def test_a_tool_that_cancels_itself_has_failed(lib: Any) -> None:
    @lib.function_tool
    async def gives_up() -> str:
        raise asyncio.CancelledError

    @lib.function_tool
    async def works() -> str:
        return "worked"

    assert await get_outputs(lib, gives_up) == [FAILED]
    assert await get_outputs(lib, gives_up, works) == [FAILED, "worked"]


async def test_the_error_of_a_cancelled_tool_can_be_explained(lib: Any) -> None:
    @lib.function_tool(failure_error_function=lambda context, error: f"{isinstance(error, Exception)}")
    async def gives_up() -> str:
        raise asyncio.CancelledError

    assert await get_outputs(lib, gives_up) == ["True"]
