"""Stopping runs and letting them go on, from any process."""

from typing import Any

from msgspec.structs import replace

from holdfast.base.errors import ApprovalMoved, HistoryMoved, RunMoved
from holdfast.runtime.driving import Driving
from holdfast.runtime.errors import RunEnded
from holdfast.runtime.filing import withdrawals
from holdfast.runtime.home import Home
from holdfast.runtime.records import (
    ENDED,
    RESTING,
    Called,
    CancelAsked,
    CancelMode,
    Header,
    JournalEntry,
    Rested,
    encoded,
    header_of,
    logged,
)
from holdfast.runtime.undoing import rewound
from holdfast.store.contract import Journal, Op, RunRecord, SaveRun


async def cancel(driving: Driving, run_id: str, mode: CancelMode, *, undone: bool = False) -> None:
    """Stop the run, or ask its owner to. ``undone`` takes back what it added to its session."""
    home = driving.home
    while True:
        record = await home.record(run_id)
        if record.status == "cancelled" and not undone:
            return
        if record.status in ENDED:
            raise RunEnded(run_id, status=record.status, wanted="cancelled")
        header = replace(header_of(record), undone=undone or header_of(record).undone)
        if record.status in ("running", "woken"):
            saved = await change(home, record, replace(header, cancel=mode), record.status, CancelAsked(mode))
        else:
            ops = await withdrawals(home.backend, run_id)
            ops += await rewound(home, record.session_id, header.base) if header.undone else []
            ended = replace(header, problem=None)
            saved = await change(home, record, ended, "cancelled", Rested("cancelled"), *ops)
        if saved:
            break
    if run_id in driving.local:
        driving.local[run_id].cancel(mode)
    elif record.status == "woken":
        await driving.go_on(run_id)
    else:
        await driving.next(record.session_id)


async def resume(driving: Driving, run_id: str, *, accept: bool, agent: str | None) -> None:
    """Let a run go on that failed, was cancelled or is blocked. Others are left alone: asked twice, it resumes once.

    One that goes on already is told what is accepted: a runtime that opens tries blocked runs by itself.
    """
    home = driving.home
    while True:
        record = await home.record(run_id)
        header = header_of(record)
        if header.undone:
            raise RunEnded(run_id, status="rolled back", wanted="resumed")
        fresh, status = replace(header, accept=accept or header.accept), record.status
        if status in ("failed", "cancelled", "blocked"):
            fresh = replace(fresh, problem=None, cancel=None, agent=agent or header.agent)
            # One that was blocked still has its session; the others have to wait for their turn.
            status = "woken" if status == "blocked" else "queued"
        elif status not in ("woken", "running") or fresh == header:
            break
        if await change(home, record, fresh, status, Called(accept, agent)):
            break
    await driving.go_on(run_id)


async def change(home: Home, record: RunRecord, header: Header, status: str, note: Any, *ops: Op) -> bool:
    """Write the header and a note; false when somebody else changed the run meanwhile."""
    save = SaveRun(
        run_id=record.run_id,
        expected=record.revision,
        status=status,
        data=encoded(header),
        session_id=record.session_id,
    )
    entry = logged(JournalEntry(note))
    try:
        await home.backend.commit(*ops, save, Journal(run_id=record.run_id, entries=(entry,)))
    except (RunMoved, ApprovalMoved, HistoryMoved):
        return False
    home.feeds.written(record.run_id, rests=status in RESTING)
    return True
