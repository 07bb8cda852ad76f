"""Function tools: how they are declared, called, named and explained when they fail."""

import asyncio
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from standfast import (
    Agent,
    FunctionTool,
    HostedMCPTool,
    InvalidDeclaration,
    ModelBehaviorError,
    RunContextWrapper,
    ToolContext,
    ToolMissing,
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
from standfast.agents import ToolRef, find_tool, index_tools_by_ref


def context(name: str = "tool") -> ToolContext[None]:
    return ToolContext(None, tool_name=name, tool_call_id="call_1", tool_arguments="{}")


async def invoked(tool: FunctionTool, arguments: str = "{}") -> Any:
    return await tool.invoke(context(tool.name), arguments)


async def nothing(ctx: ToolContext[Any], arguments: str) -> str:
    return arguments


async def test_both_forms_of_the_decorator_make_a_tool() -> None:
    @function_tool
    def bare(a: int) -> int:
        """Double it."""
        return a * 2

    @function_tool(name_override="twice", description_override="Two times.")
    async def called(a: int) -> int:
        return a * 2

    assert (bare.name, bare.description, await invoked(bare, '{"a": 2}')) == ("bare", "Double it.", 4)
    assert (called.name, called.description, await invoked(called, '{"a": 3}')) == ("twice", "Two times.", 6)


def test_fields_keep_their_places() -> None:
    places = [name for name, at in inspect.signature(FunctionTool).parameters.items() if at.kind is not at.KEYWORD_ONLY]
    assert ", ".join(places) == (
        "name, description, params_json_schema, on_invoke_tool, strict_json_schema, is_enabled, "
        "tool_input_guardrails, tool_output_guardrails, needs_approval, timeout_seconds, timeout_behavior, "
        "timeout_error_function, defer_loading"
    )


def test_the_function_can_still_be_had() -> None:
    def double(a: int) -> int:
        return a * 2

    assert function_tool(double).__wrapped__ is double


async def test_a_tool_is_given_its_call() -> None:
    @function_tool
    def who(ctx: ToolContext[Any]) -> str:
        return f"{ctx.tool_name} {ctx.tool_call_id} {ctx.idempotency_key}"

    assert await invoked(who) == "who call_1 call_1"


async def test_a_failure_becomes_a_text_for_the_model() -> None:
    @function_tool
    def fails() -> None:
        raise ValueError("no such order")

    assert "no such order" in await invoked(fails)


async def test_bad_arguments_become_a_text_for_the_model_too() -> None:
    @function_tool
    def tool(a: int) -> None: ...

    assert "invalid arguments for tool tool: a: Field required" in await invoked(tool, "{}")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failure_can_be_explained_in_ones_own_words(is_async: bool) -> None:
    def said(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"sorry: {error}"

    async def said_later(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"sorry: {error}"

    @function_tool(failure_error_function=said_later if is_async else said)
    def fails() -> None:
        raise ValueError("boom")

    assert await invoked(fails) == "sorry: boom"


async def test_an_explanation_that_is_no_text_is_refused() -> None:
    @function_tool(failure_error_function=lambda ctx, error: 3)  # type: ignore[arg-type, return-value]
    def fails() -> None:
        raise ValueError("boom")

    with pytest.raises(UserError, match="must return a string, not int"):
        await invoked(fails)


async def test_without_an_explanation_the_failure_is_raised() -> None:
    @function_tool(failure_error_function=None)
    def fails(a: int = 0) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await invoked(fails)
    with pytest.raises(ModelBehaviorError, match="invalid arguments for tool fails"):
        await invoked(fails, '{"a": "x"}')


async def test_a_cancelled_tool_is_cancelled_not_explained() -> None:
    started = asyncio.Event()

    @function_tool
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(invoked(waits))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_late_tool_is_cancelled_and_the_model_is_told() -> None:
    ended = []

    @function_tool(timeout=0.01)
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    assert await invoked(waits) == "Tool 'waits' timed out after 0.01 seconds."
    assert ended


async def test_a_late_tool_can_be_explained_or_raised() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    explained = function_tool(waits, timeout=0.01, timeout_error_function=lambda ctx, error: type(error).__name__)
    assert await invoked(explained) == "ToolTimeoutError"
    raised = function_tool(waits, timeout=0.01, timeout_behavior="raise_exception")
    with pytest.raises(ToolTimeoutError) as caught:
        await invoked(raised)
    assert (caught.value.tool_name, caught.value.timeout_seconds) == ("waits", 0.01)


async def test_a_timeout_of_the_tools_own_is_a_failure_like_any_other() -> None:
    @function_tool(timeout=60, failure_error_function=None)
    async def asks() -> None:
        raise TimeoutError("the shop did not answer")

    with pytest.raises(TimeoutError, match="the shop"):
        await invoked(asks)


def test_only_an_async_function_can_have_a_timeout() -> None:
    with pytest.raises(InvalidDeclaration, match="only an async function"):

        @function_tool(timeout=1)
        def tool() -> None: ...


def test_a_function_that_yields_is_no_tool():
    def lines(text: str):
        yield text

    async def streamed(text: str):
        yield text

    for function in (lines, streamed):
        with pytest.raises(InvalidDeclaration, match="return all of it"):
            function_tool(function)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "1"])
def test_a_timeout_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(InvalidDeclaration, match="positive number of seconds"):
        FunctionTool("tool", "", {}, nothing, timeout_seconds=seconds)


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
def test_a_tool_declared_wrongly_says_what_is_wrong(wrong: dict[str, Any]) -> None:
    right = {"name": "tool", "description": "", "params_json_schema": {}, "on_invoke_tool": nothing}
    with pytest.raises(InvalidDeclaration, match=next(iter(wrong)).split("_")[0]):
        FunctionTool(**right | wrong)


def test_a_schema_by_hand_is_made_strict_without_touching_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = FunctionTool("tool", "", schema, nothing)
    assert tool.params_json_schema["required"] == ["a"]
    assert "required" not in schema
    assert FunctionTool("tool", "", schema, nothing, strict_json_schema=False).params_json_schema is schema


def test_a_call_is_not_repeated_unless_it_is_said_to_be_safe() -> None:
    @function_tool
    def careful() -> None: ...
    @function_tool(idempotent=True, on_uncertain="retry")
    def careless() -> None: ...

    assert (careful.idempotent, careful.on_uncertain) == (False, "ask")
    assert (careless.idempotent, careless.on_uncertain) == (True, "retry")


def test_an_output_type_must_be_an_object() -> None:
    class Price(BaseModel):
        amount: float

    def price() -> Any: ...

    assert function_tool(price, output_type=Price).output_json_schema["required"] == ["amount"]  # type: ignore[index]
    with pytest.raises(InvalidDeclaration, match="output_type must be an object"):
        function_tool(price, output_type=list[int])


async def test_only_enabled_tools_are_offered() -> None:
    def made(name: str, enabled: Any) -> FunctionTool:
        return FunctionTool(name, "", {}, nothing, is_enabled=enabled)

    async def later(ctx: RunContextWrapper[Any], agent: Any) -> bool:
        await asyncio.sleep(0)
        return bool(ctx.context == agent.name)

    tools = [made("on", True), made("off", False), made("sync", lambda ctx, agent: ctx.context == "ann")]
    agent = Agent("ann", tools=[*tools, made("later", later), made("later too", later), WebSearchTool()])
    names = [tool.name for tool in await agent.get_all_tools(RunContextWrapper("ann"))]
    assert names == ["on", "sync", "later", "later too", "web_search"]
    assert [tool.name for tool in await agent.get_all_tools(RunContextWrapper("bob"))] == ["on", "web_search"]


async def test_a_question_that_fails_is_the_error_that_is_seen() -> None:
    async def fails(ctx: Any, agent: Any) -> bool:
        raise LookupError("who?")

    async def waits(ctx: Any, agent: Any) -> bool:
        await asyncio.Event().wait()
        return True

    tools = [FunctionTool("a", "", {}, nothing, is_enabled=asked) for asked in (waits, fails)]
    with pytest.raises(LookupError, match=r"who\?"):
        await Agent("a", tools=tools).get_all_tools(RunContextWrapper(None))


async def test_questions_left_unanswered_by_a_failure_are_dropped() -> None:
    async def later(ctx: Any, agent: Any) -> bool:
        return True

    def fails(ctx: Any, agent: Any) -> bool:
        raise LookupError("who?")

    tools = [FunctionTool("a", "", {}, nothing, is_enabled=asked) for asked in (later, fails)]
    with pytest.raises(LookupError, match=r"who\?"):
        await Agent("a", tools=tools).get_all_tools(RunContextWrapper(None))


async def test_tools_of_mcp_servers_come_first() -> None:
    class Server:
        name = "shop"

        async def get_function_tools(self, run_context: Any, agent: Any) -> list[Any]:
            return [FunctionTool("remote", "", {}, nothing), FunctionTool("gone", "", {}, nothing, is_enabled=False)]

    agent = Agent("a", tools=[FunctionTool("own", "", {}, nothing)], mcp_servers=[Server()])
    assert [tool.name for tool in await agent.get_all_tools(RunContextWrapper(None))] == ["remote", "own"]
    assert [tool.name for tool in await agent.get_mcp_tools(RunContextWrapper(None))] == ["remote", "gone"]


def test_a_namespace_leaves_the_tool_outside_as_it_was() -> None:
    tool = FunctionTool("find", "", {}, nothing)
    (inside,) = tool_namespace(name="crm", description="customers", tools=[tool])
    assert (inside.qualified_name, tool.qualified_name) == ("crm.find", "find")
    assert ToolRef.from_tool(inside) == ToolRef("namespaced", "find", "crm")


@pytest.mark.parametrize(("name", "description"), [("", "d"), ("n", ""), ("n", None), ("find", "d")])
def test_a_namespace_needs_a_name_of_its_own_and_a_description(name: str, description: str | None) -> None:
    with pytest.raises(UserError, match="namespace"):
        tool_namespace(name=name, description=description, tools=[FunctionTool("find", "", {}, nothing)])


def test_tools_of_one_name_are_told_apart_by_their_keys() -> None:
    bare = FunctionTool("find", "", {}, nothing)
    deferred = FunctionTool("find", "", {}, nothing, defer_loading=True)
    (inside,) = tool_namespace(name="crm", description="customers", tools=[bare])
    tools = index_tools_by_ref([bare, deferred, inside, WebSearchTool(), bare])
    assert [str(ref) for ref in tools] == ["find", "deferred_top_level:find", "crm.find"]
    for call, meant in ((("find",), bare), (("find", "find"), deferred), (("find", "crm"), inside)):
        assert find_tool(tools, ToolRef.from_call(*call), agent_name="a") is meant


def test_a_bare_call_may_mean_a_deferred_tool() -> None:
    tools = index_tools_by_ref([FunctionTool("find", "", {}, nothing, defer_loading=True)])
    assert find_tool(tools, ToolRef.from_call("find"), agent_name="a").defer_loading


def test_a_missing_tool_is_named_with_those_there_are() -> None:
    tools = index_tools_by_ref([FunctionTool("find", "", {}, nothing)])
    with pytest.raises(ToolMissing, match=r"'support' has no tool 'crm\.find'; it has find") as caught:
        find_tool(tools, ToolRef("namespaced", "find", "crm"), agent_name="support")
    assert (caught.value.key, caught.value.known_tools) == ("crm.find", ("find",))


NAMES = st.text(min_size=1, max_size=5)


@given(st.sampled_from(["bare", "deferred_top_level", "namespaced", "hosted_mcp"]), NAMES, NAMES)
def test_a_key_comes_back_from_its_strings(kind: Any, name: str, namespace: str) -> None:
    ref = ToolRef(kind, name, namespace if kind in ("namespaced", "hosted_mcp") else None)
    assert ToolRef.from_lookup_key(list(ref.lookup_key)) == ref


@pytest.mark.parametrize("key", [(), ("bare",), ("bare", 1), ("other", "a"), ("namespaced", "a")])
def test_other_strings_are_no_key(key: Any) -> None:
    with pytest.raises(ModelBehaviorError, match="no key of a tool"):
        ToolRef.from_lookup_key(key)


def test_pictures_and_files_must_be_somewhere() -> None:
    assert ToolOutputText(text="hi").model_dump() == {"type": "text", "text": "hi"}
    assert ToolOutputImage(file_id="f").type == "image"
    assert ToolOutputFileContent(file_url="u").type == "file"
    with pytest.raises(ValidationError, match="image_url or a file_id"):
        ToolOutputImage()
    with pytest.raises(ValidationError, match="file_data"):
        ToolOutputFileContent(filename="a.txt")


def test_an_origin_goes_through_json() -> None:
    origin = ToolOrigin(ToolOriginType.MCP, mcp_server_name="shop")
    assert origin.to_json_dict() == {"type": "mcp", "mcp_server_name": "shop"}
    assert ToolOrigin.from_json_dict(origin.to_json_dict()) == origin
    assert ToolOrigin.from_json_dict({"type": "moon"}) is None
    assert ToolOrigin.from_json_dict(3) is None


def test_hosted_tools_are_data() -> None:
    assert HostedMCPTool({"type": "mcp", "server_label": "shop"}).name == "hosted_mcp"
    assert WebSearchTool().search_context_size == "medium"
