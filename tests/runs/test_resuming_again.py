"""A state that is resumed more than once, and agents that are built anew for every request."""

import asyncio
from typing import Any

import pytest

from standfast import (
    Agent,
    AgentChanged,
    AgentMissing,
    GuardrailFunctionOutput,
    InvalidDecision,
    OutputGuardrail,
    RunHooks,
    Runner,
    RunState,
    ToolGuardrailFunctionOutput,
    UncertainCall,
    UserError,
    function_tool,
    tool_input_guardrail,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


class Shop:
    """An agent with a payment that needs approval; ``after`` is called after the effect of the payment."""

    def __init__(self, after: Any = None, *, nested: bool = False, **options: Any) -> None:
        self.paid: list[int] = []
        self.began = asyncio.Event()

        @function_tool(needs_approval=True, failure_error_function=None, **options)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            self.began.set()
            if after is not None and len(self.paid) == 1:
                await after()
            return f"paid {amount}"

        call = [function_call("pay", {"amount": 5}, call_id="c1")]
        self.model = ScriptedModel([call, [assistant_message("done")]])
        self.agent = Agent("shop", tools=[pay], model=self.model)
        if nested:
            tool = self.agent.as_tool("ask_shop", "", failure_error_function=None)
            outer = [[function_call("ask_shop", {"input": "q"}, call_id="o1")], [assistant_message("all done")]]
            self.agent = Agent("outer", tools=[tool], model=ScriptedModel(outer))

    async def approved(self) -> RunState[Any]:
        state = (await Runner.run(self.agent, "q")).to_state()
        state.approve(state.get_interruptions()[0])
        return state


async def lose_connection() -> None:
    raise ConnectionError("lost after the payment")


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_a_call_that_raised_is_not_made_again_from_the_same_state(nested: bool) -> None:
    shop = Shop(lose_connection, nested=nested)
    state = await shop.approved()
    with pytest.raises(UserError, match="lost after the payment"):
        await Runner.run(shop.agent, state)
    result = await Runner.run(shop.agent, state)
    assert (shop.paid, result.final_output) == ([5], None)
    [item] = result.interruptions
    assert (item.tool_name, item.uncertain) == ("pay", True)


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_a_call_that_was_cancelled_is_not_made_again_from_the_same_state(nested: bool) -> None:
    shop = Shop(hang, nested=nested)
    state = await shop.approved()
    task = asyncio.create_task(Runner.run(shop.agent, state))
    await shop.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await Runner.run(shop.agent, state)
    assert shop.paid == [5]
    assert [item.uncertain for item in result.interruptions] == [True]


class FailingOnce(RunHooks[Any]):
    def __init__(self) -> None:
        self.failed = False

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        if not self.failed and tool.name == "pay":
            self.failed = True
            raise RuntimeError("the hook failed")


async def test_a_run_continues_after_a_call_that_returned_before_a_hook_failed() -> None:
    shop, hooks = Shop(), FailingOnce()
    state = await shop.approved()
    with pytest.raises(UserError, match="the hook failed"):
        await Runner.run(shop.agent, state, hooks=hooks)
    assert (await Runner.run(shop.agent, state, hooks=hooks)).final_output == "done"
    assert shop.paid == [5]


async def test_a_run_continues_after_its_calls_when_an_output_guardrail_failed() -> None:
    shop, attempts = Shop(), []

    async def check(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        attempts.append(output)
        if len(attempts) == 1:
            raise RuntimeError("the guardrail failed")
        return GuardrailFunctionOutput(None, False)

    shop.agent.output_guardrails = [OutputGuardrail(check)]
    state = await shop.approved()
    with pytest.raises(RuntimeError):
        await Runner.run(shop.agent, state)
    assert (await Runner.run(shop.agent, state)).final_output == "done"
    assert (shop.paid, len(shop.model.calls)) == ([5], 2)


async def test_a_state_that_was_run_to_its_end_stays_there() -> None:
    shop = Shop()
    state = await shop.approved()
    first = await Runner.run(shop.agent, state)
    second = await Runner.run(shop.agent, state)
    assert (first.final_output, second.final_output, shop.paid) == ("done", "done", [5])


async def test_a_state_cannot_be_continued_twice_at_the_same_time() -> None:
    shop = Shop(hang)
    state = await shop.approved()
    task = asyncio.create_task(Runner.run(shop.agent, state))
    await shop.began.wait()
    with pytest.raises(UserError, match="continued from this state already"):
        await Runner.run(shop.agent, state)
    task.cancel()
    await asyncio.wait({task})
    assert shop.paid == [5]


async def test_a_call_that_a_guardrail_stopped_was_not_made_and_may_be_made() -> None:
    trips = [True, False]

    @tool_input_guardrail
    def trip_once(data: Any) -> ToolGuardrailFunctionOutput:
        allow, stop = ToolGuardrailFunctionOutput.allow, ToolGuardrailFunctionOutput.raise_exception
        return stop() if trips.pop(0) else allow()

    shop = Shop(tool_input_guardrails=[trip_once])
    state = await shop.approved()
    with pytest.raises(Exception, match="trip_once"):
        await Runner.run(shop.agent, state)
    assert (await Runner.run(shop.agent, state)).final_output == "done"
    assert shop.paid == [5]


async def test_a_tool_may_allow_that_it_is_called_again() -> None:
    shop = Shop(lose_connection, on_uncertain="retry")
    state = await shop.approved()
    with pytest.raises(UserError):
        await Runner.run(shop.agent, state)
    assert (await Runner.run(shop.agent, state)).final_output == "done"
    assert shop.paid == [5, 5]


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_an_uncertain_call_cannot_be_approved_like_a_new_one(nested: bool) -> None:
    shop = Shop(lose_connection, nested=nested)
    state = await shop.approved()
    [new] = (await Runner.run(Shop().agent, "q")).interruptions
    with pytest.raises(UserError):
        await Runner.run(shop.agent, state)
    state = (await Runner.run(shop.agent, state)).to_state()
    text = state.to_string()
    [item] = state.get_interruptions()
    with pytest.raises(UncertainCall, match="call_again"):
        state.approve(item)
    assert (await Runner.run(shop.agent, state)).interruptions
    assert shop.paid == [5]
    state.mark_done(item, "receipt 9")
    result = await Runner.run(shop.agent, state)
    assert result.final_output == ("all done" if nested else "done")
    assert shop.paid == [5]
    assert shop.model.calls[-1].input[-1]["output"] == "receipt 9"
    shop.model.extend([[assistant_message("done")]])
    if nested:
        return
    state = await RunState.from_string(shop.agent, text)
    state.call_again(state.get_interruptions()[0])
    assert (await Runner.run(shop.agent, state)).final_output == "done"
    assert shop.paid == [5, 5]
    fresh = (await Runner.run(Shop().agent, "q")).to_state()
    with pytest.raises(InvalidDecision):
        fresh.call_again(fresh.get_interruptions()[0])
    assert not new.uncertain


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_the_output_of_a_rejected_uncertain_call_does_not_deny_that_it_was_made(nested: bool) -> None:
    shop = Shop(lose_connection, nested=nested)
    state = await shop.approved()
    with pytest.raises(UserError):
        await Runner.run(shop.agent, state)
    state = (await Runner.run(shop.agent, state)).to_state()
    state.reject(state.get_interruptions()[0])
    await Runner.run(shop.agent, state)
    assert "not known whether the call had an effect" in shop.model.calls[-1].input[-1]["output"]
    assert shop.paid == [5]


# --- agents that are built anew -------------------------------------------------------------------


def make_agent(instructions: str = "Pay.", *, amount: str = "amount") -> tuple[Agent[Any], list[int]]:
    paid: list[int] = []

    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    async def pay_total(total: int) -> str:
        return "paid"

    function = pay if amount == "amount" else pay_total
    tool = function_tool(function, needs_approval=True, name_override="pay")
    steps = [[function_call("pay", {"amount": 5}, call_id="c1")], [assistant_message("done")]]
    helper = Agent("helper", instructions=instructions, tools=[tool], model=ScriptedModel(steps))
    front = Agent(
        "front",
        handoffs=[helper],
        model=ScriptedModel([[function_call("transfer_to_helper", {}, call_id="h")]]),
    )
    return front, paid


async def test_a_run_is_resumed_with_an_agent_that_was_built_anew() -> None:
    first, _ = make_agent()
    text = (await Runner.run(first, "q")).to_state().to_string()
    loaded_with, unused = make_agent()
    state = await RunState.from_string(loaded_with, text)
    state.approve(state.get_interruptions()[0])
    again, paid = make_agent()
    again.handoffs[0].model = ScriptedModel([[assistant_message("done")]])  # type: ignore[union-attr]
    result = await Runner.run(again, state)
    assert (result.final_output, paid, unused) == ("done", [5], [])
    assert result.last_agent is again.handoffs[0]


async def test_a_paused_run_is_resumed_with_an_agent_that_was_built_anew() -> None:
    state = (await Runner.run(make_agent()[0], "q")).to_state()
    state.approve(state.get_interruptions()[0])
    again, paid = make_agent()
    again.handoffs[0].model = ScriptedModel([[assistant_message("done")]])  # type: ignore[union-attr]
    assert (await Runner.run(again, state)).final_output == "done"
    assert paid == [5]


async def test_another_agent_is_refused() -> None:
    state = (await Runner.run(make_agent()[0], "q")).to_state()
    with pytest.raises(AgentChanged, match="instructions"):
        await Runner.run(make_agent("Never pay.")[0], state)
    with pytest.raises(AgentChanged, match="tools"):
        await Runner.run(make_agent(amount="total")[0], state)
    with pytest.raises((AgentChanged, AgentMissing)):
        await Runner.run(Agent("front"), state)
