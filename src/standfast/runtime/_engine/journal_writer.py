"""Write the journal of a run while it is executed: the items, entries and approvals of a step in one commit.

With some of these commits a snapshot is written, see :mod:`standfast.runtime._engine.journal`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from standfast.base.errors import FenceLost, HistoryMoved, StoreUnavailable, WorkspaceMoved
from standfast.base.items import Item, encode_items
from standfast.base.log import get_logger
from standfast.base.time import Backoff
from standfast.history.stored_session import StoredSession
from standfast.lifecycle.scope import run_to_end
from standfast.runs.active_run import ActiveRun
from standfast.runs.core import steps
from standfast.runs.core.context import SavedContext, save_context
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.core.state import CallRecord, State
from standfast.runs.core.steps import Outcome
from standfast.runs.core.transitions import apply_outcome, get_storable_length
from standfast.runs.session_io import is_tool_output_guarded, store_new_items, to_stored_item
from standfast.runtime._engine.approvals import make_approval, make_save_op, set_deadline
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.deferral import can_defer, is_empty
from standfast.runtime._engine.durable_calls import DurableCall
from standfast.runtime._engine.journal import (
    CallKey,
    SnapshotWriter,
    strip_children,
)
from standfast.runtime._engine.leases import RunLeases
from standfast.runtime._engine.records import (
    ApprovalRequested,
    JournalEntry,
    RunNote,
    decode_header,
    decode_row,
    encode,
    encode_entry,
)
from standfast.runtime._engine.written_entries import WrittenEntries
from standfast.store.operations import AppendJournal, AppendVersions, Op, OpResult, SaveCheckpoint
from standfast.store.records import RunRecord
from standfast.workspaces.versions import name_nested_workspace, name_sandbox_workspace

if TYPE_CHECKING:
    from standfast.sandbox.stored_workspace import StoredSandbox

MAX_CONTEXT_BYTES = 16 * 1024
"""Changes of a larger context are not recorded: writing it at every step would cost too much."""

_log = get_logger(__name__)


class ContextTracker:
    """Detects changes of the program's context since it was last recorded."""

    def __init__(self, run_id: str, context: Any, *, saved: SavedContext | None) -> None:
        self._run_id, self._context = run_id, context
        self._last_encoded = encode(saved)
        self._tracking = saved is not None and len(self._last_encoded) <= MAX_CONTEXT_BYTES

    def take_change(self) -> SavedContext | None:
        """Return the context if it has changed since the last call, else ``None``.

        Tracking stops, with a warning, once the context cannot be saved.
        """
        if not self._tracking:
            return None
        try:
            saved = save_context(self._context, serializer=None, strict=True)
            encoded = encode(saved)
            problem = f"it has more than {MAX_CONTEXT_BYTES} bytes" if len(encoded) > MAX_CONTEXT_BYTES else None
        except Exception as error:  # noqa: BLE001 - the codec is code of the program
            problem = str(error)
        if problem is not None:
            self._tracking = False
            _log.warning("run %s: changes of its context are no longer saved: %s", self._run_id, problem)
            return None
        if encoded == self._last_encoded:
            return None
        self._last_encoded = encoded
        return saved


class RunTakenOver(BaseException):
    """Another runtime has taken over the run. A BaseException, so that no tool can catch it and continue."""


