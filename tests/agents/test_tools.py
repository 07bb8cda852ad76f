"""Function tools: declaration, invocation, error messages, timeouts, enablement and namespaces."""

import asyncio
import inspect
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from factories.agents import echo_arguments, make_tool, make_tool_context
from standfast import (
    Agent,
    FunctionTool,
    HostedMCPTool,
    InvalidDeclaration,
    ModelBehaviorError,
    RunContextWrapper,
    ToolContext,
    ToolOrigin,
    ToolOriginType,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    ToolTimeoutError,
    UserError,
    WebSearchTool,
    function_tool,
    tool_namespace,
)
from standfast.agents import ToolRef


async def invoke(tool: FunctionTool, arguments: str = "{}") -> Any:
    return await tool.invoke(make_tool_context(tool.name), arguments)


async def test_both_forms_of_the_decorator_make_a_tool() -> None:
    @function_tool
    def bare(a: int) -> int:
        """Double it."""
        return a * 2

    @function_tool(name_override="twice", description_override="Two times.")
    async def called(a: int) -> int:
        return a * 2

    assert (bare.name, bare.description, await invoke(bare, '{"a": 2}')) == ("bare", "Double it.", 4)
    assert (called.name, called.description, await invoke(called, '{"a": 3}')) == ("twice", "Two times.", 6)


def test_positional_fields_keep_their_order() -> None:
    places = [name for name, at in inspect.signature(FunctionTool).parameters.items() if at.kind is not at.KEYWORD_ONLY]
    assert ", ".join(places) == (
        "name, description, params_json_schema, on_invoke_tool, strict_json_schema, is_enabled, "
        "tool_input_guardrails, tool_output_guardrails, needs_approval, timeout_seconds, timeout_behavior, "
        "timeout_error_function, defer_loading"
    )


def test_a_tool_keeps_its_function_as_wrapped() -> None:
    def double(a: int) -> int:
        return a * 2

    assert function_tool(double).__wrapped__ is double


async def test_a_tool_receives_the_context_of_its_call() -> None:
    @function_tool
    def who(ctx: ToolContext[Any]) -> str:
        return f"{ctx.tool_name} {ctx.tool_call_id} {ctx.idempotency_key}"

    assert await invoke(who) == "who call_1 call_1"


async def test_an_exception_becomes_a_message_for_the_model() -> None:
    @function_tool
    def fails() -> None:
        raise ValueError("no such order")

    assert await invoke(fails) == "An error occurred while running the tool. Please try again."


async def test_a_function_that_raises_stop_iteration_ends() -> None:
    @function_tool
    def first() -> str:
        """Return the first entry."""
        return str(next(iter(())))

    assert "An error occurred" in await asyncio.wait_for(invoke(first), 60)


