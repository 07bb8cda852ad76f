"""Snapshots of a journal, so that a long run can be resumed without reading all of it.

A snapshot is incremental: it contains what is new since the previous one, so all of them together are no longer than
the run's transcript. The journal remains the source of truth: a snapshot that cannot be read, that was written by
another version of standfast or that contradicts the journal is ignored.
"""

import zlib

import msgspec
from msgspec.structs import replace

from standfast import __version__
from standfast.runs.core.context import SavedContext
from standfast.runs.core.serialization import CURRENT_SCHEMA_VERSION
from standfast.runs.core.state import (
    GuardrailLog,
    PersistedStruct,
    ResponseLog,
    RunTranscript,
    State,
    UsageRecord,
    decode_hook,
)
from standfast.runtime._engine.crash_loop import CrashCount
from standfast.runtime._engine.journal import CallKey, ReplayedRun, SnapshotCoverage
from standfast.runtime._engine.records import SessionMark, encode
from standfast.store.backend import Backend
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
    usage_records: tuple[UsageRecord, ...] = msgspec.field(default=(), name="consumed")
    pending_approvals: tuple[tuple[CallKey, str], ...] = msgspec.field(default=(), name="asked")
    context: SavedContext | None = None
    crashes: CrashCount = msgspec.field(default=CrashCount(), name="setbacks")
    session_marks: tuple[tuple[SessionMark, int], ...] = ()
    compacted: bool = False


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
        usage_records=tuple(run.usage_records[cut.usage_records :]),
        pending_approvals=tuple(run.pending_approvals.items()),
        context=run.context if run.context_position > cut.length else None,
        crashes=run.crashes,
        session_marks=tuple(run.session_marks),
        compacted=run.compacted,
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
        [usage for snapshot in chain for usage in snapshot.usage_records],
        dict(last.pending_approvals),
        last.upto,
        crashes=last.crashes,
        session_marks=list(last.session_marks),
        compacted=last.compacted,
    )
    run.coverage = get_coverage(run)
    return run
