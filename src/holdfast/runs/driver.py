"""The one loop behind running, streaming, resuming and nested agents."""

import asyncio

from holdfast.agents.approvals import Approvals
from holdfast.base.logs import log
from holdfast.runs.apply import apply
from holdfast.runs.call_steps import judge_calls, make_calls, tell
from holdfast.runs.decide import decide
from holdfast.runs.error_handling import attach
from holdfast.runs.events import AgentUpdatedStreamEvent
from holdfast.runs.finishing import finish, give_up, weigh
from holdfast.runs.handing_over import hand_over
from holdfast.runs.live import Live
from holdfast.runs.model_step import ask_model
from holdfast.runs.persistence import keep, load_history, take_input
from holdfast.runs.run_spans import spans_of
from holdfast.runs.state import State
from holdfast.runs.steps import (
    AskModel,
    Finish,
    GiveUp,
    HandOver,
    Invoke,
    Judge,
    Outcome,
    Resumed,
    Start,
    Started,
    Step,
    TakeInput,
)


async def drive(run: Live, *, steps: int | None = None) -> None:
    """Advance a run until it ends, waits for a person, or fails; ``steps`` ends it earlier.

    Whatever leaves this carries the run's state, with everything that was done up to then.
    """
    try:
        with spans_of(run) as spans:
            await _resume(run)
            while (step := decide(run.state)) is not None:
                # Calls that are written down as started are made: whoever goes on would have to ask about them.
                halting = run.halting and not isinstance(step, Invoke)
                if steps == 0 or halting or (run.stopping and isinstance(step, AskModel | GiveUp)):
                    break
                spans.follow(step)
                await advance(run, await perform(run, step))
                steps = None if steps is None else steps - 1
            if run.keeper is None and run.session is not None:
                await load_history(run)  # whoever sees the result sees the whole conversation
    except BaseException as error:
        attach(run, error)
        raise


async def perform(run: Live, step: Step) -> Outcome:
    """Do what a step says. This is where everything happens that is more than thinking."""
    log.debug("%s turn %s: %s", run.state.run_id, run.state.turn, type(step).__name__)
    match step:
        case AskModel():
            return await ask_model(run)
        case Judge(calls):
            return await judge_calls(run, calls)
        case Start(calls):
            return Started(tuple(call.id for call in calls))
        case Invoke(calls):
            return await make_calls(run, calls)
        case TakeInput():
            return await take_input(run)
        case HandOver(calls):
            return await hand_over(run, calls)
        case Finish():
            return await finish(run)
        case GiveUp():
            return await give_up(run)
    return await weigh(run)


async def _resume(run: Live) -> None:
    if run.emit is not None:
        await run.emit(AgentUpdatedStreamEvent(run.current_agent))
    if run.state.taken:
        run.resumed = True
        await keep(run, Resumed(decided(run.state, run.context.approvals)))


def decided(state: State, approvals: Approvals) -> frozenset[str]:
    """The waiting calls about which a person has decided by now, and those whose nested run can go on."""
    found = set()
    for call in state.calls:
        if call.status != "waiting":
            continue
        if call.child is not None:
            child = apply(call.child, Resumed(decided(call.child, Approvals(list(call.child.approvals)))))
            known = decide(child) is not None
        else:
            known = not call.uncertain and approvals.find(call.tool, call.id, owner=state.agent) is not None
        if known:
            found.add(call.id)
    return frozenset(found)


async def advance(run: Live, outcome: Outcome) -> None:
    """Take an outcome in, store what is settled, tell who listens; only then let an error out."""
    before, agent = len(run.state.transcript), run.state.agent
    error: BaseException | None = getattr(outcome, "error", None)
    try:
        await keep(run, outcome)
        if run.emit is not None and not isinstance(error, asyncio.CancelledError):
            await tell(run, before)
            if run.state.agent != agent:
                await run.emit(AgentUpdatedStreamEvent(run.current_agent))
    finally:
        if error is not None:
            raise error
