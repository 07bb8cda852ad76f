"""The items of a session when the final output was refused, and results of guardrails when a run fails."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from factories.runs import MinimalSession, approve_all
from standfast import (
    Agent,
    GuardrailFunctionOutput,
    HostedMCPTool,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelBehaviorError,
    OutputGuardrail,
    RunConfig,
    Runner,
    RunState,
    UserError,
    function_tool,
)
from standfast.runs.core.context import ContextNotSaved
from standfast.testing import ScriptedModel, assistant_message, function_call

REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def call(name: str, call_id: str) -> Any:
    return function_call(name, {}, call_id=call_id)


@function_tool
def look() -> str:
    return "the secret"


@function_tool(needs_approval=True)
def pay() -> str:
    return "paid"


async def trip(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, True)


async def fail(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    raise RuntimeError("a bug in the guardrail")


async def stored_after(guardrail: Any, *turns: Any, behavior: Any = "stop_on_first_tool") -> list[str]:
    session = MinimalSession()
    guardrails = [OutputGuardrail(guardrail)]
    agent = Agent(
        "a", tools=[look], model=ScriptedModel(turns), tool_use_behavior=behavior, output_guardrails=guardrails
    )
    with pytest.raises(Exception, match="guardrail"):
        await Runner.run(agent, "q", session=session)
    return [item.get("type") or item["role"] for item in session.items]


async def collect(events: Any) -> list[Any]:
    return [event async for event in events]


PAIR = ["function_call", "function_call_output"]


async def test_a_message_that_was_not_delivered_is_not_stored() -> None:
    assert await stored_after(trip, [assistant_message("pre"), call("look", "1")]) == ["user", *PAIR]


async def test_a_refused_response_with_reasoning_is_not_stored_at_all() -> None:
    assert await stored_after(trip, [REASONING, call("look", "1")]) == ["user"]
    earlier = [call("look", "1")], [REASONING, assistant_message("final")]
    assert await stored_after(trip, *earlier, behavior="run_llm_again") == ["user", *PAIR]


async def test_a_guardrail_that_fails_loses_no_finished_call() -> None:
    assert await stored_after(fail, [call("look", "1")]) == ["user", *PAIR]
    assert await stored_after(fail, [REASONING, call("look", "1")]) == ["user", "reasoning", *PAIR]


def input_guardrail(name: str, action: Any, *, parallel: bool = False) -> InputGuardrail[Any]:
    async def check(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        if action == "raise":
            raise RuntimeError("a bug")
        return GuardrailFunctionOutput(name, action == "trip")

    return InputGuardrail(check, name=name, run_in_parallel=parallel)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_output_is_not_delivered_if_a_guardrail_was_cancelled(asynchronous: bool, streamed: bool) -> None:
    """As by a client that cancels its own requests: the run itself is not cancelled."""

    def cancel(*_: Any) -> Any:
        raise asyncio.CancelledError("inner")

    async def cancel_later(*_: Any) -> Any:
        cancel()

    guardrail: OutputGuardrail[Any] = OutputGuardrail(cancel_later if asynchronous else cancel, name="check")
    agent = Agent("a", model=ScriptedModel([[assistant_message("secret")]]), output_guardrails=[guardrail])
    run = collect(Runner.run_streamed(agent, "hi").stream_events()) if streamed else Runner.run(agent, "hi")
    with pytest.raises(UserError, match="'check' was cancelled and has not decided"):
        await run


@pytest.mark.parametrize(("action", "names"), [("trip", ["passes", "second"]), ("raise", ["passes"])])
async def test_an_error_lists_the_guardrails_that_came_to_a_result(action: str, names: list[str]) -> None:
    guardrails = [input_guardrail("passes", "allow"), input_guardrail("second", action)]
    agent = Agent("a", model=ScriptedModel([[assistant_message("x")]]), input_guardrails=guardrails)
    with pytest.raises(Exception, match=r"second|bug") as raised:
        await Runner.run(agent, "q")
    results = raised.value.run_data.input_guardrail_results  # type: ignore[attr-defined]
    assert [result.guardrail.get_name() for result in results] == names
    agent.model = ScriptedModel([[assistant_message("x")]])
    streamed = Runner.run_streamed(agent, "q")
    with pytest.raises(Exception, match=r"second|bug"):
        async for _ in streamed.stream_events():
            pass
    assert [result.guardrail.get_name() for result in streamed.input_guardrail_results] == names


async def test_the_results_of_output_guardrails_survive_a_failing_one() -> None:
    async def allow(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput("fine", False)

    guardrails = [OutputGuardrail(allow), OutputGuardrail(fail)]
    agent = Agent("a", model=ScriptedModel([[assistant_message("x")]]), output_guardrails=guardrails)
    with pytest.raises(RuntimeError) as raised:
        await Runner.run(agent, "q")
    results = raised.value.run_data.output_guardrail_results  # type: ignore[attr-defined]
    assert [result.output.output_info for result in results] == ["fine"]


async def test_a_guardrail_that_trips_at_once_wins_over_a_model_that_fails_at_once() -> None:
    guardrails = [input_guardrail("strict", "trip", parallel=True)]
    agent = Agent("a", model=ScriptedModel([ValueError("the model failed")]), input_guardrails=guardrails)
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(agent, "q")


# --- resuming what is gone ------------------------------------------------------------------------


async def test_a_tool_that_is_gone_is_found_out_before_a_sibling_runs() -> None:
    made: list[str] = []

    @function_tool(needs_approval=True)
    def effect() -> str:
        made.append("effect")
        return "done"

    agent = Agent("a", tools=[effect, pay], model=ScriptedModel([[call("effect", "1"), call("pay", "2")]]))
    state = (await Runner.run(agent, "q")).to_state()
    approve_all(state)
    agent.tools = [effect]
    with pytest.raises(ModelBehaviorError, match="'pay'"):
        await Runner.run(agent, state)
    assert made == []
    agent.tools, agent.model = [effect, pay], ScriptedModel([[assistant_message("ok")]])
    assert (await Runner.run(agent, state)).final_output == "ok"
    assert made == ["effect"]


async def test_the_model_gets_an_error_for_tools_and_handoffs_that_are_gone() -> None:
    other = Agent("other", model=ScriptedModel([[assistant_message("from the other")]]))
    calls = [call("pay", "1"), call("transfer_to_other", "2")]
    model = ScriptedModel([calls, [assistant_message("ok")]])
    agent = Agent("a", tools=[pay], handoffs=[other], model=model)
    state = (await Runner.run(agent, "q")).to_state()
    approve_all(state)
    agent.handoffs = []
    with pytest.raises(ModelBehaviorError, match="transfer_to_other"):
        await Runner.run(agent, state)
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    assert (await Runner.run(agent, state, run_config=config)).final_output == "ok"
    outputs = [item["output"] for item in model.calls[-1].input if "output" in item]
    assert outputs == ["paid", "Tool 'transfer_to_other' not found."]


# --- contexts, input, duplicates ------------------------------------------------------------------


@dataclass
class Customer:
    name: str


@pytest.mark.filterwarnings("ignore:context")
async def test_a_context_that_was_not_saved_does_not_reach_the_deserializer() -> None:
    agent = Agent("a", tools=[pay], model=ScriptedModel([[call("pay", "1")]]))
    text = (await Runner.run(agent, "q", context=Customer("Ann"))).to_state().to_string()
    with pytest.raises(ContextNotSaved, match="context_serializer"):
        await RunState.from_string(agent, text, context_deserializer=lambda data: Customer(**data))


async def test_input_that_would_be_lost_is_refused() -> None:
    for behavior, refused in [("stop_on_first_tool", True), ("run_llm_again", False)]:
        agent = Agent("a", tools=[pay], model=ScriptedModel([[call("pay", "1")]]), tool_use_behavior=behavior)  # type: ignore[arg-type]
        state = (await Runner.run(agent, "q")).to_state()
        if refused:
            with pytest.raises(UserError, match="would be lost"):
                state.add_input("late")
        else:
            state.add_input("late")


async def test_a_call_that_the_model_repeats_with_its_id_is_made_once() -> None:
    made: list[int] = []

    @function_tool
    def effect() -> str:
        made.append(1)
        return "done"

    model = ScriptedModel([[call("effect", "1"), call("effect", "1")], [assistant_message("ok")]])
    assert (await Runner.run(Agent("a", tools=[effect], model=model), "q")).final_output == "ok"
    assert made == [1]
    assert [item.get("type") for item in model.calls[-1].input] == [None, "function_call", "function_call_output"]


async def test_a_decision_about_a_hosted_request_is_found_and_one_without_arguments_is_not_put_to_the_callback() -> (
    None
):
    asked: list[Any] = []

    def on_request(request: Any) -> Any:
        asked.append(request)
        return {"approve": True}

    config = {"type": "mcp", "server_label": "bank", "server_url": "https://bank.example"}
    request = {"type": "mcp_approval_request", "id": "r1", "name": "pay", "server_label": "bank"}
    hosted = HostedMCPTool(config, on_approval_request=on_request)
    agent = Agent("a", tools=[hosted], model=ScriptedModel([[request]]))
    state = (await Runner.run(agent, "q")).to_state()
    assert asked == []
    [item] = state.get_interruptions()
    state.approve(item)
    assert state.context.is_tool_approved("pay", "r1") is True
