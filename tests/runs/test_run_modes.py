"""Every scenario gives the same items, final output, model inputs and session contents, however it is run."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from factories.runs import RUN_MODES, SESSIONS, Scenario, approve_all
from standfast import (
    Agent,
    GuardrailFunctionOutput,
    HostedMCPTool,
    ModelSettings,
    RunConfig,
    StopAtTools,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolOutputImage,
    ToolsToFinalOutputResult,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_namespace,
    tool_output_guardrail,
)
from standfast.agents.handoff_filters import remove_all_tools
from standfast.testing import ScriptedModel, assistant_message, function_call


class Weather(BaseModel):
    city: str
    degrees: int


@function_tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@function_tool(idempotent=True)
def weather(city: str) -> Weather:
    return Weather(city=city, degrees=len(city))


@function_tool(idempotent=True)
async def fail(text: str) -> str:
    raise RuntimeError(text)


@function_tool(idempotent=True, needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


@function_tool(idempotent=True)
async def picture() -> ToolOutputImage:
    return ToolOutputImage(image_url="https://example.com/a.png")


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


def just_text() -> Scenario:
    model = ScriptedModel([[assistant_message("hi")]])
    return Scenario(Agent("a", instructions="be brief", model=model), model)


def one_tool() -> Scenario:
    model = ScriptedModel([[call("add", "1", a=1, b=2)], [assistant_message("3")]])
    return Scenario(Agent("a", tools=[add], model=model), model)


def several_tools() -> Scenario:
    calls = [call("add", "1", a=1, b=2), call("weather", "2", city="Rome"), call("fail", "3", text="no")]
    model = ScriptedModel([calls, [call("picture", "4")], [assistant_message("done")]])
    agent = Agent("a", tools=[add, weather, fail, picture], model=model)
    config = RunConfig(tool_execution=ToolExecutionConfig(max_function_tool_concurrency=2))
    return Scenario(agent, model, options={"run_config": config})


def many_turns() -> Scenario:
    model = ScriptedModel([*[[call("add", f"c{n}", a=n, b=n)] for n in range(6)], [assistant_message("done")]])
    return Scenario(Agent("a", tools=[add], model=model), model)


def structured() -> Scenario:
    model = ScriptedModel([[call("weather", "1", city="Oslo")], [assistant_message('{"city": "Oslo", "degrees": 4}')]])
    return Scenario(Agent("a", tools=[weather], output_type=Weather, model=model), model)


def approval() -> Scenario:
    model = ScriptedModel([[call("pay", "1", amount=5), call("add", "2", a=1, b=1)], [assistant_message("ok")]])
    return Scenario(Agent("a", tools=[pay, add], model=model), model, decide=approve_all)


def partial_approval() -> Scenario:
    model = ScriptedModel([[call("pay", "1", amount=5), call("pay", "2", amount=6)], [assistant_message("ok")]])

    def one_at_a_time(state: Any) -> None:
        state.approve(state.get_interruptions()[0])

    return Scenario(Agent("a", tools=[pay], model=model), model, decide=one_at_a_time)


def sticky_approval() -> Scenario:
    model = ScriptedModel([[call("pay", "1", amount=5)], [call("pay", "2", amount=6)], [assistant_message("ok")]])

    def always(state: Any) -> None:
        state.approve(state.get_interruptions()[0], always_approve=True)

    return Scenario(Agent("a", tools=[pay], model=model), model, decide=always)


def edited_and_rejected() -> Scenario:
    model = ScriptedModel([[call("pay", "1", amount=5), call("pay", "2", amount=6)], [assistant_message("ok")]])

    def mixed(state: Any) -> None:
        first, second = state.get_interruptions()
        state.approve(first, arguments={"amount": 50})
        state.reject(second, rejection_message="too much")

    return Scenario(Agent("a", tools=[pay], model=model), model, decide=mixed)


def nested() -> Scenario:
    inner = ScriptedModel([[call("pay", "i1", amount=1)], [assistant_message("paid")]])
    model = ScriptedModel([[call("ask_inner", "o1", input="pay one")], [assistant_message("all done")]])
    agent = Agent("inner", tools=[pay], model=inner)
    tool = agent.as_tool("ask_inner", "asks")
    tool.idempotent = True
    return Scenario(Agent("outer", tools=[tool, add], model=model), model, decide=approve_all)


def handing_over() -> Scenario:
    model = ScriptedModel(
        [
            [call("add", "1", a=1, b=1)],
            [call("transfer_to_b", "2"), call("transfer_to_c", "3")],
            [assistant_message("b")],
        ]
    )
    others = [Agent(name, instructions=f"I am {name}", model=model) for name in ("b", "c")]
    return Scenario(Agent("a", tools=[add], handoffs=others, model=model), model)


def filtered_handoff() -> Scenario:
    model = ScriptedModel(
        [
            [call("add", "1", a=1, b=1)],
            [call("transfer_to_b", "2")],
            [call("add", "3", a=2, b=2)],
            [assistant_message("b")],
        ]
    )
    other = Agent("b", tools=[add], model=model)
    return Scenario(
        Agent("a", tools=[add], handoffs=[handoff(other, input_filter=remove_all_tools)], model=model), model
    )


def nested_history() -> Scenario:
    model = ScriptedModel([[call("transfer_to_b", "2")], [call("transfer_to_a", "3")], [assistant_message("b")]])
    first, second = Agent("a", model=model), Agent("b", model=model)
    first.handoffs.append(second)
    second.handoffs.append(first)
    return Scenario(first, model, options={"run_config": RunConfig(nest_handoff_history=True)})


def guarded() -> Scenario:
    @input_guardrail
    async def beside(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput({"saw": input}, False)

    @input_guardrail(run_in_parallel=False)
    def before(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, False)

    @output_guardrail
    async def after(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output, False)

    model = ScriptedModel([[call("add", "1", a=1, b=1)], [assistant_message("2")]])
    agent = Agent("a", tools=[add], model=model, input_guardrails=[beside, before], output_guardrails=[after])
    return Scenario(agent, model)


def first_tool_ends() -> Scenario:
    model = ScriptedModel([[call("add", "1", a=1, b=1), call("weather", "2", city="Bern")]])
    return Scenario(Agent("a", tools=[add, weather], tool_use_behavior="stop_on_first_tool", model=model), model)


def named_tool_ends() -> Scenario:
    model = ScriptedModel([[call("add", "1", a=1, b=1)], [call("pay", "2", amount=1)]])
    behavior = StopAtTools(stop_at_tool_names=["pay"])
    return Scenario(Agent("a", tools=[add, pay], tool_use_behavior=behavior, model=model), model, decide=approve_all)


def function_decides() -> Scenario:
    async def behavior(context: Any, results: Any) -> ToolsToFinalOutputResult:
        return ToolsToFinalOutputResult(len(results) == 2, sum(result.output for result in results))

    model = ScriptedModel([[call("add", "1", a=1, b=1)], [call("add", "2", a=1, b=1), call("add", "3", a=2, b=2)]])
    return Scenario(Agent("a", tools=[add], tool_use_behavior=behavior, model=model), model)


def tool_choice_is_reset() -> Scenario:
    model = ScriptedModel([[call("add", "1", a=1, b=1)], [assistant_message("2")]])
    settings = ModelSettings(tool_choice="required")
    return Scenario(Agent("a", tools=[add], model_settings=settings, model=model), model)


def unknown_tool_is_answered() -> Scenario:
    model = ScriptedModel([[call("nope", "1"), call("add", "2", a=1, b=1)], [assistant_message("sorry")]])
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    return Scenario(Agent("a", tools=[add], model=model), model, options={"run_config": config})


def reasoning_without_ids() -> Scenario:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    model = ScriptedModel([[thought, call("pay", "1", amount=1)], [{**thought, "id": "rs_2"}, assistant_message("ok")]])
    config = RunConfig(reasoning_item_id_policy="omit")
    agent = Agent("a", tools=[pay], model=model)
    return Scenario(agent, model, decide=approve_all, options={"run_config": config})


def guarded_tools() -> Scenario:
    @tool_input_guardrail
    async def not_zero(data: Any) -> ToolGuardrailFunctionOutput:
        if '"amount":0' in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("not nothing")
        return ToolGuardrailFunctionOutput.allow()

    @tool_output_guardrail
    async def hide(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("hidden")

    own = replace(pay, tool_input_guardrails=[not_zero], tool_output_guardrails=[hide])
    model = ScriptedModel([[call("pay", "1", amount=0), call("pay", "2", amount=2)], [assistant_message("ok")]])
    return Scenario(Agent("a", tools=[own], model=model), model, decide=approve_all)


def hosted_mcp_asks() -> Scenario:
    asked = {"type": "mcp_approval_request", "id": "m1", "name": "drop", "arguments": "{}", "server_label": "db"}
    model = ScriptedModel([[asked, call("add", "1", a=1, b=1)], [assistant_message("ok")]])
    agent = Agent("a", tools=[HostedMCPTool({"server_label": "db"}), add], model=model)
    return Scenario(agent, model, decide=approve_all)


def namespaced() -> Scenario:
    inside = tool_namespace(name="bank", description="money", tools=[pay])
    mine = function_call("pay", {"amount": 1}, call_id="1", namespace="bank")
    model = ScriptedModel([[mine, call("pay", "2", amount=2)], [assistant_message("ok")]])
    return Scenario(Agent("a", tools=[*inside, pay], model=model), model, decide=approve_all)


def turns_run_out() -> Scenario:
    model = ScriptedModel([[call("add", "1", a=1, b=1)]])
    options = {"max_turns": 1, "error_handlers": {"max_turns": lambda data: "enough"}}
    return Scenario(Agent("a", tools=[add], model=model), model, options=options)


def edited_request() -> Scenario:
    def only_the_last(data: Any) -> Any:
        data.model_data.input = data.model_data.input[-1:]
        return data.model_data

    model = ScriptedModel([[call("add", "1", a=1, b=1)], [assistant_message("2")]])
    config = RunConfig(call_model_input_filter=only_the_last)
    return Scenario(Agent("a", tools=[add], model=model), model, options={"run_config": config})


SCENARIOS = [
    reasoning_without_ids,
    guarded_tools,
    hosted_mcp_asks,
    namespaced,
    turns_run_out,
    edited_request,
    just_text,
    one_tool,
    several_tools,
    many_turns,
    structured,
    approval,
    partial_approval,
    sticky_approval,
    edited_and_rejected,
    nested,
    handing_over,
    filtered_handoff,
    nested_history,
    guarded,
    first_tool_ends,
    named_tool_ends,
    function_decides,
    tool_choice_is_reset,
    unknown_tool_is_answered,
]


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda make: make.__name__)
async def test_every_run_mode_has_the_same_result(scenario: Any, session: str) -> None:
    outcomes = {}
    for name, way in RUN_MODES.items():
        made = scenario()
        kept = SESSIONS[session]()
        if kept is not None:
            await kept.add_items([{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}])
        outcomes[name] = await way(made, kept)
        made.model.assert_complete()
    assert outcomes["streamed"] == outcomes["at once"]
    assert outcomes["step by step"] == plain(outcomes["at once"])


def plain(outcome: Any) -> Any:
    """Outputs of tools that only live in memory are compared as JSON has them."""
    outcome.items = [(kind, item, in_json(output)) for kind, item, output in outcome.items]
    return outcome


def in_json(output: Any) -> Any:
    return output.model_dump(mode="json") if isinstance(output, BaseModel) else output


@pytest.mark.parametrize("asks_first", [False, True])
async def test_an_uncertain_call_needs_a_decision_and_is_made_once(asks_first: bool) -> None:
    made = []

    @function_tool(needs_approval=asks_first)
    async def ship(order: int) -> str:
        made.append(order)
        return f"shipped {order}"

    model = ScriptedModel([[call("ship", "1", order=7)], [assistant_message("done")]])
    scenario = Scenario(Agent("a", tools=[ship], model=model), model, decide=approve_all)
    outcome = await RUN_MODES["step by step"](scenario, None)
    assert (outcome.final, made) == ("done", [7])
    assert outcome.interruptions == 1 + asks_first
