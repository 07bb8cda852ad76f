"""A run that waited goes on in its session, whatever became of the history meanwhile."""

from typing import Any

import pytest
from ways import FourMethods, approve_all

from holdfast import (
    Agent,
    CompactingSession,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
)
from holdfast.handoff_filters import remove_all_tools
from holdfast.history import Trigger
from holdfast.testing import ScriptedModel, assert_replayable, assistant_message, function_call

HISTORY = [{"role": "user" if number % 2 == 0 else "assistant", "content": f"old {number}"} for number in range(20)]


def payments() -> tuple[Any, list[int]]:
    made: list[int] = []

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        made.append(amount)
        return f"paid {amount}"

    return pay, made


def compacting(session: Any, *, more_than: int, keep_last: int) -> CompactingSession:
    return CompactingSession(
        session, summarise=lambda items: f"{len(items)} items", trigger=Trigger(items=more_than), keep_last=keep_last
    )


def shown(items: Any) -> list[str]:
    """What was said, and the calls by their names and ids."""
    found = []
    for item in items:
        content = item.get("content")
        if content is None:
            found.append(f"{item['type'].removeprefix('function_')} {item['call_id']}")
        else:
            found.append(content if isinstance(content, str) else content[0]["text"])
    return [text.split("\n")[-1] for text in found]


async def loaded(agent: Agent[Any], result: Any) -> RunState[Any, Any]:
    """The run as another process finds it, with every question answered."""
    state = await RunState.from_string(agent, result.to_state().to_string())
    approve_all(state)
    return state


async def test_a_run_without_its_session_is_refused_before_its_tools_are_called() -> None:
    pay, made = payments()
    agent = Agent("a", tools=[pay], model=ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]]))
    state = (await Runner.run(agent, "q", session=FourMethods("mine"))).to_state()
    approve_all(state)
    with pytest.raises(UserError, match="mine"):
        await Runner.run(agent, state)
    assert made == []


async def test_the_result_of_a_run_that_ended_can_be_seen_without_its_session() -> None:
    agent = Agent("a", model=ScriptedModel([[assistant_message("ok")]]))
    result = await Runner.run(agent, "q", session=FourMethods())
    assert (await Runner.run(agent, await loaded(agent, result))).final_output == "ok"


async def test_a_run_whose_callback_chose_from_the_history_goes_on_behind_its_summary() -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent = Agent("a", tools=[pay], model=model)
    session = compacting(SQLiteSession("s"), more_than=22, keep_last=4)
    await session.add_items(HISTORY)
    config = RunConfig(session_input_callback=lambda history, new: history[-2:] + new)
    result = await Runner.run(agent, "q", session=session, run_config=config)
    await session.compact(force=True)
    state = await loaded(agent, result)
    assert (await Runner.run(agent, state, session=session, run_config=config)).final_output == "ok"
    assert shown(model.calls[0].input) == ["old 18", "old 19", "q"]
    assert shown(model.calls[1].input) == ["18 items", "old 18", "old 19", "q", "call 1", "call_output 1"]


@pytest.mark.parametrize("keep_last", [8, 1])
async def test_a_run_that_was_handed_over_with_a_filter_goes_on_behind_a_summary(keep_last: int) -> None:
    pay, _ = payments()
    paying, leaving = function_call("pay", {"amount": 1}, call_id="2"), function_call("transfer_to_c", {}, call_id="3")
    model = ScriptedModel(
        [[function_call("transfer_to_b", {}, call_id="1")], [paying, leaving], [assistant_message("ok")]]
    )
    c = Agent("c", model=model)
    b = Agent("b", tools=[pay], handoffs=[handoff(c, input_filter=lambda data: data)], model=model)
    agent = Agent("a", handoffs=[handoff(b, input_filter=remove_all_tools)], model=model)
    session = compacting(SQLiteSession("s"), more_than=22, keep_last=keep_last)
    await session.history.add_items(HISTORY)
    result = await Runner.run(agent, "q", session=session)
    assert shown(await session.get_items())[0].endswith("items")
    result = await Runner.run(agent, await loaded(agent, result), session=session)
    assert (result.final_output, result.last_agent) == ("ok", c)
    asked = model.calls[-1].input
    assert_replayable(asked)
    assert len(set(shown(asked))) == len(asked)
    assert shown(asked)[-4:] == ["call 2", "call 3", "call_output 2", "call_output 3"]


@pytest.mark.parametrize("instead", [[], HISTORY[:2]], ids=["nothing", "another conversation"])
async def test_a_run_whose_history_was_cleared_goes_on_with_whole_pairs(instead: list[Any]) -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent = Agent("a", tools=[pay], model=model)
    session = FourMethods(items=HISTORY[2:4])
    result = await Runner.run(agent, "q", session=session)
    session.items[:] = instead
    assert (await Runner.run(agent, await loaded(agent, result), session=session)).final_output == "ok"
    own = ["call 1", "call_output 1"] if instead else ["q", "call 1", "call_output 1"]
    assert shown(model.calls[-1].input) == [*shown(instead), *own]


@pytest.mark.parametrize("mode", ["preserve_all", "normalized"])
async def test_a_result_has_the_whole_conversation_also_when_no_model_was_asked_again(mode: Any) -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]])
    agent = Agent("a", tools=[pay], model=model, tool_use_behavior="stop_on_first_tool")
    session = FourMethods(items=HISTORY[:2])
    config = RunConfig(session_input_callback=lambda history, new: history + new)
    result = await Runner.run(agent, "q", session=session, run_config=config)
    result = await Runner.run(agent, await loaded(agent, result), session=session, run_config=config)
    assert result.final_output == "paid 1"
    assert shown(result.to_input_list(mode=mode)) == ["old 0", "old 1", "q", "call 1", "call_output 1"]
