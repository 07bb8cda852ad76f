"""Execute one run in this process, under its leases, until it ends or waits, if it fits the current code."""

import asyncio
import dataclasses
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.base.errors import (
    ApprovalMoved,
    HistoryMoved,
    RunMoved,
    StandfastError,
    StoreUnavailable,
    WorkspaceMoved,
)
from standfast.base.log import get_logger
from standfast.base.text import describe_error, get_error_code
from standfast.base.time import Backoff
from standfast.base.usage import Usage
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.context import restore_context
from standfast.runs.core.conversion import to_usage_record
from standfast.runs.core.state import FinalOutput
from standfast.runs.core.steps import AskModel
from standfast.runs.core.transitions import choose_next_step, is_waiting
from standfast.runs.driver import drive
from standfast.runs.sandbox import has_sandbox_agent, use_sandbox
from standfast.runtime._engine.approvals import build_withdrawal_ops, load_standing_decisions
from standfast.runtime._engine.budget_book import BudgetUsedUp
from standfast.runtime._engine.claims import ClaimedRun
from standfast.runtime._engine.compatibility import (
    find_missing_agent,
    find_orphaned_calls,
    make_tool_missing_problem,
    reject_call,
)
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.crash_loop import make_crash_loop_problem
from standfast.runtime._engine.journal import ReplayedRun, SnapshotWriter, replay, replay_outcome
from standfast.runtime._engine.journal_writer import (
    ContextTracker,
    JournalWriter,
    RunTakenOver,
)
from standfast.runtime._engine.leases import TAKEOVER_LOG
from standfast.runtime._engine.records import (
    ENDED_STATUSES,
    JournalEntry,
    LeaseLossReported,
    RunHeader,
    RunStopped,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.session_compaction import compact_session
from standfast.runtime._engine.session_marks import build_rewind_ops
from standfast.runtime.types import CancelMode, RunProblem
from standfast.store.operations import AppendJournal, SaveRun

SUSPENDED = RunProblem(
    "suspended", "the runtime that executed this run was closed; any runtime that has its agent will continue the run"
)

FAILURE_LOG = get_logger("standfast.failures")
"""Logs errors of the program's own code with their tracebacks; the run itself stores only the message."""

_log = get_logger(__name__)


class RunExecutor:
    """A run that this process owns. It always ends, waits, or is taken over by another runtime."""

    def __init__(self, ctx: RuntimeContext, claimed: ClaimedRun) -> None:
        self.ctx, self.record, self.leases = ctx, claimed.record, claimed.leases
        self._replayed, self._is_first_of_session = claimed.replayed, claimed.is_first_of_session
        self.header: RunHeader = decode_header(claimed.record)
        self._marks, self._written = count(1), claimed.written
        self.active_run: ActiveRun | None = None
        self._replayed_usage: Usage | None = None
        self.writer = self._make_writer()
        self.task: asyncio.Task[None] | None = None
        self.cancel_mode: CancelMode | None = self.header.cancel
        self.suspending = self._stopping = self._compacting = False

    async def run(self) -> None:
        """Execute the run until it ends or waits. Errors of the run are recorded, not raised."""
        self.task = asyncio.current_task()
        self.leases.on_lost = self._cancel_task
        self.ctx.lease_renewer.held.add(self.leases)
        backoff = Backoff()
        try:
            while not await self._drive_once() and not self.ctx.closing:  # noqa: ASYNC110 - retries with back-off
                await asyncio.sleep(backoff.next_delay())
        except RunTakenOver:
            self._written.forget()
            TAKEOVER_LOG.warning(
                "run %s of agent %r: its lease expired, and another runtime executes it now",
                self.record.run_id,
                self.header.agent,
            )
            await self._report_lease_loss()
            self.ctx.subscriptions.publish_live(
                self.record.run_id, "run.taken_over", {"reason": "another runtime owns it now"}
            )
        finally:
            self.ctx.lease_renewer.held.discard(self.leases)
            self.ctx.subscriptions.end_driving(self.record.run_id)

    async def _report_lease_loss(self) -> None:
        """Record that this process is alive although it lost the run, so that this does not count as a crash."""
        run_id, backend = self.record.run_id, self.ctx.backend
        note = encode_entry(JournalEntry(LeaseLossReported(self.ctx.runtime_id)))
        try:
            record = await backend.get_run(run_id)
            if record is not None and record.status not in ENDED_STATUSES:
                await backend.commit(AppendJournal(run_id=run_id, entries=(note,)))
        except StandfastError as problem:
            _log.warning("run %s: the loss of its lease could not be recorded: %s", self.record.run_id, problem)

    async def _drive_once(self) -> bool:
        """Execute the run once; return False when it has to be loaded again and continued."""
        self._stopping = False
        try:
            return await self._drive_to_end()
        except StoreUnavailable as problem:
            _log.warning("run %s: %s", self.record.run_id, problem)
            return False

    async def _drive_to_end(self) -> bool:
        try:
            return await self._load_and_drive()
        except (RunTakenOver, StoreUnavailable):
            raise
        except asyncio.CancelledError as error:
            if self.leases.lost:
                raise RunTakenOver from None
            if self.cancel_mode is not None:
                return await self._stop("cancelled")
            if not self.suspending and not is_being_cancelled():  # a model or hook raised it
                return await self._stop("failed", problem=make_problem(error))
            return await self._stop("woken", problem=SUSPENDED)
        except BudgetUsedUp as used_up:
            return await self._stop("blocked", problem=used_up.problem)
        except Exception as error:  # noqa: BLE001 - it becomes the problem of the run
            if self.leases.lost:
                raise RunTakenOver from None
            ended = await self._stop("failed", problem=make_problem(error))
            # Only a traceback shows where such an error was raised. It is logged when the failure is recorded: until
            # then the run may be continued, and fail again.
            if ended and (not isinstance(error, StandfastError) or error.__cause__ is not None):
                FAILURE_LOG.error("run %s of agent %r failed", self.record.run_id, self.header.agent, exc_info=error)
            return ended

    async def _load_and_drive(self) -> bool:
        graph = self.ctx.graphs.get(self.header.agent)
        self.writer, self.active_run = self._make_writer(), None
        known, self._replayed = self._replayed, None
        replayed = known or await replay(self.ctx.backend, self.record)
        self._replayed_usage = replayed.usage
        self.ctx.subscriptions.note_loaded(self.record.run_id, replayed.length)
        self.writer.snapshot_writer = SnapshotWriter(self.ctx.backend, self.record, replayed)
        self.writer.pending_approvals, self.writer.trace = replayed.pending_approvals, replayed.state.trace
        if self.cancel_mode == "immediate":
            return await self._stop("cancelled")
        if graph is None:
            return await self._stop("blocked", problem=make_unknown_agent_problem(self.header.agent))
        if replayed.crashes.limit_reached:
            if self.cancel_mode is not None:
                return await self._stop("cancelled")
            return await self._stop("blocked", problem=make_crash_loop_problem(replayed.state, graph, replayed.crashes))
        run = self.active_run = await self._make_active_run(replayed, graph)
        run.recorder = self.writer
        async with use_sandbox(run):
            problem = await self._check_compatibility(run)
            if problem is None:
                await self._drive(run, replayed)
        if problem is not None:
            return await self._stop("blocked", problem=problem)
        if run.state.ended:
            return await self._stop("completed")
        if is_waiting(run.state) and self.cancel_mode is None:
            return await self._stop("waiting")
        if self.cancel_mode is not None and not run.stop_after_step:
            return await self._stop("cancelled")
        return await self._stop("woken", problem=SUSPENDED)

    async def _drive(self, run: ActiveRun, replayed: ReplayedRun) -> None:
        self.writer.context_tracker = ContextTracker(self.record.run_id, run.context.context, saved=replayed.context)
        run.stop_after_turn, run.stop_after_step = self.cancel_mode is not None, self.suspending
        if self.ctx.must_stream(self.record.run_id):
            run.emit = partial(self.ctx.subscriptions.publish_model_event, self.record.run_id)
        if not run.state.input_taken and not replayed.compacted:
            await self._compact_session()
        await drive(run)

    async def _compact_session(self) -> None:
        """Compact the history before the run reads it, if the policy requires that.

        If it is interrupted, the next owner of the run repeats it.
        """
        if self.ctx.compaction is None or self.writer.session is None or self.suspending:
            return
        self._compacting = True
        try:
            await compact_session(self.writer, self.writer.session, self.ctx.compaction)
        finally:
            self._compacting = False

    def _make_writer(self) -> JournalWriter:
        return JournalWriter(self.ctx, self.record, self.leases, marks=self._marks, written=self._written)

    async def _make_active_run(self, replayed: ReplayedRun, graph: Any) -> ActiveRun:
        state, session_id = replayed.state, self.record.session_id
        is_new, self._is_first_of_session = self._is_first_of_session, False
        standing = [] if is_new else await load_standing_decisions(self.ctx.backend, session_id)
        context: RunContextWrapper[Any] = RunContextWrapper(
            restore_context(replayed.context, deserializer=None, strict=True),
            usage=replayed.usage,
            approvals=Approvals([*standing, *state.approvals]),
            tool_input=state.tool_input,
        )
        session = None if session_id is None else self.ctx.open_session(session_id)
        config = self.ctx.config
        if config.sandbox is not None and not has_sandbox_agent(graph):
            config = dataclasses.replace(config, sandbox=None)
        run = ActiveRun(state, graph=graph, context=context, config=config, session=session)
        run.standing_decisions, run.is_session_new = tuple(standing), is_new
        return run

    async def _check_compatibility(self, run: ActiveRun) -> RunProblem | None:
        """Return why the run cannot continue with the current code; accepted changes reject the affected calls."""
        if (problem := find_missing_agent(run)) is not None:
            return problem
        orphaned = await find_orphaned_calls(run)
        if not orphaned:
            return None
        if not self.header.accept:
            return make_tool_missing_problem(orphaned)
        for route, call, _ in orphaned:
            outcome = reject_call(call)
            self.writer.add_outcome(outcome, route=route)
            run.state = replay_outcome(run.state, route, outcome)
        return None

    # --- end and pause ------------------------------------------------------------------------------

    async def _stop(self, status: str, *, problem: RunProblem | None = None) -> bool:
        """Write that the run has ended or paused, and release the leases; return False if it has to continue first."""
        writer, state = self.writer, self.active_run.state if self.active_run is not None else None
        answer = state.answer if state is not None and status == "completed" else None
        for work in writer.before_stop.values():
            await work()
        writer.before_stop = {}
        if status == "waiting" and self.active_run is not None:
            writer.request_approvals(self.active_run.state, self.active_run)
        writer.add_note(RunStopped(status, problem, answer))
        self._stopping, refused = True, False
        while True:
            try:
                ops = (
                    await build_withdrawal_ops(self.ctx.backend, self.record.run_id)
                    if status in ENDED_STATUSES and writer.pending_approvals
                    else []
                )
                if status == "cancelled" and self.header.rollback_requested:
                    writer.discard_items()
                    ops += await build_rewind_ops(self.ctx, self.record)
                # Approvals before the run, as in every commit: with another order two commits could deadlock.
                await writer.flush(*ops, self._build_save(status, problem, answer), release=True)
                writer.stopped = True
                return True
            except (ApprovalMoved, HistoryMoved, WorkspaceMoved):
                continue
            except StoreUnavailable:
                raise
            except RunMoved:
                await self.refresh()
                if status == "waiting" or (status == "blocked" and self.header.accept):
                    writer.drop_last_entry()
                    await writer.flush()
                    self._stopping = False
                    return False
            except StandfastError as refusal:
                # The store refuses the writes of the run, for example to a session that is encrypted.
                if refused:
                    raise
                refused = True
                writer.discard_all()
                status, problem, answer = "failed", make_problem(refusal), None
                writer.add_note(RunStopped(status, problem))

    def _build_save(self, status: str, problem: RunProblem | None, answer: FinalOutput | None) -> SaveRun:
        by = self.active_run.state.agent if self.active_run is not None and answer is not None else None
        header = replace(self.header, problem=problem, answer=answer, answered_by=by, accept=False)
        usage = self._replayed_usage if self.active_run is None else self.active_run.context.usage
        if usage is not None:
            header = replace(header, usage=replace(to_usage_record(usage), entries=()))
        if status != "woken":
            header = replace(
                header, cancel=None, rollback_requested=header.rollback_requested and status == "cancelled"
            )
        return SaveRun(
            run_id=self.record.run_id,
            expected=self.record.revision,
            status=status,
            data=encode(header),
            session_id=self.record.session_id,
        )

    async def refresh(self) -> None:
        """Read what other processes have written about the run: decisions and requests to cancel it."""
        self.record = await self.ctx.get_run(self.record.run_id)
        self.header = decode_header(self.record)
        if self.header.cancel is not None and self.header.cancel != self.cancel_mode:
            self.cancel(self.header.cancel)

    def cancel(self, mode: CancelMode) -> None:
        """Stop the run: at the end of its turn, or now."""
        self.cancel_mode = mode
        if self.active_run is not None:
            self.active_run.stop_after_turn = True
        if mode == "immediate":
            self._cancel_task()

    def suspend(self) -> None:
        """Release the run after its current step. A model call is cancelled at once: it can be repeated elsewhere."""
        self.suspending = True
        if self.active_run is None:
            return
        self.active_run.stop_after_step = True
        if self._compacting or isinstance(choose_next_step(self.active_run.state), AskModel):
            self._cancel_task()

    def _cancel_task(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task() and not self._stopping:
            self.task.cancel()


def is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def make_problem(error: BaseException) -> RunProblem:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return RunProblem(get_error_code(error), describe_error(error), kind)


def make_unknown_agent_problem(name: str) -> RunProblem:
    return RunProblem(
        "agent-unknown",
        f"no open runtime has an agent named {name!r}. Open a runtime with that agent, resume the run with agent="
        "<its new name>, or cancel the run",
    )