class JournalWriter:
    """Records one run and its nested runs.

    A step without side effects, such as checking approvals, is written together with the next one that has some.
    """

    def __init__(
        self,
        ctx: RuntimeContext,
        record: RunRecord,
        leases: RunLeases,
        *,
        marks: Iterator[int],
        written: WrittenEntries,
    ) -> None:
        self.ctx, self.record, self.leases, self._written = ctx, record, leases, written
        self.pending_approvals: dict[CallKey, str] = {}
        self.trace: dict[str, Any] | None = None
        """The trace of the run as it is in the journal."""
        self.context_tracker: ContextTracker | None = None
        self.snapshot_writer: SnapshotWriter | None = None
        self.session: StoredSession | None = None if record.session_id is None else ctx.open_session(record.session_id)
        self.agent = decode_header(record).agent
        self.owner: str | None = None
        self._marks = marks
        self._journal_length = record.journal_length
        self._entries: list[JournalEntry] = []
        self._items: list[Item] = []
        self._ops: list[Op] = []
        self._lock = asyncio.Lock()
        self.before_stop: dict[str, Callable[[], Awaitable[None]]] = {}
        """Work that calls have registered for the time before the run ends or pauses, by workspace."""
        self.stopped = False

    async def before_request(self, run: ActiveRun) -> None:
        """Raise :class:`BudgetUsedUp` if a budget has nothing left; nested agents are not stopped within a call."""
        if not run.route:
            self.owner = await self.ctx.budgets.find_owner(self.record.session_id)
            await self.ctx.budgets.check(self.agent, self.owner)

    def open_call(self, run: ActiveRun, record: CallRecord) -> DurableCall:
        return DurableCall(self)

    def open_sandbox(self, run: ActiveRun) -> "StoredSandbox":
        """Return the workspace of the run's session, or of the run; a nested run with a sandbox has one of its own."""
        from standfast.sandbox.stored_workspace import StoredSandbox

        recorded, cipher = DurableCall(self), self.ctx.cipher
        key = name_sandbox_workspace(recorded.workspace_key)
        if run.route:
            key = name_nested_workspace(key, run.route)
        run_id = self.record.run_id
        return StoredSandbox(self.ctx.backend, key, recorded, run_id=run_id, is_encrypted=cipher is not None)

    async def record_outcome(self, run: ActiveRun, outcome: Outcome, call: DurableCall | None = None) -> None:
        self._apply(run, outcome)
        if call is not None:
            self._ops += call.ops
            for note in call.notes:
                self.add_note(note, route=run.route)
        if not can_defer(run, outcome):
            try:
                await self.flush(is_running_to_end=call is not None)
                committed = True
            except WorkspaceMoved as problem:
                if call is None or not call.ops:
                    raise
                _log.warning("run %s: %s; what a call left in it is not kept", self.record.run_id, problem)
                self._discard_workspace(call)
                await self.flush()
                committed = False
            if call is not None:
                call.committed = committed
        if run.route and run.session is not None:
            await self._store_nested_session(run, outcome)
        if not run.route:
            publish = partial(self.ctx.subscriptions.publish_model_event, self.record.run_id)
            run.emit = publish if self.ctx.must_stream(self.record.run_id) else None

    def _discard_workspace(self, call: DurableCall) -> None:
        """Drop the version that a call made: the workspace was changed or deleted elsewhere meanwhile."""
        self._ops = [op for op in self._ops if not isinstance(op, AppendVersions | SaveCheckpoint)]
        notes = set(map(id, call.notes))
        self._entries = [entry for entry in self._entries if id(entry.content) not in notes]

    def _apply(self, run: ActiveRun, outcome: Outcome) -> None:
        before = run.state
        run.state = apply_outcome(before, outcome)
        stored = self._queue_session_items(run, outcome) if not run.route and self.session is not None else None
        if stored is not None or not is_empty(outcome, changed=run.state is not before):
            changes = (stored, self._take_changed_trace(run), self._take_changed_context(outcome))
            self._entries.append(JournalEntry(strip_children(outcome), run.route, self._next_mark(), *changes))
        if isinstance(outcome, steps.ApprovalsChecked):
            self.request_approvals(run.state, run, run.route)
        elif isinstance(outcome, steps.ModelAnswered):
            usage = from_usage_record(outcome.response.usage)
            self._ops += self.ctx.budgets.build_charges(self.agent, self.owner, outcome.model, usage)

    def _queue_session_items(self, run: ActiveRun, outcome: Outcome) -> int | None:
        """Add the items that may be stored now to the next commit; return the new stored length."""
        state = run.state
        failing = getattr(outcome, "error", None) is not None
        until = get_storable_length(state, failing=failing, outputs_guarded=is_tool_output_guarded(run))
        if until <= state.stored:
            return None
        new = state.transcript[state.stored : until]
        self._items += [to_stored_item(run, entry.item) for entry in new if not entry.hidden]
        run.state = apply_outcome(state, steps.ItemsStored(until))
        return until

    def _take_changed_trace(self, run: ActiveRun) -> dict[str, Any] | None:
        """Return the run's trace if it is not in the journal yet: a runtime that resumes the run continues it."""
        if run.route or run.state.trace == self.trace:
            return None
        self.trace = run.state.trace
        return self.trace

    def _take_changed_context(self, outcome: Outcome) -> SavedContext | None:
        if self.context_tracker is None or not isinstance(
            outcome, steps.ModelAnswered | steps.CallsInvoked | steps.HandoffPerformed
        ):
            return None
        return self.context_tracker.take_change()

    async def _store_nested_session(self, run: ActiveRun, outcome: Outcome) -> None:
        """Store the items of a nested run with its own session, and record that afterwards."""
        before = run.state.stored
        await store_new_items(run, failing=getattr(outcome, "error", None) is not None)
        if run.state.stored != before:
            self._entries.append(JournalEntry(steps.ItemsStored(run.state.stored), run.route, self._next_mark()))

    def request_approvals(self, state: State, run: ActiveRun, route: tuple[str, ...] = ()) -> None:
        """Create an approval for every waiting call, nested ones included, that has none yet."""
        for call in state.calls:
            if call.status != "waiting":
                continue
            if call.child is not None:
                self.request_approvals(call.child, run, (*route, call.id))
            elif (route, call.id) not in self.pending_approvals:
                approval = make_approval(state, call, self.record, agent=run.get_agent(state.agent).name, route=route)
                approval = set_deadline(approval, now=self.ctx.clock(), ttl=self.ctx.approval_ttl)
                self.pending_approvals[route, call.id] = approval.id
                self._ops.append(make_save_op(approval, expected=0))
                self.add_note(ApprovalRequested(approval.id, call.id, call.tool, call.uncertain), route=route)

    async def record_note(self, note: RunNote, *ops: Op) -> bool:
        """Write a note together with operations; return False if another runtime has taken over the run.

        If the operations are refused, neither is written.
        """
        async with self._lock:
            if self.leases.lost:
                return False
            entry = JournalEntry(note, (), self._next_mark())
            self._entries.append(entry)
            try:
                await run_to_end(self._commit(ops, False), grace=None)
            except BaseException as problem:
                self._entries = [one for one in self._entries if one is not entry]
                if isinstance(problem, RunTakenOver):
                    return False
                raise
        return True

    def add_note(self, note: RunNote, *, route: tuple[str, ...] = ()) -> None:
        """Add a note to the next commit."""
        self._entries.append(JournalEntry(note, route, self._next_mark()))

    def drop_last_entry(self) -> None:
        """Remove the entry that was added last; it must not have been committed."""
        self._entries.pop()

    def add_outcome(self, outcome: Outcome, *, route: tuple[str, ...]) -> None:
        """Add an outcome that does not come from the driver to the next commit."""
        self._entries.append(JournalEntry(outcome, route, self._next_mark()))

    def _next_mark(self) -> tuple[int, int]:
        return self.leases.token, next(self._marks)

    async def flush(self, *extra: Op, release: bool = False, is_running_to_end: bool = False) -> None:
        """Commit everything that was added, together with ``extra``, in one transaction.

        After :class:`StoreUnavailable` it is unknown whether it was applied; after any other exception nothing was
        written. Cancelling the caller does not interrupt the commit, which needs a task of its own unless the caller
        already is work that runs to its end. Entries that are added meanwhile are left for the next commit.
        """
        async with self._lock:
            if self.leases.lost:
                raise RunTakenOver
            if self._entries or extra:
                self.leases.releasing = release
                try:
                    commit = self._commit(extra, release)
                    await (commit if is_running_to_end else run_to_end(commit, grace=None))
                except BaseException:
                    self.leases.releasing = False
                    raise

    async def _commit(self, extra: tuple[Op, ...], release: bool) -> None:
        entries, items, approvals = list(self._entries), list(self._items), list(self._ops)
        ops: list[Op] = [*approvals, *extra]
        rows = tuple(encode_entry(entry) for entry in entries)
        if rows:
            ops.append(AppendJournal(run_id=self.record.run_id, entries=rows))
            ops += await self.snapshot_writer.build_due_ops() if self.snapshot_writer is not None else ()
        if release:
            ops += self.leases.build_release_ops()
        while True:
            splice = await self._build_splice(items)
            try:
                all_ops = [*self.leases.build_fence_ops(), *splice, *ops]
                self._written.add(all_ops, await self._commit_with_retry(all_ops, entries))
                break
            except HistoryMoved:
                if not splice:  # an operation of the caller is out of date
                    raise
        self._journal_length += len(entries)
        if self.snapshot_writer is not None:
            self.snapshot_writer.add_written(data for _, data in rows)
        del self._entries[: len(entries)], self._items[: len(items)], self._ops[: len(approvals)]
        settled = any(isinstance(entry.content, steps.ModelAnswered) and not entry.route for entry in entries)
        upto = entries[-1].mark if entries else None
        self.ctx.subscriptions.notify_written(self.record.run_id, upto=upto, settled=settled)

    def discard_items(self) -> None:
        """Drop the pending items of the session, for a run that is rolled back."""
        self._items = []

    def discard_all(self) -> None:
        """Drop everything that is pending, after the store has refused it."""
        self._entries, self._items, self._ops, self.snapshot_writer = [], [], [], None

    async def _commit_with_retry(self, ops: list[Op], entries: list[JournalEntry]) -> list[OpResult] | None:
        """Commit, and return the results; ``None`` if the commit was applied without a response."""
        backoff = Backoff()
        while True:
            try:
                return await self.ctx.backend.commit(*ops)
            except FenceLost:
                self.leases.mark_lost()
                raise RunTakenOver from None
            except StoreUnavailable as problem:
                if self.ctx.closing:
                    raise
                _log.warning("run %s: the store is unavailable, retrying: %s", self.record.run_id, problem)
                await asyncio.sleep(backoff.next_delay())
                if await self._was_committed(entries):
                    return None

    async def _was_committed(self, entries: list[JournalEntry]) -> bool:
        """Return whether the journal has the last of these entries: then a commit without a response was applied."""
        if not entries:
            return False
        rows = await self.ctx.backend.read_journal(self.record.run_id, after=self._journal_length)
        return any(decode_row(row).mark == entries[-1].mark for row in rows)

    async def _build_splice(self, items: list[Item]) -> list[Op]:
        """Return the operation that appends the items; for an encrypted session it fits the current version only."""
        session = self.session
        if session is None or not items:
            return []
        record = await session.read_verified_record() if session.codec.location_bound else None
        return [session.build_append(record, encode_items(items), words=session.extract_words(items))]
