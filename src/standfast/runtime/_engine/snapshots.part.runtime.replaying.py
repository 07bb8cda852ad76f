"""Reading a run back from its store."""

from msgspec.structs import replace

from holdfast.base.errors import InvalidInput, NotFound
from holdfast.runs.state import SessionConversation, State
from holdfast.runtime import folds
from holdfast.runtime.journal import ReplayedRun
from holdfast.runtime.records import RunQueued, decode_row
from holdfast.store.contract import Backend, RunRecord


def validate_step(record: RunRecord, step: object) -> int:
    """The step itself when the run has it, else :class:`InvalidInput`."""
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= record.journal_length:
        raise InvalidInput(f"the run {record.run_id!r} has the steps 1 to {record.journal_length}, not {step!r}")
    return step


async def replay(backend: Backend, record: RunRecord, *, upto: int | None = None) -> ReplayedRun:
    """The run after the first ``upto`` entries of its journal, or after all of them."""
    return await _replay_from_snapshot(backend, record, upto) or await _replay_from_start(backend, record, upto)


async def _replay_from_snapshot(backend: Backend, record: RunRecord, upto: int | None) -> ReplayedRun | None:
    """The run from its newest fold on, if the journal agrees that the fold is about its beginning."""
    found = await folds.load_latest_snapshot(backend, record, upto=upto)
    if found is None:
        return None
    replayed, mark = found
    last, *rows = await backend.read_journal(record.run_id, after=replayed.length - 1)
    if decode_row(last).mark != mark:
        return None
    replayed.apply_entries(decode_row(row) for row in rows if upto is None or row.seq <= upto)
    return replayed


async def _replay_from_start(backend: Backend, record: RunRecord, upto: int | None) -> ReplayedRun:
    rows = await backend.read_journal(record.run_id, after=0)
    begun, *entries = (decode_row(row) for row in rows[:upto])
    assert isinstance(begun.it, RunQueued)  # noqa: S101 - the first entry is written with the run
    replayed = await _make_initial_run(backend, record, begun.it)
    replayed.apply_entries(entries)
    return replayed


async def _make_initial_run(backend: Backend, record: RunRecord, begun: RunQueued) -> ReplayedRun:
    if begun.parent is None:
        return ReplayedRun(State(run_id=record.run_id, input=begun.input, max_turns=begun.max_turns), begun.context)
    parent = await backend.get_run(begun.parent)
    if parent is None:
        raise NotFound("run", begun.parent)
    found = await replay(backend, parent, upto=begun.at)
    state = replace(found.state, run_id=record.run_id, trace=None)
    if isinstance(state.conversation, SessionConversation) and record.session_id is not None:
        state = replace(state, conversation=replace(state.conversation, session_id=record.session_id))
    return ReplayedRun(state, found.context, found.usage_records)
