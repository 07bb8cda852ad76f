"""How runs begin, wait for their session, and are taken up: at most one run has a session."""

import hashlib
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.base.errors import FenceLost, HistoryMoved, RunMoved
from holdfast.base.ids import new_id
from holdfast.runtime.home import Home
from holdfast.runtime.leases import Hold, take
from holdfast.runtime.records import (
    HOLDING,
    Begun,
    Header,
    JournalEntry,
    Owned,
    encoded,
    header_of,
    logged,
)
from holdfast.store.contract import Backend, Journal, Op, RunRecord, SaveRun, Shape, Splice
from holdfast.store.view import cut


def run_id_of(key: str | None) -> str:
    """The id of a new run. One with a key has the same id wherever and whenever it is asked for."""
    return new_id("run") if key is None else f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def created(run_id: str, header: Header, first: Begun, *, session_id: str | None) -> list[Op]:
    """What creates a run, to wait for its turn."""
    return [
        SaveRun(run_id=run_id, expected=0, status="queued", data=encoded(header), session_id=session_id),
        Journal(run_id=run_id, entries=(logged(JournalEntry(first)),)),
    ]


async def holder(backend: Backend, session_id: str) -> RunRecord | None:
    """The run that has the session: it is under way or waits for somebody."""
    found = await backend.runs(status=HOLDING, session_id=session_id, limit=1, after=0)
    return found[0] if found else None


async def first_queued(backend: Backend, session_id: str) -> RunRecord | None:
    found = await backend.runs(status=("queued",), session_id=session_id, limit=1, after=0)
    return found[0] if found else None


async def take_up(home: Home, record: RunRecord) -> tuple[RunRecord, Hold] | None:
    """Own the run and note that it is under way; ``None`` when it is not its turn, or somebody else was faster."""
    if record.status != "queued" or record.session_id is None:
        return await _owned(home, record, [])
    # Whoever has the session's lease is alone in letting a run of that session begin.
    hold = await take(home.backend, record.run_id, record.session_id, owner=home.owner, ttl=home.lease, ops=[])
    if hold is None:
        return None
    try:
        first = await first_queued(home.backend, record.session_id)
        if first is None or first.run_id != record.run_id or await holder(home.backend, record.session_id):
            return None
        found = await _owned(home, first, await _taken_back(home, first))
        hold = None if found is not None else hold
        return found
    finally:
        if hold is not None:
            await home.backend.commit(*hold.releases())


async def _owned(home: Home, record: RunRecord, ops: list[Op]) -> tuple[RunRecord, Hold] | None:
    header = replace(header_of(record), problem=None)
    if record.status == "queued" and header.base is None and record.session_id is not None:
        before = await home.backend.record(record.session_id)
        shapes = [op.shape.length for op in ops if isinstance(op, Splice) and op.shape is not None]
        header = replace(header, base=shapes[-1] if shapes else before.length if before else 0)
    begun_before: Literal["started", "continued"] = "started" if record.journal_length == 1 else "continued"
    note = Owned(home.owner, "recovered" if record.status == "running" else begun_before)
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status="running",
        data=encoded(header),
        session_id=record.session_id,
    )
    journal = Journal(run_id=record.run_id, entries=(logged(JournalEntry(note)),))
    try:
        hold = await take(
            home.backend, record.run_id, record.session_id, owner=home.owner, ttl=home.lease, ops=[*ops, save, journal]
        )
    except (RunMoved, HistoryMoved, FenceLost):
        return None
    if hold is None:
        return None
    home.feeds.written(record.run_id)
    kept: dict[str, Any] = {"status": "running", "revision": record.revision + 1, "data": save.data}
    return replace(record, **kept), hold


async def _taken_back(home: Home, record: RunRecord) -> list[Op]:
    """What rewinds the session to where it was before the runs that this one is to undo."""
    header, session_id = header_of(record), record.session_id
    if not header.undo or session_id is None:
        return []
    undone = [one for run_id in header.undo if (one := await home.backend.run(run_id)) is not None]
    bases = [header_of(one).base for one in undone if one.status == "cancelled"]
    starts = [base for base in bases if base is not None]
    before = await home.backend.record(session_id)
    if before is None or not starts or min(starts) >= before.length:
        return []
    session, to = home.session(session_id), min(starts)
    shape = Shape(closed=cut(before.view, 0, to), open_from=before.next_seq, length=to, archive=True)
    return [session.sealed(before, Splice(session_id=session_id, shape=shape, tape=before.tape))]
