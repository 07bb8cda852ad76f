"""How runs begin, wait for their session, and are taken up: at most one run has a session."""

import hashlib
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.base.errors import FenceLost, RunMoved
from holdfast.base.ids import new_id
from holdfast.runtime.home import RuntimeContext
from holdfast.runtime.leases import RunLeases, acquire_leases
from holdfast.runtime.records import (
    QUEUED_STATUSES,
    SESSION_HOLDING_STATUSES,
    JournalEntry,
    RunClaimed,
    RunHeader,
    RunQueued,
    decode_header,
    encode,
    encode_entry,
)
from holdfast.store.contract import AppendJournal, Backend, Op, RunRecord, SaveRun


def make_run_id(key: str | None) -> str:
    """The id of a new run. One with a key has the same id wherever and whenever it is asked for."""
    return new_id("run") if key is None else f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def build_create_ops(
    run_id: str,
    header: RunHeader,
    first: RunQueued,
    *,
    session_id: str | None,
    status: Literal["next", "queued"] = "queued",
) -> list[Op]:
    """What creates a run, to wait for its turn."""
    return [
        SaveRun(run_id=run_id, expected=0, status=status, data=encode(header), session_id=session_id),
        AppendJournal(run_id=run_id, entries=(encode_entry(JournalEntry(first)),)),
    ]


async def find_session_holder(backend: Backend, session_id: str) -> RunRecord | None:
    """The run that has the session: it is under way or waits for somebody."""
    found = await backend.list_runs(status=SESSION_HOLDING_STATUSES, session_id=session_id, limit=1, after=0)
    return found[0] if found else None


async def find_next_queued(backend: Backend, session_id: str) -> RunRecord | None:
    """The run whose turn it is when the session is free."""
    for status in QUEUED_STATUSES:
        found = await backend.list_runs(status=(status,), session_id=session_id, limit=1, after=0)
        if found:
            return found[0]
    return None


async def claim_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    """Own the run and note that it is under way; ``None`` when it is not its turn, or somebody else was faster."""
    if record.status not in QUEUED_STATUSES or record.session_id is None:
        return await _acquire_run(ctx, record)
    # Whoever has the session's lease is alone in letting a run of that session begin.
    hold = await acquire_leases(
        ctx.backend, record.run_id, record.session_id, owner=ctx.owner, ttl=ctx.lease_ttl, ops=[]
    )
    if hold is None:
        return None
    try:
        first = await find_next_queued(ctx.backend, record.session_id)
        if first is None or first.run_id != record.run_id or await find_session_holder(ctx.backend, record.session_id):
            return None
        found = await _acquire_run(ctx, first)
        hold = None if found is not None else hold
        return found
    finally:
        if hold is not None:
            await ctx.backend.commit(*hold.build_release_ops())


async def _acquire_run(ctx: RuntimeContext, record: RunRecord) -> tuple[RunRecord, RunLeases] | None:
    header = replace(decode_header(record), problem=None)
    if record.status in QUEUED_STATUSES and header.base is None and record.session_id is not None:
        before = await ctx.backend.get_session(record.session_id)
        header = replace(header, base=before.length if before else 0)
    begun_before: Literal["started", "continued"] = "started" if record.journal_length == 1 else "continued"
    note = RunClaimed(ctx.owner, "recovered" if record.status == "running" else begun_before)
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status="running",
        data=encode(header),
        session_id=record.session_id,
    )
    journal = AppendJournal(run_id=record.run_id, entries=(encode_entry(JournalEntry(note)),))
    try:
        hold = await acquire_leases(
            ctx.backend, record.run_id, record.session_id, owner=ctx.owner, ttl=ctx.lease_ttl, ops=[save, journal]
        )
    except (RunMoved, FenceLost):
        return None
    if hold is None:
        return None
    ctx.subscriptions.notify_written(record.run_id)
    kept: dict[str, Any] = {"status": "running", "revision": record.revision + 1, "data": save.data}
    return replace(record, **kept), hold
