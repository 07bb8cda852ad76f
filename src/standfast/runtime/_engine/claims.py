"""Claim a run: acquire its leases and mark it as running, in one commit. At most one run holds a session.

A queued run may start if no run holds its session and none is queued before it. That is read first. The commit then
requires that its lease of the session is the next one after that which was read: no other run of the session was
claimed in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from standfast.base.errors import FenceLost, HistoryMoved, RunMoved
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.journal import ReplayedRun, make_new_run
from standfast.runtime._engine.leases import TAKEOVER_LOG, RunLeases, acquire_leases, make_session_lease_name
from standfast.runtime._engine.records import (
    QUEUED_STATUSES,
    SESSION_HOLDING_STATUSES,
    JournalEntry,
    RunClaimed,
    decode_entry,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.session_marks import mark_session
from standfast.runtime._engine.written_entries import WrittenEntries
from standfast.store.backend import Backend
from standfast.store.operations import AppendJournal, CheckFence, MoveBehind, Op, RequireVersion, SaveRun
from standfast.store.records import RunRecord, SessionTurn

CLAIMABLE_STATUSES = ("woken", "running", *QUEUED_STATUSES)


@dataclass(frozen=True)
class ClaimedRun:
    """A run that this runtime owns."""

    record: RunRecord
    leases: RunLeases
    written: WrittenEntries
    """What the commit that claimed it has written."""
    replayed: ReplayedRun | None = None
    """The run, if it is known without reading its journal."""
    is_first_of_session: bool = False
    """Whether its session did not exist before."""


async def find_session_holder(backend: Backend, session_id: str) -> RunRecord | None:
    """Return the run that holds the session: it is active or waits."""
    records = await backend.list_runs(status=SESSION_HOLDING_STATUSES, session_id=session_id, limit=1, after=0)
    return records[0] if records else None


async def find_next_queued(backend: Backend, session_id: str) -> RunRecord | None:
    """Return the queued run that starts next when the session is free."""
    first = await backend.list_runs(status=QUEUED_STATUSES, session_id=session_id, limit=1, after=0)
    if not first:
        return None
    preferred = await backend.list_runs(status=QUEUED_STATUSES[:1], session_id=session_id, limit=1, after=0)
    return (preferred or first)[0]


async def read_turn(backend: Backend, session_id: str) -> SessionTurn:
    """Return whose turn it is in the session."""
    return await backend.get_session_turn(session_id, lease=make_session_lease_name(session_id))


def get_next_token(turn: SessionTurn) -> int:
    """Return the token that the next owner of the session's lease gets."""
    return 1 if turn.lease is None else turn.lease.token + 1


async def claim_run(ctx: RuntimeContext, record: RunRecord) -> ClaimedRun | None:
    """Acquire the leases of the run and mark it as running; ``None`` if it is not its turn or another was faster."""
    if record.status not in CLAIMABLE_STATUSES:  # Another claim was faster: it has ended or waits.
        return None
    turn = None if record.session_id is None else await read_turn(ctx.backend, record.session_id)
    if turn is None or record.session_id is None or record.status not in QUEUED_STATUSES:
        return await _acquire_run(ctx, record, turn)
    claimed = None
    if _is_next(record, turn):
        claimed = await _acquire_run(ctx, turn.queued or record, turn)
    if claimed is None:
        await _note_behind(ctx, record, record.session_id)
    return claimed


def _is_next(record: RunRecord, turn: SessionTurn) -> bool:
    return turn.holder is None and turn.queued is not None and turn.queued.run_id == record.run_id


async def _note_behind(ctx: RuntimeContext, record: RunRecord, session_id: str) -> None:
    """Note that the run waits for another of its session, and that it is the turn of the one before it."""
    turn, ops = await read_turn(ctx.backend, session_id), list[Op]()
    is_waiting = turn.holder is not None or (turn.queued is not None and not _is_next(record, turn))
    moves = is_waiting and record.status == "queued" and not record.behind
    if moves:
        ops.append(MoveBehind(run_id=record.run_id, behind=True))
    if turn.holder is None and turn.queued is not None and turn.queued.behind:
        ops.append(MoveBehind(run_id=turn.queued.run_id, behind=False))
    if ops:
        await ctx.backend.commit(*ops)
    # The other run may have ended between the two. Its runtime looks for the next run after that, and this one here
    # looks for the other after the note: one of them sees the other.
    if moves and _is_next(record, await read_turn(ctx.backend, session_id)):
        await ctx.backend.commit(MoveBehind(run_id=record.run_id, behind=False))


