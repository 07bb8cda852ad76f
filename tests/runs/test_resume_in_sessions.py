"""A paused run is resumed in its session, although the history has changed meanwhile."""

import random
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from factories.runs import MinimalSession, approve_all
from standfast import (
    Agent,
    CompactingSession,
    MaxTurnsExceeded,
    RunConfig,
    Runner,
    RunState,
    SessionSettings,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
)
from standfast.agents.handoff_filters import remove_all_tools
from standfast.history import Trigger
from standfast.testing import ModelStep, ScriptedModel, assert_replayable, assistant_message, function_call

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
    state = (await Runner.run(agent, "q", session=MinimalSession("mine"))).to_state()
    approve_all(state)
    with pytest.raises(UserError, match="mine"):
        await Runner.run(agent, state)
    assert made == []


async def test_the_result_of_a_run_that_ended_can_be_seen_without_its_session() -> None:
    agent = Agent("a", model=ScriptedModel([[assistant_message("ok")]]))
    result = await Runner.run(agent, "q", session=MinimalSession())
    assert (await Runner.run(agent, await loaded(agent, result))).final_output == "ok"


async def test_a_run_whose_callback_chose_from_the_history_continues_behind_its_summary() -> None:
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
async def test_a_run_that_was_handed_over_with_a_filter_continues_behind_a_summary(keep_last: int) -> None:
    pay, _ = payments()
    paying, leaving = function_call("pay", {"amount": 1}, call_id="2"), function_call("transfer_to_c", {}, call_id="3")
    model = ScriptedModel(
        [[function_call("transfer_to_b", {}, call_id="1")], [paying, leaving], [assistant_message("ok")]]
    )
    c = Agent("c", model=model)
    b = Agent("b", tools=[pay], handoffs=[handoff(c, input_filter=lambda data: data)], model=model)
    agent = Agent("a", handoffs=[handoff(b, input_filter=remove_all_tools)], model=model)
    session = compacting(SQLiteSession("s"), more_than=22, keep_last=keep_last)
    await session.target_session.add_items(HISTORY)
    result = await Runner.run(agent, "q", session=session)
    assert shown(await session.get_items())[0].endswith("items")
    result = await Runner.run(agent, await loaded(agent, result), session=session)
    assert (result.final_output, result.last_agent) == ("ok", c)
    asked = model.calls[-1].input
    assert_replayable(asked)
    assert len(set(shown(asked))) == len(asked)
    assert shown(asked)[-4:] == ["call 2", "call 3", "call_output 2", "call_output 3"]


@pytest.mark.parametrize("instead", [[], HISTORY[:2]], ids=["nothing", "another conversation"])
async def test_a_run_whose_history_was_cleared_continues_with_whole_pairs(instead: list[Any]) -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent = Agent("a", tools=[pay], model=model)
    session = MinimalSession(items=HISTORY[2:4])
    result = await Runner.run(agent, "q", session=session)
    session.items[:] = instead
    assert (await Runner.run(agent, await loaded(agent, result), session=session)).final_output == "ok"
    own = ["call 1", "call_output 1"] if instead else ["q", "call 1", "call_output 1"]
    assert shown(model.calls[-1].input) == [*shown(instead), *own]


@pytest.mark.parametrize("mode", ["preserve_all", "normalized"])
async def test_a_result_has_the_whole_conversation_also_without_another_model_call(mode: Any) -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")]])
    agent = Agent("a", tools=[pay], model=model, tool_use_behavior="stop_on_first_tool")
    session = MinimalSession(items=HISTORY[:2])
    config = RunConfig(session_input_callback=lambda history, new: history + new)
    result = await Runner.run(agent, "q", session=session, run_config=config)
    result = await Runner.run(agent, await loaded(agent, result), session=session, run_config=config)
    assert result.final_output == "paid 1"
    assert shown(result.to_input_list(mode=mode)) == ["old 0", "old 1", "q", "call 1", "call_output 1"]


async def test_others_may_write_to_the_history_while_a_run_waits() -> None:
    pay, _ = payments()
    model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="1")], [assistant_message("ok")]])
    agent, session = Agent("a", tools=[pay], model=model), MinimalSession(items=HISTORY[:2])
    result = await Runner.run(agent, "q", session=session)
    await session.add_items(HISTORY[2:4])
    await Runner.run(agent, await loaded(agent, result), session=session)
    assert shown(model.calls[-1].input) == ["old 0", "old 1", "old 2", "old 3", "q", "call 1", "call_output 1"]


class Chances:
    """Two agents that hand over to each other through filters, and a session to which anything may happen."""

    def __init__(self, seed: int) -> None:
        self.chance, self.numbers = random.Random(seed), count()
        pay, self.made = payments()
        filters = [None, remove_all_tools, lambda data: data]
        model = ScriptedModel([ModelStep.respond(self.answer) for _ in range(300)])
        self.agent, other = Agent("a", tools=[pay], model=model), Agent("b", tools=[pay], model=model)
        self.agent.handoffs = [handoff(other, input_filter=self.chance.choice(filters))]
        other.handoffs = [handoff(self.agent, input_filter=self.chance.choice(filters))]
        more_than, keep_last = self.chance.randint(5, 15), self.chance.randint(0, 4)
        self.session = compacting(SQLiteSession("s"), more_than=more_than, keep_last=keep_last)
        callback = self.chance.choice([None, lambda history, new: history + new])
        limit = self.chance.choice([None, None, self.chance.randint(1, 6)])
        self.config = RunConfig(session_input_callback=callback, session_settings=SessionSettings(limit=limit))

    def answer(self, asked: Any) -> Any:
        assert asked.input
        assert_replayable(asked.input)
        named = [(item["type"], item["call_id"]) for item in asked.input if "call_id" in item]
        assert len(named) == len(set(named))
        if self.chance.random() < 0.25:
            return [assistant_message("ok")]
        numbers = [next(self.numbers) for _ in range(self.chance.randint(1, 3))]
        calls = [function_call("pay", {"amount": number}, call_id=str(number)) for number in numbers]
        way = "transfer_to_b" if asked.handoffs[0].agent_name == "b" else "transfer_to_a"
        leaves = self.chance.random() < 0.35
        return [*calls, function_call(way, {}, call_id=str(next(self.numbers)))] if leaves else calls

    async def meanwhile(self) -> None:
        happens = self.chance.random()
        if happens < 0.1:
            await self.session.clear_session()
        elif happens < 0.2:
            await self.session.compact(force=True)
        elif happens < 0.3:
            await self.session.target_session.add_items([{"role": "user", "content": f"aside {next(self.numbers)}"}])

    async def exchange(self) -> None:
        given: Any = f"question {next(self.numbers)}"
        while True:
            result = await Runner.run(self.agent, given, session=self.session, max_turns=12, run_config=self.config)
            if not result.interruptions:
                return
            given = await RunState.from_string(self.agent, result.to_state().to_string())
            for item in given.get_interruptions():
                if self.chance.random() < 0.8:
                    given.approve(item) if self.chance.random() < 0.7 else given.reject(item)
            await self.meanwhile()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 12))])
async def test_a_resumed_run_has_each_item_once_however_the_history_changed(seed: int) -> None:
    chances = Chances(seed)
    for _ in range(4):
        with suppress(MaxTurnsExceeded):
            await chances.exchange()
    assert len(chances.made) == len(set(chances.made))
