"""Rebuild a run from its journal, beginning at its latest valid snapshot."""

from collections.abc import Sequence

from msgspec.structs import replace

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.validation import is_integer
from standfast.runs.core.serialization import decode_saved
from standfast.runs.core.state import SessionConversation, State, UsageRecord
from standfast.runs.core.transitions import withdraw_approvals
from standfast.runtime._engine.journal import ReplayedRun
from standfast.runtime._engine.records import JournalEntry, RunQueued, decode_row
from standfast.runtime._engine.snapshots import load_latest_snapshot
from standfast.store.backend import Backend
from standfast.store.records import RunRecord


def validate_step(record: RunRecord, step: object) -> int:
    """Return the step if the run has it, or raise :class:`InvalidInput`."""
    if not is_integer(step) or not 1 <= step <= record.journal_length:
        raise InvalidInput(
            f"unknown step {step!r}: the run {record.run_id!r} has the steps 1 to {record.journal_length}"
        )
    return step


async def replay(backend: Backend, record: RunRecord, *, upto: int | None = None) -> ReplayedRun:
    """Rebuild the run after the first ``upto`` entries of its journal, or after all of them."""
    return await _replay_from_snapshot(backend, record, upto) or await _replay_from_start(backend, record, upto)


async def _replay_from_snapshot(backend: Backend, record: RunRecord, upto: int | None) -> ReplayedRun | None:
    """Rebuild the run from its latest snapshot, if the mark in the journal confirms that snapshot."""
    snapshot = await load_latest_snapshot(backend, record, upto=upto)
    if snapshot is None:
        return None
    replayed, mark = snapshot
    last, *rows = await backend.read_journal(record.run_id, after=replayed.length - 1)
    if decode_row(last).mark != mark:
        return None
    replayed.apply_entries(decode_row(row) for row in rows if upto is None or row.seq <= upto)
    return replayed


async def _replay_from_start(backend: Backend, record: RunRecord, upto: int | None) -> ReplayedRun:
    rows = await backend.read_journal(record.run_id, after=0)
    first, *entries = (decode_row(row) for row in rows[:upto])
    assert isinstance(first.content, RunQueued)  # noqa: S101 - the first entry is written with the run
    replayed = await _make_initial_run(backend, record, first.content)
    replayed.apply_entries(entries)
    return replayed


def make_new_run(run_id: str, entries: Sequence[JournalEntry]) -> ReplayedRun:
    """Rebuild a run that was just started from all its entries."""
    first = entries[0].content
    assert isinstance(first, RunQueued)  # noqa: S101 - the first entry is written with the run
    replayed = _make_first_state(run_id, first)
    replayed.apply_entries(entries[1:])
    return replayed


def _make_first_state(run_id: str, first: RunQueued) -> ReplayedRun:
    return ReplayedRun(State(run_id=run_id, input=first.input, max_turns=first.max_turns), first.context)


async def _make_initial_run(backend: Backend, record: RunRecord, first: RunQueued) -> ReplayedRun:
    if first.state is not None:
        state = decode_saved(first.state).run
        return ReplayedRun(replace(state, usage=UsageRecord()), first.context, [state.usage])
    if first.parent is None:
        return _make_first_state(record.run_id, first)
    parent = await backend.get_run(first.parent)
    if parent is None:
        raise NotFound("run", first.parent)
    parent_run = await replay(backend, parent, upto=first.at)
    state = replace(withdraw_approvals(parent_run.state), run_id=record.run_id, trace=None)
    if isinstance(state.conversation, SessionConversation) and record.session_id is not None:
        state = replace(state, conversation=replace(state.conversation, session_id=record.session_id))
    return ReplayedRun(state, parent_run.context, parent_run.usage_records)