async def test_invalid_arguments_become_a_message_for_the_model() -> None:
    @function_tool
    def tool(a: int) -> None: ...

    assert "invalid arguments for tool tool: a: Field required" in await invoke(tool, "{}")


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_function_formats_the_exception(is_async: bool) -> None:
    def format_error(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"sorry: {error}"

    async def format_error_later(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"sorry: {error}"

    @function_tool(failure_error_function=format_error_later if is_async else format_error)
    def fails() -> None:
        raise ValueError("boom")

    assert await invoke(fails) == "sorry: boom"


async def test_an_error_function_must_return_a_string() -> None:
    @function_tool(failure_error_function=lambda ctx, error: 3)  # type: ignore[arg-type, return-value]
    def fails() -> None:
        raise ValueError("boom")

    with pytest.raises(UserError, match="must return a string, got int"):
        await invoke(fails)


async def test_without_an_error_function_the_exception_is_raised() -> None:
    @function_tool(failure_error_function=None)
    def fails(a: int = 0) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await invoke(fails)
    with pytest.raises(ModelBehaviorError, match="invalid arguments for tool fails"):
        await invoke(fails, '{"a": "x"}')


async def test_cancellation_is_not_turned_into_a_message() -> None:
    started = asyncio.Event()

    @function_tool
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(invoke(waits))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_tool_that_times_out_is_cancelled_and_the_model_receives_a_message() -> None:
    ended = []

    @function_tool(timeout=0.01)
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    assert await invoke(waits) == "Tool 'waits' timed out after 0.01 seconds."
    assert ended


async def test_a_timeout_can_be_formatted_or_raised() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    formatted = function_tool(waits, timeout=0.01, timeout_error_function=lambda ctx, error: type(error).__name__)
    assert await invoke(formatted) == "ToolTimeoutError"
    raised = function_tool(waits, timeout=0.01, timeout_behavior="raise_exception")
    with pytest.raises(ToolTimeoutError) as caught:
        await invoke(raised)
    assert (caught.value.tool_name, caught.value.timeout_seconds) == ("waits", 0.01)


async def test_a_timeout_error_of_the_tool_itself_is_an_ordinary_exception() -> None:
    @function_tool(timeout=60, failure_error_function=None)
    async def fetch() -> None:
        raise TimeoutError("the shop did not answer")

    with pytest.raises(TimeoutError, match="the shop"):
        await invoke(fetch)


def test_only_an_async_function_can_have_a_timeout() -> None:
    with pytest.raises(InvalidDeclaration, match="only an async function"):

        @function_tool(timeout=1)
        def tool() -> None: ...


def test_a_generator_function_is_rejected():
    def lines(text: str):
        yield text

    async def streamed(text: str):
        yield text

    for function in (lines, streamed):
        with pytest.raises(InvalidDeclaration, match="cannot be a generator"):
            function_tool(function)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "1"])
