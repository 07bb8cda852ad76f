"""Reading a run back from its store."""

from msgspec.structs import replace

from holdfast.base.errors import InvalidInput, NotFound
from holdfast.runs.state import InSession, State
from holdfast.runtime import folds
from holdfast.runtime.journal import Replayed
from holdfast.runtime.records import Begun, entry_of
from holdfast.store.contract import Backend, RunRecord


def checked_step(record: RunRecord, step: object) -> int:
    """The step itself when the run has it, else :class:`InvalidInput`."""
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= record.journal_length:
        raise InvalidInput(f"the run {record.run_id!r} has the steps 1 to {record.journal_length}, not {step!r}")
    return step


async def replay(backend: Backend, record: RunRecord, *, upto: int | None = None) -> Replayed:
    """The run after the first ``upto`` entries of its journal, or after all of them."""
    return await _from_fold(backend, record, upto) or await _from_start(backend, record, upto)


async def _from_fold(backend: Backend, record: RunRecord, upto: int | None) -> Replayed | None:
    """The run from its newest fold on, if the journal agrees that the fold is about its beginning."""
    found = await folds.newest(backend, record, upto=upto)
    if found is None:
        return None
    replayed, mark = found
    last, *rows = await backend.journal(record.run_id, after=replayed.length - 1)
    if entry_of(last).mark != mark:
        return None
    replayed.go_on(entry_of(row) for row in rows if upto is None or row.seq <= upto)
    return replayed


async def _from_start(backend: Backend, record: RunRecord, upto: int | None) -> Replayed:
    rows = await backend.journal(record.run_id, after=0)
    begun, *entries = (entry_of(row) for row in rows[:upto])
    assert isinstance(begun.it, Begun)  # noqa: S101 - the first entry is written with the run
    replayed = await _begun(backend, record, begun.it)
    replayed.go_on(entries)
    return replayed


async def _begun(backend: Backend, record: RunRecord, begun: Begun) -> Replayed:
    if begun.parent is None:
        return Replayed(State(run_id=record.run_id, input=begun.input, max_turns=begun.max_turns), begun.context)
    parent = await backend.run(begun.parent)
    if parent is None:
        raise NotFound("run", begun.parent)
    found = await replay(backend, parent, upto=begun.at)
    state = replace(found.state, run_id=record.run_id, trace=None)
    if isinstance(state.conversation, InSession) and record.session_id is not None:
        state = replace(state, conversation=replace(state.conversation, session_id=record.session_id))
    return Replayed(state, found.context, found.consumed)
