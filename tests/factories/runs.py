"""Scenarios of runs, and three modes to run them: at once, streamed, and saved and loaded after every step."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from standfast import Agent, Runner, RunState, SQLiteSession
from standfast.runs.core.transitions import choose_next_step
from standfast.runs.driver import drive, execute_step, finish_step
from standfast.runs.result import RunResult
from standfast.runs.runner import prepare_run
from standfast.testing import ScriptedModel


class MinimalSession:
    """A third-party session: the four methods of the protocol and nothing more."""

    def __init__(self, session_id: str = "theirs", items: Any = ()) -> None:
        self.session_id, self.session_settings, self.items = session_id, None, [dict(item) for item in items]
        self.batches: list[list[dict[str, Any]]] = []

    async def get_items(self, limit: int | None = None) -> list[dict[str, Any]]:
        items = self.items if limit is None else self.items[len(self.items) - min(limit, len(self.items)) :]
        return [dict(item) for item in items]

    async def add_items(self, items: list[dict[str, Any]]) -> None:
        self.batches.append([dict(item) for item in items])
        self.items += [dict(item) for item in items]

    async def pop_item(self) -> dict[str, Any] | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


@dataclass
class Scenario:
    """Agents and a script for their models; ``decide`` decides about the calls that need approval."""

    agent: Agent[Any]
    model: ScriptedModel
    input: Any = "hello"
    decide: Callable[[Any], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """The result of a run in plain values, to compare modes."""

    final: Any
    items: list[Any]
    agent: str
    session: list[Any]
    asked: list[Any]
    requests: int
    interruptions: int


def list_produced(result: Any) -> list[Any]:
    """Return the items of a result that are part of the conversation."""
    return [item for item in result.new_items if item.type != "tool_approval_item"]


def seen(scenario: Scenario, result: Any, stored: list[Any], interruptions: int) -> Seen:
    return Seen(
        result.final_output,
        [(item.type, item.to_input_item(), getattr(item, "output", None)) for item in list_produced(result)],
        result.last_agent.name,
        stored,
        [(call.system_instructions, call.input, call.model_settings.tool_choice) for call in scenario.model.calls],
        result.context_wrapper.usage.requests,
        interruptions,
    )


async def at_once(scenario: Scenario, session: Any) -> Seen:
    result = await Runner.run(scenario.agent, scenario.input, session=session, **scenario.options)
    asked = 0
    while result.interruptions:
        asked += len(result.interruptions)
        state = result.to_state()
        scenario.decide(state)
        result = await Runner.run(scenario.agent, state, session=session, **resuming(scenario))
    return seen(scenario, result, await session.get_items() if session else [], asked)


async def streamed(scenario: Scenario, session: Any) -> Seen:
    result = Runner.run_streamed(scenario.agent, scenario.input, session=session, **scenario.options)
    events = [event async for event in result.stream_events()]
    asked = 0
    while result.interruptions:
        asked += len(result.interruptions)
        state = result.to_state()
        scenario.decide(state)
        result = Runner.run_streamed(scenario.agent, state, session=session, **resuming(scenario))
        events += [event async for event in result.stream_events()]
    items = [event.item for event in events if event.type == "run_item_stream_event"]
    shown = [(item.type, item.to_input_item()) for item in list_produced(result)]
    announced = [(item.type, item.to_input_item()) for item in items]  # a handoff filter may remove what was announced
    assert [one for one in announced if one in shown] == shown
    return seen(scenario, result, await session.get_items() if session else [], asked)


async def step_by_step(scenario: Scenario, session: Any) -> Seen:
    run = prepare_run(scenario.agent, scenario.input, session=session, **scenario.options)
    asked, crashed = 0, False
    for _ in range(200):
        await drive(run, max_steps=1)
        if crashed and any(call.status == "started" for call in run.state.calls):
            # Once is enough to have crashed with calls under way: they are made now.
            outcome = await execute_step(run, choose_next_step(run.state))
            await finish_step(run, outcome)
        crashed = any(call.status == "started" for call in run.state.calls) or (
            # Until they are made, also while a person is asked what became of them.
            crashed and any(call.status in ("approved", "asked", "unknown", "waiting") for call in run.state.calls)
        )
        text = RunState.from_run(run).to_string()
        state = await RunState.from_string(scenario.agent, text)
        assert state.to_string() == text
        waiting = state.get_interruptions()
        if state.data.ended:
            break
        if waiting:
            asked += len(waiting)
            scenario.decide(state)
        run = prepare_run(scenario.agent, state, session=session, **resuming(scenario))
    else:
        raise AssertionError(f"the run does not come to its end: {choose_next_step(run.state)}")
    loaded = prepare_run(scenario.agent, state, session=session, **resuming(scenario))
    return seen(scenario, RunResult.from_run(loaded), await session.get_items() if session else [], asked)


def resuming(scenario: Scenario) -> dict[str, Any]:
    own = ("conversation_id", "previous_response_id", "auto_previous_response_id", "max_turns", "context")
    return {name: value for name, value in scenario.options.items() if name not in own}


RUN_MODES = {"at once": at_once, "streamed": streamed, "step by step": step_by_step}

SESSIONS: dict[str, Callable[[], Any]] = {
    "no session": lambda: None,
    "sqlite": lambda: SQLiteSession("s"),
    "third-party": MinimalSession,
}


async def run_agent(mode: str, agent: Agent[Any], input: Any, **options: Any) -> Any:
    """Run to the end, at once or streamed, and return the result."""
    if mode == "run":
        return await Runner.run(agent, input, **options)
    result = Runner.run_streamed(agent, input, **options)
    async for _ in result.stream_events():
        pass
    return result


def approve_all(state: Any) -> None:
    """Let every waiting call be made, also those that may have happened."""
    for item in state.get_interruptions():
        (state.call_again if item.uncertain else state.approve)(item)


async def let_tasks_run() -> None:
    """Give every ready task a chance to run."""
    for _ in range(20):
        await asyncio.sleep(0)
