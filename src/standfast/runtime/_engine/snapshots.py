"""What a long journal comes to, written down now and then, so that going on with a run need not read all of it.

A fold has what is new since the fold before it: all of them together are no longer than the run's transcript. The
journal stays the truth. A fold that cannot be read, that another version of standfast wrote or that the journal
contradicts is passed over.
"""

import zlib
from collections import deque
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from standfast import __version__
from standfast.base.errors import InvalidInput, NotFound
from standfast.runs.core.context import SavedContext
from standfast.runs.core.serialization import CURRENT_SCHEMA_VERSION
from standfast.runs.core.state import (
    GuardrailLog,
    PersistedStruct,
    ResponseLog,
    RunTranscript,
    SessionConversation,
    State,
    UsageRecord,
    decode_hook,
)
from standfast.runtime._engine.crash_loop import CrashCount
from standfast.runtime._engine.journal import CallKey, ReplayedRun, SnapshotCoverage
from standfast.runtime._engine.records import RunQueued, decode_entry, decode_row, encode
from standfast.store.contract import AppendEvents, Backend, RunRecord

WRITER_VERSION = f"{__version__}/{CURRENT_SCHEMA_VERSION}"


class JournalSnapshot(PersistedStruct, frozen=True):
    """What the first ``upto`` entries come to; ``mark`` is that of the last one.

    It goes on from the fold of the first ``since`` entries, unless that is 0, of whose transcript it keeps the first
    ``kept`` entries. Transcript, answers, verdicts and costs are only those behind that.
    """

    writer: str
    since: int
    upto: int
    mark: tuple[int, int]
    kept: int
    state: State
    consumed: tuple[UsageRecord, ...] = ()
    asked: tuple[tuple[CallKey, str], ...] = ()
    context: SavedContext | None = None
    setbacks: CrashCount = CrashCount()


_snapshot_decoder = msgspec.json.Decoder(JournalSnapshot, dec_hook=decode_hook)


def can_snapshot(state: State) -> bool:
    """Whether the run is between two turns."""
    return bool(state.responses) and not state.calls and state.answer is None


def get_coverage(run: ReplayedRun) -> SnapshotCoverage:
    """How much folds have, if the latest is of the run as it is. Its latest turn may still be changed by its end."""
    state = run.state
    return SnapshotCoverage(
        run.length, state.turn_start, len(state.responses), len(state.guardrails), len(run.usage_records)
    )


def encode_snapshot(run: ReplayedRun, mark: tuple[int, int]) -> bytes:
    """The fold of the run as it is, for the store."""
    state, cut = run.state, run.coverage
    fold = JournalSnapshot(
        WRITER_VERSION,
        since=cut.length,
        upto=run.length,
        mark=mark,
        kept=cut.transcript,
        state=replace(
            state,
            input="" if cut.length else state.input,
            transcript=RunTranscript(state.transcript.slice_from(cut.transcript)),
            responses=ResponseLog(state.responses.slice_from(cut.responses)),
            guardrails=GuardrailLog(state.guardrails.slice_from(cut.guardrails)),
        ),
        consumed=tuple(run.usage_records[cut.usage_records :]),
        asked=tuple(run.pending_approvals.items()),
        context=run.context if run.context_position > cut.length else None,
        setbacks=run.crashes,
    )
    return zlib.compress(encode(fold))


async def load_latest_snapshot(
    backend: Backend, record: RunRecord, *, upto: int | None
) -> tuple[ReplayedRun, tuple[int, int]] | None:
    """The run as its latest fold tells it, of those within the first ``upto`` entries, and the mark of its last one."""
    if not record.event_length:
        return None
    rows = await backend.read_events(record.run_id, after=0, limit=record.event_length)
    chain: list[JournalSnapshot] = []
    for row in reversed(rows):
        fold = _decode_snapshot(row.data)
        if fold is None:
            chain.clear()
        elif fold.upto == chain[-1].since if chain else upto is None or fold.upto <= upto:
            chain.append(fold)
            if not fold.since:
                return _merge_snapshots(chain[::-1]), chain[0].mark
    return None


def _decode_snapshot(data: bytes) -> JournalSnapshot | None:
    try:
        fold = _snapshot_decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None
    return fold if fold.writer == WRITER_VERSION else None


def _merge_snapshots(chain: list[JournalSnapshot]) -> ReplayedRun:
    first, last = chain[0], chain[-1]
    transcript, responses, verdicts = first.state.transcript, first.state.responses, first.state.guardrails
    for fold in chain[1:]:
        transcript = transcript.slice_to(fold.kept).concat(fold.state.transcript)
        responses = responses.concat(fold.state.responses)
        verdicts = verdicts.concat(fold.state.guardrails)
    logs = {"transcript": transcript, "responses": responses, "guardrails": verdicts}
    run = ReplayedRun(
        replace(last.state, input=first.state.input, **logs),
        next((fold.context for fold in reversed(chain) if fold.context is not None), None),
        [usage for fold in chain for usage in fold.consumed],
        dict(last.asked),
        last.upto,
        crashes=last.setbacks,
    )
    run.coverage = get_coverage(run)
    return run


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
    found = await load_latest_snapshot(backend, record, upto=upto)
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


SNAPSHOT_INTERVAL = 128
"""Entries of a journal between two folds, or somewhat more: a fold is made where a turn is over."""


class SnapshotWriter:
    """Makes folds of the bytes that the owner of a run writes: what is in memory, the program may have changed."""

    def __init__(self, backend: Backend, record: RunRecord, replayed: ReplayedRun) -> None:
        self._backend, self._record, self._length = backend, record, replayed.length
        self._replayed: ReplayedRun | None = None
        self._pending: deque[bytes] = deque()
        self._entries_since = replayed.length - replayed.coverage.length

    def add_written(self, entries: Iterable[bytes]) -> None:
        """These are in the journal now, behind all others."""
        before = len(self._pending)
        self._pending.extend(entries)
        self._entries_since += len(self._pending) - before

    async def build_due_ops(self) -> list[AppendEvents]:
        """What is to be written with the next entries."""
        if self._entries_since < SNAPSHOT_INTERVAL:
            return []
        if self._replayed is None:
            self._replayed = await replay(self._backend, self._record, upto=self._length)
        run = self._replayed
        while self._pending:
            entry = decode_entry(self._pending.popleft())
            run.apply_entries([entry])
            if (
                entry.mark is not None
                and run.length - run.coverage.length >= SNAPSHOT_INTERVAL
                and can_snapshot(run.state)
            ):
                fold = encode_snapshot(run, entry.mark)
                run.coverage, self._entries_since = get_coverage(run), len(self._pending)
                return [AppendEvents(run_id=self._record.run_id, events=(("fold", fold),))]
        return []
