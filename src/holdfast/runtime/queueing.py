"""How runs begin, wait for their session, and are taken up: at most one run has a session."""

import hashlib
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.base.errors import FenceLost, RunMoved
from holdfast.base.ids import new_id
from holdfast.runtime.home import Home
from holdfast.runtime.leases import Hold, take
from holdfast.runtime.records import (
    HOLDING,
    IN_LINE,
    Begun,
    Header,
    JournalEntry,
    Owned,
    encoded,
    header_of,
    logged,
)
from holdfast.store.contract import Backend, Journal, Op, RunRecord, SaveRun


def run_id_of(key: str | None) -> str:
    """The id of a new run. One with a key has the same id wherever and whenever it is asked for."""
    return new_id("run") if key is None else f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def created(
    run_id: str, header: Header, first: Begun, *, session_id: str | None, status: Literal["next", "queued"] = "queued"
) -> list[Op]:
    """What creates a run, to wait for its turn."""
    return [
        SaveRun(run_id=run_id, expected=0, status=status, data=encoded(header), session_id=session_id),
        Journal(run_id=run_id, entries=(logged(JournalEntry(first)),)),
    ]


async def holder(backend: Backend, session_id: str) -> RunRecord | None:
    """The run that has the session: it is under way or waits for somebody."""
    found = await backend.runs(status=HOLDING, session_id=session_id, limit=1, after=0)
    return found[0] if found else None


async def first_in_line(backend: Backend, session_id: str) -> RunRecord | None:
    """The run whose turn it is when the session is free."""
    for status in IN_LINE:
        found = await backend.runs(status=(status,), session_id=session_id, limit=1, after=0)
        if found:
            return found[0]
    return None


async def take_up(home: Home, record: RunRecord) -> tuple[RunRecord, Hold] | None:
    """Own the run and note that it is under way; ``None`` when it is not its turn, or somebody else was faster."""
    if record.status not in IN_LINE or record.session_id is None:
        return await _owned(home, record)
    # Whoever has the session's lease is alone in letting a run of that session begin.
    hold = await take(home.backend, record.run_id, record.session_id, owner=home.owner, ttl=home.lease, ops=[])
    if hold is None:
        return None
    try:
        first = await first_in_line(home.backend, record.session_id)
        if first is None or first.run_id != record.run_id or await holder(home.backend, record.session_id):
            return None
        found = await _owned(home, first)
        hold = None if found is not None else hold
        return found
    finally:
        if hold is not None:
            await home.backend.commit(*hold.releases())


async def _owned(home: Home, record: RunRecord) -> tuple[RunRecord, Hold] | None:
    header = replace(header_of(record), problem=None)
    if record.status in IN_LINE and header.base is None and record.session_id is not None:
        before = await home.backend.record(record.session_id)
        header = replace(header, base=before.length if before else 0)
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
            home.backend, record.run_id, record.session_id, owner=home.owner, ttl=home.lease, ops=[save, journal]
        )
    except (RunMoved, FenceLost):
        return None
    if hold is None:
        return None
    home.feeds.written(record.run_id)
    kept: dict[str, Any] = {"status": "running", "revision": record.revision + 1, "data": save.data}
    return replace(record, **kept), hold
