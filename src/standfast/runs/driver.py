"""The run loop: it serves plain, streamed, resumed and nested runs."""

import asyncio

from standfast.agents.approvals import Approvals
from standfast.base.log import log
from standfast.history.session import use_run_context
from standfast.runs._loop.final_step import check_tool_output, finish_run, handle_max_turns
from standfast.runs._loop.handoff_step import perform_handoff
from standfast.runs._loop.model_step import ask_model
from standfast.runs._loop.tool_step import (
    check_approvals,
    emit_items,
    find_missing_calls,
    invoke_calls,
    reject_missing_calls,
)
from standfast.runs._loop.tracing import make_run_spans
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import DefaultProvider
from standfast.runs.core.state import State
from standfast.runs.core.steps import (
    AskModel,
    CallsStarted,
    CheckApprovals,
    CheckToolOutput,
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
from standfast.runs.items import AgentUpdatedStreamEvent
from standfast.runs.result import get_first_input
from standfast.runs.sandbox import use_sandbox
from standfast.runs.sandbox_memory import remember_run
from standfast.runs.session_io import as_items, load_history, record_outcome, take_input


async def drive(run: ActiveRun, *, max_steps: int | None = None) -> None:
    """Advance a run until it ends, waits for an approval or fails, or for at most ``max_steps`` steps.

    It also stops when ``run.stop_after_turn`` or ``run.stop_after_step`` is set.

    Every exception raised here carries the run's state, with everything that was done before it.
    """
    if run.origin is not None:
        run.origin.claim(run)
    provider = run.config.model_provider
    if isinstance(provider, DefaultProvider):
        provider.enter_run()
    try:
        if run.config.sandbox is None:
            await _drive_steps(run, max_steps)
            return
        async with use_sandbox(run), remember_run(run):
            await _drive_steps(run, max_steps)
    except BaseException as error:
        attach_run_data(run, error)
        raise
    finally:
        if isinstance(provider, DefaultProvider):
            await provider.leave_run()
        await run.release_tools()
        if run.origin is not None:
            run.origin.release(run)


async def _drive_steps(run: ActiveRun, max_steps: int | None) -> None:
    cancelled_before = run.stop_after_turn
    with make_run_spans(run) as spans, use_run_context(run.context):
        await _begin_drive(run)
        while (step := choose_next_step(run.state)) is not None:
            if run.catch_up is not None and not isinstance(step, InvokeCalls):
                await run.catch_up(run.state.turn > 0 and isinstance(step, AskModel | StopAtMaxTurns))
            # Calls that are recorded as started are still made: for the process that resumes the run they would be
            # uncertain, and a person would have to decide about each.
            halting = run.stop_after_step and not isinstance(step, InvokeCalls)
            ending = run.stop_after_turn and (cancelled_before or not _is_first_turn(run))
            if max_steps == 0 or halting or (ending and isinstance(step, AskModel | StopAtMaxTurns)):
                break
            spans.enter_step(step)
            await finish_step(run, await execute_step(run, step))
            max_steps = None if max_steps is None else max_steps - 1
        if run.recorder is None and run.session is not None:
            await load_history(run)  # the result shows the whole conversation


def _is_first_turn(run: ActiveRun) -> bool:
    """Return whether a program that cancels its run now means the first turn, which has been announced to it."""
    return not run.state.turn and run.recorder is None


async def execute_step(run: ActiveRun, step: Step) -> Outcome:
    """Execute a step and return its outcome.

    Models, tools, hooks and guardrails are called only from here; :func:`finish_step` stores the outcome.
    """
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
        case CheckToolOutput():
            return await check_tool_output(run)
        case TakeInput():
            return await take_input(run)
        case PerformHandoff(calls):
            return await perform_handoff(run, calls)
        case Finish():
            return await finish_run(run)
    return await handle_max_turns(run)


async def _begin_drive(run: ActiveRun) -> None:
    """Announce the current agent and, for a run that has started before, record that it was resumed."""
    if run.emit is not None:
        await run.emit(AgentUpdatedStreamEvent(run.current_agent))
    if run.state.input_taken:
        run.resumed, run.start_hooks_due = True, run.recorder is None
        run.note_approvals()
        if run.recorder is None:
            await run.load_toolboxes()
        run.context.turn_input = as_items(get_first_input(run))
        if run.recorder is None and (missing := await find_missing_calls(run)):
            await record_outcome(run, await reject_missing_calls(run, missing))
        await record_outcome(run, Resumed(find_runnable_calls(run.state, run.context.approvals)))


def find_runnable_calls(state: State, approvals: Approvals) -> frozenset[str]:
    """Return the ids of the waiting calls that a person has decided about, or whose nested run can continue."""
    runnable = set()
    for call in state.calls:
        if call.status != "waiting":
            continue
        if call.child is not None:
            child = apply_outcome(
                call.child, Resumed(find_runnable_calls(call.child, Approvals(list(call.child.approvals))))
            )
            can_continue = choose_next_step(child) is not None
        else:
            can_continue = not call.uncertain and approvals.find(call.tool, call.id, owner=state.agent) is not None
        if can_continue:
            runnable.add(call.id)
    return frozenset(runnable)


async def finish_step(run: ActiveRun, outcome: Outcome) -> None:
    """Record the outcome of a step, store its items and emit its events; only then raise the error that it contains."""
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
