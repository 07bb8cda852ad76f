"""The run loop: it serves plain, streamed, resumed and nested runs."""

import asyncio

from standfast.agents.approvals import Approvals
from standfast.base.log import log
from standfast.runs._loop.final_step import check_tool_output, finish_run, handle_max_turns
from standfast.runs._loop.handoff_step import perform_handoff
from standfast.runs._loop.model_step import ask_model
from standfast.runs._loop.tool_step import check_approvals, emit_items, invoke_calls
from standfast.runs._loop.tracing import make_run_spans
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import State
from standfast.runs.core.steps import (
    AskModel,
    CallsStarted,
    CheckApprovals,
    Finish,
    InvokeCalls,
    Outcome,
    PerformHandoff,
    Resumed,
    StartCalls,
    Step,
    StopAtMaxTurns,
    TakeInput,
)
from standfast.runs.core.transitions import apply_outcome, choose_next_step
from standfast.runs.error_handlers import attach_run_data
from standfast.runs.session_io import load_history, record_outcome, take_input
from standfast.runs.stream_events import AgentUpdatedStreamEvent


async def drive(run: ActiveRun, *, steps: int | None = None) -> None:
    """Advance a run until it ends, waits for an approval or fails, or for at most ``steps`` steps.

    Every exception raised here carries the run's state, with everything that was done before it.
    """
    try:
        with make_run_spans(run) as spans:
            await _resume(run)
            while (step := choose_next_step(run.state)) is not None:
                # Calls that are recorded as started are still made: for the process that resumes the run they would be
                # uncertain, and a person would have to decide about each.
                halting = run.stop_after_step and not isinstance(step, InvokeCalls)
                if steps == 0 or halting or (run.stop_after_turn and isinstance(step, AskModel | StopAtMaxTurns)):
                    break
                spans.enter_step(step)
                await commit_outcome(run, await execute_step(run, step))
                steps = None if steps is None else steps - 1
            if run.recorder is None and run.session is not None:
                await load_history(run)  # the result shows the whole conversation
    except BaseException as error:
        attach_run_data(run, error)
        raise


async def execute_step(run: ActiveRun, step: Step) -> Outcome:
    """Execute a step and return its outcome. All side effects of a run happen in here."""
    log.debug("%s turn %s: %s", run.state.run_id, run.state.turn, type(step).__name__)
    match step:
        case AskModel():
            return await ask_model(run)
        case CheckApprovals(calls):
            return await check_approvals(run, calls)
        case StartCalls(calls):
            return CallsStarted(tuple(call.id for call in calls))
        case InvokeCalls(calls):
            return await invoke_calls(run, calls)
        case TakeInput():
            return await take_input(run)
        case PerformHandoff(calls):
            return await perform_handoff(run, calls)
        case Finish():
            return await finish_run(run)
        case StopAtMaxTurns():
            return await handle_max_turns(run)
    return await check_tool_output(run)


async def _resume(run: ActiveRun) -> None:
    if run.emit is not None:
        await run.emit(AgentUpdatedStreamEvent(run.current_agent))
    if run.state.taken:
        run.resumed = True
        await record_outcome(run, Resumed(find_decided_calls(run.state, run.context.approvals)))


def find_decided_calls(state: State, approvals: Approvals) -> frozenset[str]:
    """Return the ids of the waiting calls that have been decided since, or whose nested run can continue."""
    decided = set()
    for call in state.calls:
        if call.status != "waiting":
            continue
        if call.child is not None:
            child = apply_outcome(
                call.child, Resumed(find_decided_calls(call.child, Approvals(list(call.child.approvals))))
            )
            runnable = choose_next_step(child) is not None
        else:
            runnable = not call.uncertain and approvals.find(call.tool, call.id, owner=state.agent) is not None
        if runnable:
            decided.add(call.id)
    return frozenset(decided)


async def commit_outcome(run: ActiveRun, outcome: Outcome) -> None:
    """Record an outcome, store its items and emit its events; only then raise the error that it contains."""
    before, agent = len(run.state.transcript), run.state.agent
    error: BaseException | None = getattr(outcome, "error", None)
    try:
        await record_outcome(run, outcome)
        if run.emit is not None and not isinstance(error, asyncio.CancelledError):
            await emit_items(run, before)
            if run.state.agent != agent:
                await run.emit(AgentUpdatedStreamEvent(run.current_agent))
    finally:
        if error is not None:
            raise error
