"""Claim a run: acquire its leases and mark it as running. At most one run holds a session."""

from typing import Literal

from msgspec.structs import replace

from standfast.base.errors import FenceLost, HistoryMoved, RunMoved
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.leases import TAKEOVER_LOG, RunLeases, acquire_leases
from standfast.runtime._engine.records import (
    QUEUED_STATUSES,
    SESSION_HOLDING_STATUSES,
    JournalEntry,
    RunClaimed,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.session_marks import mark_session
from standfast.store.backend import Backend
from standfast.store.operations import AppendJournal, MoveBehind, Op, RequireVersion, SaveRun
from standfast.store.records import RunRecord

CLAIMABLE_STATUSES = ("woken", "running", *QUEUED_STATUSES)


async def find_session_holder(backend: Backend, session_id: str) -> RunRecord | None:
    """Return the run that holds the session: it is active or waits."""
    records = await backend.list_runs(status=SESSION_HOLDING_STATUSES, session_id=session_id, limit=1, after=0)
    return records[0] if records else None


async def find_next_queued(backend: Backend, session_id: str) -> RunRecord | None:
    """Return the queued run that starts next when the session is free."""
    for status in QUEUED_STATUSES:
        records = await backend.list_runs(status=(status,), session_id=session_id, limit=1, after=0)
        if records:
            return records[0]
    return None


async def claim_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    """Acquire the leases of the run and mark it as running; ``None`` if it is not its turn or another was faster."""
    if record.status not in CLAIMABLE_STATUSES:  # Another claim was faster: it has ended or waits.
        return None
    if record.status not in QUEUED_STATUSES or record.session_id is None:
        return await _acquire_run(ctx, record)
    # Only the holder of the session's lease may start a run of that session.
    leases = await acquire_leases(
        ctx.backend, record.run_id, record.session_id, owner=ctx.runtime_id, ttl=ctx.lease_ttl, ops=[]
    )
    if leases is None:
        await _note_behind(ctx, record, record.session_id)
        return None
    try:
        first = await find_next_queued(ctx.backend, record.session_id)
        holder = await find_session_holder(ctx.backend, record.session_id)
        if first is None or first.run_id != record.run_id or holder is not None:
            await _note_turn(ctx, record, first if holder is None else None)
            return None
        claimed = await _acquire_run(ctx, first)
        leases = None if claimed is not None else leases
        return claimed
    finally:
        if leases is not None:
            await ctx.backend.commit(*leases.build_release_ops())


async def _note_turn(ctx: RuntimeContext, record: RunRecord, first: RunRecord | None) -> None:
    """Note that the run waits for another of its session, and that it is the turn of ``first``."""
    ops = []
    if record.status == "queued" and not record.behind:
        ops.append(MoveBehind(run_id=record.run_id, behind=True))
    if first is not None and first.behind:
        ops.append(MoveBehind(run_id=first.run_id, behind=False))
    if ops:
        await ctx.backend.commit(*ops)


async def _note_behind(ctx: RuntimeContext, record: RunRecord, session_id: str) -> None:
    """Note that the run waits if another run holds its session."""
    if record.status != "queued" or record.behind or await find_session_holder(ctx.backend, session_id) is None:
        return
    await ctx.backend.commit(MoveBehind(run_id=record.run_id, behind=True))
    # The other run may have ended between the two. Its runtime looks for the next run after that, and this one here
    # looks for the other after the note: one of them sees the other.
    if await find_session_holder(ctx.backend, session_id) is None:
        await ctx.backend.commit(MoveBehind(run_id=record.run_id, behind=False))


async def _acquire_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    header, unchanged, mark = replace(decode_header(record), problem=None), list[Op](), None
    if record.session_id is not None:
        session = await ctx.backend.get_session(record.session_id)
        mark = mark_session(session)
        unchanged = [RequireVersion(record.session_id, session.version if session else 0)]
    how: Literal["started", "continued"] = "started" if record.journal_length == 1 else "continued"
    note = RunClaimed(ctx.runtime_id, "recovered" if record.status == "running" else how, mark)
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status="running",
        data=encode(header),
        session_id=record.session_id,
    )
    journal = AppendJournal(run_id=record.run_id, entries=(encode_entry(JournalEntry(note)),))
    try:
        leases = await acquire_leases(
            ctx.backend,
            record.run_id,
            record.session_id,
            owner=ctx.runtime_id,
            ttl=ctx.lease_ttl,
            ops=[*unchanged, save, journal],
        )
    except (RunMoved, FenceLost, HistoryMoved):
        return None
    if leases is None:
        return None
    ctx.subscriptions.notify_written(record.run_id)
    if note.how == "recovered":
        TAKEOVER_LOG.info(
            "run %s of agent %r: taken over by runtime %s, because its lease was not renewed",
            record.run_id,
            header.agent,
            ctx.runtime_id,
        )
    return replace(record, status="running", revision=record.revision + 1, data=save.data), leases
