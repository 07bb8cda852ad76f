"""Guardrails and their decorators."""

from typing import Any

import pytest

from standfast import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailResult,
    InputGuardrailTripwireTriggered,
    InvalidDeclaration,
    RunContextWrapper,
    ToolContext,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailData,
    UserError,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)

AGENT = Agent("ann")
CONTEXT = RunContextWrapper(None)
CALL = ToolContext(None, tool_name="pay", tool_call_id="1", tool_arguments='{"amount": 9}')


async def test_an_input_guardrail_receives_the_input() -> None:
    @input_guardrail
    def polite(context: RunContextWrapper[Any], agent: Agent[Any], input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput({"by": agent.name}, "damn" in input)

    result = await polite.run(AGENT, "damn it", CONTEXT)
    assert (result.guardrail, result.output.tripwire_triggered) == (polite, True)
    assert result.output.output_info == {"by": "ann"}
    assert (polite.get_name(), polite.run_in_parallel) == ("polite", True)


async def test_a_guardrail_may_be_async_named_and_blocking() -> None:
    @input_guardrail(name="politeness", run_in_parallel=False)
    async def polite(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, False)

    assert (polite.get_name(), polite.run_in_parallel) == ("politeness", False)
    assert not (await polite.run(AGENT, [], CONTEXT)).output.tripwire_triggered


async def test_an_output_guardrail_receives_the_output() -> None:
    @output_guardrail(name="short")
    def short(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(len(output), len(output) > 3)

    result = await short.run(CONTEXT, AGENT, "too long")
    assert (result.agent_output, result.agent, result.output.tripwire_triggered) == ("too long", AGENT, True)


async def test_a_tool_guardrail_allows_replaces_or_ends() -> None:
    @tool_input_guardrail
    def cheap(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content(f"too dear: {data.context.tool_arguments}")

    @tool_output_guardrail(name="secret")
    async def secret(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception({"saw": data.output})

    assert (await cheap.run(ToolInputGuardrailData(CALL, AGENT))).behavior == {
        "type": "reject_content",
        "message": 'too dear: {"amount": 9}',
    }
    ended = await secret.run(ToolOutputGuardrailData(CALL, AGENT, "key"))
    assert (ended.behavior, ended.output_info) == ({"type": "raise_exception"}, {"saw": "key"})
    assert (
        ToolGuardrailFunctionOutput.allow().behavior == ToolGuardrailFunctionOutput(None).behavior == {"type": "allow"}
    )


@pytest.mark.parametrize("decorator", [input_guardrail, tool_input_guardrail])
async def test_the_error_for_an_invalid_return_value_names_the_guardrail(decorator: Any) -> None:
    @decorator
    def forgetful(*_: Any) -> None: ...

    with pytest.raises(UserError, match=r"'forgetful' must return .*FunctionOutput, got NoneType"):
        await forgetful.run(*((AGENT, "x", CONTEXT) if decorator is input_guardrail else (None,)))


@pytest.mark.parametrize("func", [3, None, GuardrailFunctionOutput])
def test_a_guardrail_needs_a_function(func: Any) -> None:
    with pytest.raises(InvalidDeclaration, match="needs a function"):
        InputGuardrail(func)


def test_a_tripwire_error_names_the_guardrail() -> None:
    @input_guardrail
    def polite(*_: Any) -> Any: ...
    @tool_input_guardrail
    def cheap(*_: Any) -> Any: ...

    tripped = InputGuardrailTripwireTriggered(InputGuardrailResult(polite, GuardrailFunctionOutput(None, True)))
    assert str(tripped) == "Guardrail InputGuardrail triggered tripwire"
    assert "'polite'" in tripped.__notes__[0]
    assert tripped.run_data is None
    tripped_tool = ToolInputGuardrailTripwireTriggered(cheap, ToolGuardrailFunctionOutput.raise_exception())
    assert "'cheap'" in tripped_tool.__notes__[0]