async def _acquire_run(ctx: RuntimeContext, record: RunRecord, turn: SessionTurn | None) -> ClaimedRun | None:
    header, session = replace(decode_header(record), problem=None), turn.session if turn else None
    how: Literal["started", "continued"] = "started" if record.journal_length == 1 else "continued"
    mark = mark_session(session) if turn else None
    note = RunClaimed(ctx.runtime_id, "recovered" if record.status == "running" else how, mark)
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status="running",
        data=encode(header),
        session_id=record.session_id,
    )
    journal = AppendJournal(run_id=record.run_id, entries=(encode_entry(JournalEntry(note)),))
    is_queued = record.status in QUEUED_STATUSES
    written = WrittenEntries(record.journal_length)
    leases = await _commit_claim(ctx, save, turn, [save, journal], written, is_queued=is_queued)
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
    record = replace(record, status="running", revision=record.revision + 1, data=save.data)
    return ClaimedRun(record, leases, written)


async def create_claimed(
    ctx: RuntimeContext, save: SaveRun, queued: AppendJournal, turn: SessionTurn | None, *, ops: Sequence[Op]
) -> ClaimedRun | None:
    """Create a run that this runtime owns from the start, in one commit with ``ops``.

    ``save`` and ``queued`` are what creates it as a queued run. Return ``None``, and write nothing, if its session is
    not free.
    """
    if turn is not None and (turn.holder is not None or turn.queued is not None):
        return None
    claimed = RunClaimed(ctx.runtime_id, "started", None if turn is None else mark_session(turn.session))
    entries = (*queued.entries, encode_entry(JournalEntry(claimed)))
    save = replace(save, status="running")
    writes, written = [*ops, save, replace(queued, entries=entries)], WrittenEntries()
    leases = await _commit_claim(ctx, save, turn, writes, written, is_queued=True)
    if leases is None:
        return None
    record = RunRecord(
        run_id=save.run_id,
        order=0,  # only the store knows it, and only listings need it
        session_id=save.session_id,
        status=save.status,
        revision=1,
        data=save.data,
        journal_length=len(entries),
        event_length=0,
        created_at=(now := ctx.clock()),
        updated_at=now,
    )
    # From the bytes, as another process would read them: the program may change the objects of its input.
    replayed = make_new_run(save.run_id, [decode_entry(data) for _, data in entries])
    is_first = turn is not None and turn.session is None
    return ClaimedRun(record, leases, written, replayed, is_first_of_session=is_first)


async def _commit_claim(
    ctx: RuntimeContext,
    save: SaveRun,
    turn: SessionTurn | None,
    ops: Sequence[Op],
    written: WrittenEntries,
    *,
    is_queued: bool,
) -> RunLeases | None:
    """Acquire the leases of a run in one commit with ``ops``; ``None`` if the run or its session has changed."""
    session_id, required = save.session_id, list[Op]()
    if turn is not None and session_id is not None:
        required.append(RequireVersion(session_id, turn.session.version if turn.session else 0))
        if (
            is_queued
        ):  # after the lease was acquired, this requires that no other run was claimed since the turn was read
            required.append(CheckFence(make_session_lease_name(session_id), get_next_token(turn)))
    try:
        acquired = await acquire_leases(
            ctx.backend, save.run_id, session_id, owner=ctx.runtime_id, ttl=ctx.lease_ttl, ops=[*required, *ops]
        )
    except (RunMoved, FenceLost, HistoryMoved):
        return None
    if acquired is None:
        return None
    leases, results = acquired
    written.add(ops, results[len(required) :])
    return leases
