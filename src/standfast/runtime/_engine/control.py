"""Start, cancel, resume, fork and delete runs, from any process."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from standfast.base.errors import (
    ApprovalMoved,
    FenceLost,
    HistoryMoved,
    InvalidInput,
    NotFound,
    OutsideScope,
    RunMoved,
    RunShared,
    StoreUnavailable,
    WorkspaceMoved,
)
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import Item
from standfast.base.validation import is_integer, is_number
from standfast.runs.core.context import SavedContext, save_context
from standfast.runs.session_io import validate_input
from standfast.runtime._engine.approvals import build_withdrawal_ops
from standfast.runtime._engine.claims import find_session_holder, get_next_token, read_turn
from standfast.runtime._engine.context import RuntimeContext, validate_session_id
from standfast.runtime._engine.leases import make_session_lease_name
from standfast.runtime._engine.records import (
    ENDED_STATUSES,
    PUBLIC_STATUS,
    STOPPED_STATUSES,
    CancelRequested,
    JournalEntry,
    ResumeRequested,
    RunHeader,
    RunQueued,
    RunStopped,
    compute_request_digest,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.scheduler import Scheduler, build_create_ops, make_run_ids
from standfast.runtime._engine.session_marks import build_rewind_ops
from standfast.runtime.errors import RunActive, RunEnded, RunKeyReused, SessionBusy, SessionEncrypted
from standfast.runtime.types import CancelMode, OnBusy, PruneReport
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendJournal,
    CheckFence,
    DeleteRun,
    LeaseHeld,
    Op,
    ReleaseLease,
    SaveRun,
)
from standfast.store.records import RunRecord, SessionRecord, SessionTurn
from standfast.workspaces.branches import build_deletion_ops
from standfast.workspaces.versions import list_workspaces, name_run_workspace

MAX_PRIORITY = 1_000_000

_BUSY_ADVICE = "wait for it, or start with on_busy='enqueue' or 'interrupt'"
_PAGE_SIZE = 200


@dataclass(frozen=True)
class StartRequest:
    """The arguments of a start."""

    agent: str
    input: str | list[Item]
    session_id: str | None
    context: SavedContext | None
    max_turns: int | None
    key: str | None
    on_busy: OnBusy
    owner: str | None = None
    priority: int = 0

    @property
    def digest(self) -> str:
        return compute_request_digest(self.agent, self.input, self.session_id, self.context, self.max_turns)

    @property
    def preempts(self) -> bool:
        return self.on_busy in ("interrupt", "rollback")

    def build_ops(self, run_id: str, *, queue: str = "", share: str = "") -> tuple[SaveRun, AppendJournal]:
        """Return the operations that create the queued run; one that preempts is the next of its session."""
        header = RunHeader(self.agent, self.digest, key=self.key)
        first = RunQueued(self.input, self.max_turns, self.context)
        status: Literal["next", "queued"] = "next" if self.preempts else "queued"
        return build_create_ops(
            run_id,
            header,
            first,
            session_id=self.session_id,
            status=status,
            queue=queue,
            priority=self.priority,
            share=share,
        )

    def check_same_request(self, record: RunRecord) -> str:
        """Return the run that the key has started before, or raise :class:`RunKeyReused` for another request."""
        if decode_header(record).request != self.digest:
            raise RunKeyReused(self.key or "", run_id=record.run_id)
        return record.run_id


def build_request(
    agent: str,
    input: str | list[Item],
    session_id: str | None,
    context: Any,
    max_turns: int | None,
    key: str | None,
    on_busy: OnBusy,
    owner: str | None,
    priority: int = 0,
) -> StartRequest:
    """Return a checked request, or raise :class:`InvalidInput`."""
    if on_busy not in get_args(OnBusy):
        raise InvalidInput(f"on_busy must be enqueue, reject, interrupt or rollback, not {on_busy!r}")
    if max_turns is not None and not is_integer(max_turns):
        raise InvalidInput(f"max_turns must be an integer or None, not {max_turns!r}")
    if not is_integer(priority) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}")
    return StartRequest(
        agent,
        validate_input(input),
        validate_session_id(session_id),
        save_context(context, serializer=None, strict=True),
        max_turns,
        None if key is None else validate_name("key", key),
        on_busy,
        validate_owner(owner),
        priority,
    )


async def start_run(scheduler: Scheduler, request: StartRequest, *ops: Op) -> str:
    """Create the run in one commit with ``ops``, start it if its session is free, and return its id.

    If this runtime can execute the run now, that commit also claims it.
    """
    ctx = scheduler.ctx
    run_id, *others = make_run_ids(ctx, request.key)
    for one in (run_id, *others) if request.key is not None else ():
        if (existing := await ctx.backend.get_run(one)) is not None:
            return request.check_same_request(existing)
    turn = await _read_turn(ctx, request)
    session = None if turn is None else turn.session
    share = request.owner or (session.owner if session is not None else None) or request.session_id or ""
    save, queued = request.build_ops(run_id, queue=ctx.name_queue(request.agent), share=share)
    labels = _build_owner_ops(request, session)
    try:
        if not request.preempts and await scheduler.create(save, queued, turn, ops=[*labels, *ops]):
            return run_id
        before, after = await _build_turn_ops(ctx, request, run_id)
        await ctx.backend.commit(*before, *labels, save, queued, *ops, *after)
    except StoreUnavailable:
        if await ctx.backend.get_run(run_id) is None:
            raise
    except OutsideScope:  # another owner has created the session in the meantime
        raise _make_owner_error(request.session_id) from None
    except RunMoved:
        return request.check_same_request(await ctx.get_run(run_id))
    except (LeaseHeld, FenceLost):
        raise SessionBusy(request.session_id or "", run_id=None, advice=_BUSY_ADVICE) from None
    ctx.subscriptions.notify_written(run_id)
    if request.preempts and request.session_id is not None:
        await _cancel_session_holder(scheduler, run_id, request.session_id, rollback=request.on_busy == "rollback")
    await scheduler.claim(await ctx.get_run(run_id))
    return run_id


async def _read_turn(ctx: RuntimeContext, request: StartRequest) -> SessionTurn | None:
    """Return whose turn it is in the session of a new run, or raise :class:`SessionBusy` if the run must not wait."""
    if request.session_id is None:
        return None
    turn = await read_turn(ctx.backend, request.session_id)
    check_record(ctx, turn.session)
    busy = turn.holder or turn.queued
    if request.on_busy == "reject" and busy is not None:
        raise SessionBusy(request.session_id, run_id=busy.run_id, advice=_BUSY_ADVICE)
    return turn


async def _build_turn_ops(ctx: RuntimeContext, request: StartRequest, run_id: str) -> tuple[list[Op], list[Op]]:
    """Return operations before and after those that create a queued run, if it must not wait for another run.

    Of two runs that are started at once, the commit of the second fails.
    """
    if request.session_id is None or request.on_busy != "reject":
        return [], []
    turn = await _read_turn(ctx, request)
    assert turn is not None  # noqa: S101 - it has a session
    name, token = make_session_lease_name(request.session_id), get_next_token(turn)
    acquire = AcquireLease(name=name, owner=f"{ctx.runtime_id}/{run_id}", ttl=ctx.lease_ttl)
    return [acquire, CheckFence(name, token)], [ReleaseLease(name=name, token=token)]


async def check_session(ctx: RuntimeContext, session_id: str | None) -> None:
    """Refuse a session that this runtime cannot read, or would not encrypt."""
    if session_id is not None:
        check_record(ctx, await ctx.backend.get_session(session_id))


def check_record(ctx: RuntimeContext, record: SessionRecord | None) -> None:
    """Do as :func:`check_session` does, for the record of the session, if there is one."""
    if record is None:
        return
    if record.seal is not None and ctx.cipher is None:
        raise SessionEncrypted(record.session_id)
    ctx.codec.verify(record)


def _build_owner_ops(request: StartRequest, session: SessionRecord | None) -> list[Op]:
    """Return the operation that records the owner of a session without one, or raise :class:`InvalidInput`."""
    if request.owner is None:
        return []
    if request.session_id is None:
        raise InvalidInput("an owner is recorded with a session: pass session_id= as well")
    if session is None or session.owner is None:
        return [Annotate(session_id=request.session_id, metadata={}, owner=request.owner, claim=True)]
    if session.owner != request.owner:
        raise _make_owner_error(request.session_id)
    return []


def _make_owner_error(session_id: str | None) -> InvalidInput:
    return InvalidInput(f"session {session_id!r} has another owner: use store.set_owner(), or another session")


async def _cancel_session_holder(scheduler: Scheduler, run_id: str, session_id: str, *, rollback: bool) -> None:
    """Cancel the run that holds the session. The new run is next already, so no other can start in between."""
    other = await find_session_holder(scheduler.ctx.backend, session_id)
    if other is not None and other.run_id != run_id:
        with suppress(RunEnded):
            await cancel_run(scheduler, other.run_id, "immediate", rollback=rollback)


async def cancel_run(scheduler: Scheduler, run_id: str, mode: CancelMode, *, rollback: bool = False) -> None:
    """Stop the run, or request that from its owner. ``rollback`` removes what it added to its session."""
    ctx = scheduler.ctx
    while True:
        record = await ctx.get_run(run_id)
        if record.status == "cancelled" and not rollback:
            return
        if record.status in ENDED_STATUSES:
            raise RunEnded(run_id, status=record.status, action="cancelled")
        header = replace(decode_header(record), rollback_requested=rollback or decode_header(record).rollback_requested)
        if record.status in ("running", "woken"):
            saved = await update_run(ctx, record, replace(header, cancel=mode), record.status, CancelRequested(mode))
        else:
            ops = await build_withdrawal_ops(ctx.backend, run_id)
            ops += await build_rewind_ops(ctx, record) if header.rollback_requested else []
            ended = replace(header, problem=None)
            saved = await update_run(ctx, record, ended, "cancelled", RunStopped("cancelled"), *ops)
        if saved:
            break
    if run_id in scheduler.executors:
        scheduler.executors[run_id].cancel(mode)
    elif record.status == "woken":
        await scheduler.claim_if_runnable(run_id)
    else:
        await scheduler.start_next(record.session_id)


async def resume_run(scheduler: Scheduler, run_id: str, *, accept: bool, agent: str | None) -> None:
    """Resume a run that failed, was cancelled or is blocked; for other runs this does nothing.

    For a run that is already running, only ``accept`` is stored: a runtime that was just opened may have retried the
    blocked run on its own.
    """
    ctx = scheduler.ctx
    while True:
        record = await ctx.get_run(run_id)
        header = decode_header(record)
        if header.rollback_requested:
            raise RunEnded(run_id, status="rolled back", action="resumed")
        new_header, status = replace(header, accept=accept or header.accept), record.status
        if status in ("failed", "cancelled", "blocked"):
            new_header = replace(new_header, problem=None, cancel=None, agent=agent or header.agent)
            # A blocked run still holds its session; the others have to queue for it again.
            status = "woken" if status == "blocked" else "queued"
        elif status not in ("woken", "running") or new_header == header:
            break
        if await update_run(ctx, record, new_header, status, ResumeRequested(accept, agent)):
            break
    await scheduler.claim_if_runnable(run_id)


async def update_run(
    ctx: RuntimeContext, record: RunRecord, header: RunHeader, status: str, note: Any, *ops: Op
) -> bool:
    """Write the header and a note; return False when another process has changed the run meanwhile."""
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status=status,
        data=encode(header),
        session_id=record.session_id,
        queue=ctx.name_queue(header.agent),
    )
    entry = encode_entry(JournalEntry(note))
    try:
        await ctx.backend.commit(*ops, save, AppendJournal(run_id=record.run_id, entries=(entry,)))
    except (RunMoved, ApprovalMoved, HistoryMoved, WorkspaceMoved):
        return False
    ctx.subscriptions.notify_written(record.run_id, stopped=status in STOPPED_STATUSES)
    return True


async def delete_run(ctx: RuntimeContext, run_id: str) -> None:
    """Delete a run that has ended, with its journal, events and approvals."""
    while True:
        record = await ctx.get_run(run_id)
        if record.status not in ENDED_STATUSES:
            raise RunActive(run_id, status=PUBLIC_STATUS[record.status])
        with suppress(RunMoved):
            workspaces = await build_deletion_ops(ctx.backend, *list_workspaces(name_run_workspace(run_id)))
            await ctx.backend.commit(DeleteRun(run_id=run_id, expected=record.revision), *workspaces)
            return


class EndedRun(msgspec.Struct, frozen=True):
    """What pruning needs of a run; the headers of all runs would take too much memory."""

    run_id: str
    ended_at: float


async def prune_runs(ctx: RuntimeContext, *, older_than: timedelta | float | None, keep: int | None) -> PruneReport:
    """Delete the ended runs that are older than that, or not among the latest ``keep``."""
    age, count = _validate_age(older_than), _validate_count(keep)
    if age is None and count is None:
        raise InvalidInput("prune needs older_than=, keep= or both; nothing was deleted")
    await ctx.sync_clock()
    ended = [run async for run in _iter_ended(ctx)]
    ended.reverse()  # a fork is younger than the run whose journal it shares, and must be deleted before it
    deleted, shared = [], []
    for index, run in enumerate(ended):
        if (count is not None and index >= count) or (age is not None and run.ended_at < ctx.clock() - age):
            try:
                await delete_run(ctx, run.run_id)
            except RunShared:
                shared.append(run.run_id)
            except (RunActive, NotFound):  # resumed, or deleted by another process
                continue
            else:
                deleted.append(run.run_id)
    return PruneReport(tuple(deleted), len(ended) - len(deleted), tuple(shared))


async def _iter_ended(ctx: RuntimeContext) -> AsyncIterator[EndedRun]:
    after = 0
    while page := await ctx.backend.list_runs(status=ENDED_STATUSES, session_id=None, limit=_PAGE_SIZE, after=after):
        for record in page:
            yield EndedRun(record.run_id, record.updated_at)
        after = page[-1].order


def _validate_age(older_than: object) -> float | None:
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    if seconds is None:
        return None
    if not is_number(seconds, allow_infinity=True) or not seconds >= 0:
        raise InvalidInput(f"older_than must be a timedelta or a number of seconds >= 0, not {older_than!r}")
    return float(seconds)


def _validate_count(keep: object) -> int | None:
    if keep is not None and (not is_integer(keep) or keep < 0):
        raise InvalidInput(f"keep must be an integer >= 0, not {keep!r}")
    return keep