def test_a_timeout_must_be_a_positive_number(seconds: Any) -> None:
    with pytest.raises(InvalidDeclaration, match="positive number of seconds"):
        make_tool("tool", timeout_seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 3},
        {"params_json_schema": None},
        {"on_invoke_tool": 3},
        {"is_enabled": "yes"},
        {"needs_approval": "yes"},
        {"on_uncertain": "guess"},
        {"timeout_behavior": "shrug"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_invalid_field_of_a_tool_is_named_in_the_error(wrong: dict[str, Any]) -> None:
    right = {"name": "tool", "description": "", "params_json_schema": {}, "on_invoke_tool": echo_arguments}
    with pytest.raises(InvalidDeclaration, match=next(iter(wrong)).split("_")[0]):
        FunctionTool(**right | wrong)


def test_a_hand_written_schema_is_made_strict_without_modifying_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = FunctionTool("tool", "", schema, echo_arguments)
    assert tool.params_json_schema["required"] == ["a"]
    assert "required" not in schema
    assert FunctionTool("tool", "", schema, echo_arguments, strict_json_schema=False).params_json_schema is schema


def test_a_tool_is_not_idempotent_by_default() -> None:
    @function_tool
    def default() -> None: ...
    @function_tool(idempotent=True, on_uncertain="retry")
    def repeatable() -> None: ...

    assert (default.idempotent, default.on_uncertain) == (False, "ask")
    assert (repeatable.idempotent, repeatable.on_uncertain) == (True, "retry")


def test_an_output_type_must_be_an_object() -> None:
    class Price(BaseModel):
        amount: float

    def price() -> Any: ...

    assert function_tool(price, output_type=Price).output_json_schema["required"] == ["amount"]  # type: ignore[index]
    with pytest.raises(InvalidDeclaration, match="output_type must be an object"):
        function_tool(price, output_type=list[int])


async def test_only_enabled_tools_are_offered() -> None:
    def tool(name: str, enabled: Any) -> FunctionTool:
        return make_tool(name, is_enabled=enabled)

    async def later(ctx: RunContextWrapper[Any], agent: Any) -> bool:
        await asyncio.sleep(0)
        return bool(ctx.context == agent.name)

    tools = [tool("on", True), tool("off", False), tool("sync", lambda ctx, agent: ctx.context == "ann")]
    agent = Agent("ann", tools=[*tools, tool("later", later), tool("later too", later), WebSearchTool()])
    names = [tool.name for tool in await agent.get_all_tools(RunContextWrapper("ann"))]
    assert names == ["on", "sync", "later", "later too", "web_search"]
    assert [tool.name for tool in await agent.get_all_tools(RunContextWrapper("bob"))] == ["on", "web_search"]


async def test_an_exception_in_is_enabled_is_raised() -> None:
    async def fails(ctx: Any, agent: Any) -> bool:
        raise LookupError("who?")

    async def waits(ctx: Any, agent: Any) -> bool:
        await asyncio.Event().wait()
        return True

    tools = [make_tool("a", is_enabled=predicate) for predicate in (waits, fails)]
    with pytest.raises(LookupError, match=r"who\?"):
        await Agent("a", tools=tools).get_all_tools(RunContextWrapper(None))


async def test_pending_is_enabled_coroutines_are_closed_after_an_exception() -> None:
    async def later(ctx: Any, agent: Any) -> bool:
        return True

    def fails(ctx: Any, agent: Any) -> bool:
        raise LookupError("who?")

    tools = [make_tool("a", is_enabled=predicate) for predicate in (later, fails)]
    with pytest.raises(LookupError, match=r"who\?"):
        await Agent("a", tools=tools).get_all_tools(RunContextWrapper(None))


async def test_tools_of_mcp_servers_come_first() -> None:
    class Server:
        name = "shop"

        async def get_function_tools(self, run_context: Any, agent: Any) -> list[Any]:
            return [make_tool("remote"), make_tool("gone", is_enabled=False)]

    agent = Agent("a", tools=[make_tool("own")], mcp_servers=[Server()])
    assert [tool.name for tool in await agent.get_all_tools(RunContextWrapper(None))] == ["remote", "own"]
    assert [tool.name for tool in await agent.get_mcp_tools(RunContextWrapper(None))] == ["remote", "gone"]


def test_a_namespace_does_not_modify_the_original_tool() -> None:
    tool = make_tool("find")
    (inside,) = tool_namespace(name="crm", description="customers", tools=[tool])
    assert (inside.qualified_name, tool.qualified_name) == ("crm.find", "find")
    assert ToolRef.from_tool(inside) == ToolRef("namespaced", "find", "crm")


@pytest.mark.parametrize(("name", "description"), [("", "d"), ("n", ""), ("n", None), ("find", "d")])
def test_a_namespace_needs_a_distinct_name_and_a_description(name: str, description: str | None) -> None:
    with pytest.raises(UserError, match="namespace"):
        tool_namespace(name=name, description=description, tools=[make_tool("find")])


def test_images_and_files_need_a_source() -> None:
    assert ToolOutputText(text="hi").model_dump() == {"type": "text", "text": "hi"}
    assert ToolOutputImage(file_id="f").type == "image"
    assert ToolOutputFileContent(file_url="u").type == "file"
    with pytest.raises(ValidationError, match="image_url or a file_id"):
        ToolOutputImage()
    with pytest.raises(ValidationError, match="file_data"):
        ToolOutputFileContent(filename="a.txt")


def test_an_origin_round_trips_through_json() -> None:
    origin = ToolOrigin(ToolOriginType.MCP, mcp_server_name="shop")
    assert origin.to_json_dict() == {"type": "mcp", "mcp_server_name": "shop"}
    assert ToolOrigin.from_json_dict(origin.to_json_dict()) == origin
    assert ToolOrigin.from_json_dict({"type": "moon"}) is None
    assert ToolOrigin.from_json_dict(3) is None


def test_hosted_tools_have_names_and_defaults() -> None:
    assert HostedMCPTool({"type": "mcp", "server_label": "shop"}).name == "hosted_mcp"
    assert WebSearchTool().search_context_size == "medium"


def test_a_needs_approval_function_that_cannot_take_the_call_is_refused_when_the_tool_is_made():
    for wrong in (lambda arguments: True, lambda context, arguments: True, lambda: True):
        with pytest.raises(InvalidDeclaration, match="context, the arguments and the id of the call"):
            function_tool(needs_approval=wrong)(lambda amount: "paid")

    class Limit:
        async def __call__(self, context, arguments, call_id):
            return arguments["amount"] > 100

    for right in (lambda *call: True, lambda context, arguments, call_id, limit=1: True, Limit()):
        assert function_tool(needs_approval=right)(lambda amount: "paid").needs_approval is right
