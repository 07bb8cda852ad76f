"""A conversation that the provider keeps is never sent an item twice."""

from typing import Any

import pytest

from factories.runs import RUN_MODES, Scenario, approve_all
from standfast import Agent, RunConfig, RunHooks, Runner, RunState, UserError, function_tool, handoff
from standfast.agents.handoff_filters import remove_all_tools
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call


@function_tool(idempotent=True, needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


def steps() -> list[ModelStep]:
    return [
        ModelStep(output=[function_call("pay", {"amount": n}, call_id=f"c{n}")], response_id=f"r{n}") for n in (1, 2)
    ] + [ModelStep(output=[assistant_message("ok")], response_id="r3")]


MODES = {
    "conversation": ({"conversation_id": "conv"}, [("conv", None)] * 3),
    "chain": ({"previous_response_id": "r0"}, [(None, "r0"), (None, "r1"), (None, "r2")]),
    "automatic chain": ({"auto_previous_response_id": True}, [(None, None), (None, "r1"), (None, "r2")]),
}


@pytest.mark.parametrize("way", RUN_MODES)
@pytest.mark.parametrize("mode", MODES)
async def test_only_what_the_provider_does_not_have_is_sent(mode: str, way: str) -> None:
    options, ids = MODES[mode]
    model = ScriptedModel(steps())
    scenario = Scenario(Agent("a", tools=[pay], model=model), model, decide=approve_all, options=options)
    outcome = await RUN_MODES[way](scenario, None)
    assert outcome.final == "ok"
    assert [(call.conversation_id, call.previous_response_id) for call in model.calls] == ids
    sent = [[item.get("output", item.get("content")) for item in call.input] for call in model.calls]
    assert sent == [["hello"], ["paid 1"], ["paid 2"]]


@pytest.mark.parametrize("mode", MODES)
async def test_a_response_is_not_requested_again_after_a_hook_raised(mode: str) -> None:
    class Failing(RunHooks[Any]):
        async def on_llm_end(self, *_: Any) -> None:
            raise ValueError("mine")

    options, ids = MODES[mode]
    model = ScriptedModel(steps())
    agent = Agent("a", tools=[pay], model=model)
    state: Any = None
    for _ in range(3):
        with pytest.raises(ValueError, match="mine") as raised:
            await Runner.run(agent, state or "hello", hooks=Failing(), **({} if state else options))
        state = await RunState.from_string(agent, raised.value.run_data.state.to_string())  # type: ignore[attr-defined]
        paused = await Runner.run(agent, state, max_turns=state.max_turns) if state.data.calls else None
        if paused is not None:
            state = paused.to_state()
            approve_all(state)
    assert (await Runner.run(agent, state)).final_output == "ok"
    assert [(call.conversation_id, call.previous_response_id) for call in model.calls] == ids
    sent = [[item.get("output", item.get("content")) for item in call.input] for call in model.calls]
    assert sent == [["hello"], ["paid 1"], ["paid 2"]]


async def test_two_ways_of_keeping_a_conversation_exclude_each_other() -> None:
    with pytest.raises(UserError, match="conversation_id"):
        await Runner.run(Agent("a", model=ScriptedModel([])), "q", conversation_id="c", previous_response_id="r")


async def test_what_the_provider_has_cannot_be_filtered() -> None:
    other = Agent("b", model=ScriptedModel([[assistant_message("b")]]))
    way = handoff(other, input_filter=remove_all_tools)
    agent = Agent("a", handoffs=[way], model=ScriptedModel([[function_call("transfer_to_b", {}, call_id="1")]]))
    with pytest.raises(UserError, match="provider stores"):
        await Runner.run(agent, "q", conversation_id="c")


async def test_the_last_edit_before_the_model_is_the_programs() -> None:
    def edit(data: Any) -> Any:
        data.model_data.input = [*data.model_data.input, {"role": "user", "content": "please"}]
        data.model_data.instructions = f"{data.agent.name}!"
        return data.model_data

    model = ScriptedModel([[function_call("free", {}, call_id="1")], [assistant_message("ok")]])

    @function_tool
    async def free() -> str:
        return "x"

    agent = Agent("a", tools=[free], model=model)
    await Runner.run(agent, "q", run_config=RunConfig(call_model_input_filter=edit))
    assert [len(call.input) for call in model.calls] == [2, 4]
    assert model.first_call.system_instructions == "a!"
    with pytest.raises(UserError, match="call_model_input_filter"):
        await Runner.run(agent, "q", run_config=RunConfig(call_model_input_filter=lambda data: None))
