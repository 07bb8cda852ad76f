"""Snapshots of a journal, so that a long run can be resumed without reading all of it; and the replay of a run.

A snapshot is incremental: it contains what is new since the previous one, so all of them together are no longer than
the run's transcript. The journal remains the source of truth: a snapshot that cannot be read, that was written by
another version of standfast or that contradicts the journal is ignored.
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
from standfast.store.backend import Backend
from standfast.store.operations import AppendEvents
from standfast.store.records import RunRecord

WRITER_VERSION = f"{__version__}/{CURRENT_SCHEMA_VERSION}"


class JournalSnapshot(PersistedStruct, frozen=True):
    """The run after the first ``upto`` entries of its journal; ``mark`` is the mark of the last of them.

    It extends the snapshot of the first ``since`` entries, unless that is 0, and keeps the first ``kept`` entries of
    that one's transcript. Transcript, responses, guardrail results and usage contain only what comes after.
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
    """Return whether the run is between two turns."""
    return bool(state.responses) and not state.calls and state.answer is None


def get_coverage(run: ReplayedRun) -> SnapshotCoverage:
    """Return what a snapshot of the run in its current state covers; the latest turn may still change."""
    state = run.state
    return SnapshotCoverage(
        run.length, state.turn_start, len(state.responses), len(state.guardrails), len(run.usage_records)
    )


def encode_snapshot(run: ReplayedRun, mark: tuple[int, int]) -> bytes:
    """Return the snapshot of the run in its current state, as bytes for the store."""
    state, cut = run.state, run.coverage
    snapshot = JournalSnapshot(
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
    return zlib.compress(encode(snapshot))


async def load_latest_snapshot(
    backend: Backend, record: RunRecord, *, upto: int | None
) -> tuple[ReplayedRun, tuple[int, int]] | None:
    """Return the run of the latest valid snapshot within the first ``upto`` entries, and the mark of its last entry."""
    if not record.event_length:
        return None
    rows = await backend.read_events(record.run_id, after=0, limit=record.event_length)
    chain: list[JournalSnapshot] = []
    for row in reversed(rows):
        snapshot = _decode_snapshot(row.data)
        if snapshot is None:
            chain.clear()
        elif snapshot.upto == chain[-1].since if chain else upto is None or snapshot.upto <= upto:
            chain.append(snapshot)
            if not snapshot.since:
                return _merge_snapshots(chain[::-1]), chain[0].mark
    return None


def _decode_snapshot(data: bytes) -> JournalSnapshot | None:
    try:
        snapshot = _snapshot_decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None
    return snapshot if snapshot.writer == WRITER_VERSION else None


def _merge_snapshots(chain: list[JournalSnapshot]) -> ReplayedRun:
    first, last = chain[0], chain[-1]
    transcript, responses, guardrails = first.state.transcript, first.state.responses, first.state.guardrails
    for snapshot in chain[1:]:
        transcript = transcript.slice_to(snapshot.kept).concat(snapshot.state.transcript)
        responses = responses.concat(snapshot.state.responses)
        guardrails = guardrails.concat(snapshot.state.guardrails)
    logs = {"transcript": transcript, "responses": responses, "guardrails": guardrails}
    run = ReplayedRun(
        replace(last.state, input=first.state.input, **logs),
        next((snapshot.context for snapshot in reversed(chain) if snapshot.context is not None), None),
        [usage for snapshot in chain for usage in snapshot.consumed],
        dict(last.asked),
        last.upto,
        crashes=last.setbacks,
    )
    run.coverage = get_coverage(run)
    return run


def validate_step(record: RunRecord, step: object) -> int:
    """Return the step if the run has it, or raise :class:`InvalidInput`."""
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= record.journal_length:
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
    assert isinstance(first.it, RunQueued)  # noqa: S101 - the first entry is written with the run
    replayed = await _make_initial_run(backend, record, first.it)
    replayed.apply_entries(entries)
    return replayed


async def _make_initial_run(backend: Backend, record: RunRecord, first: RunQueued) -> ReplayedRun:
    if first.parent is None:
        return ReplayedRun(State(run_id=record.run_id, input=first.input, max_turns=first.max_turns), first.context)
    parent = await backend.get_run(first.parent)
    if parent is None:
        raise NotFound("run", first.parent)
    parent_run = await replay(backend, parent, upto=first.at)
    state = replace(parent_run.state, run_id=record.run_id, trace=None)
    if isinstance(state.conversation, SessionConversation) and record.session_id is not None:
        state = replace(state, conversation=replace(state.conversation, session_id=record.session_id))
    return ReplayedRun(state, parent_run.context, parent_run.usage_records)


SNAPSHOT_INTERVAL = 128
"""The least number of entries between two snapshots, which are made only at the end of a turn."""


class SnapshotWriter:
    """Makes snapshots from the bytes that are written: the program may have changed the objects in memory."""

    def __init__(self, backend: Backend, record: RunRecord, replayed: ReplayedRun) -> None:
        self._backend, self._record, self._length = backend, record, replayed.length
        self._replayed: ReplayedRun | None = None
        self._pending: deque[bytes] = deque()
        self._entries_since = replayed.length - replayed.coverage.length

    def add_written(self, entries: Iterable[bytes]) -> None:
        """Add entries that were appended to the journal."""
        before = len(self._pending)
        self._pending.extend(entries)
        self._entries_since += len(self._pending) - before

    async def build_due_ops(self) -> list[AppendEvents]:
        """Return the operations to commit with the next entries: a snapshot if one is due."""
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
                snapshot = encode_snapshot(run, entry.mark)
                run.coverage, self._entries_since = get_coverage(run), len(self._pending)
                return [AppendEvents(run_id=self._record.run_id, events=(("fold", snapshot),))]
        return []
