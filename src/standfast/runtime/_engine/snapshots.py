"""What a long journal comes to, written down now and then, so that going on with a run need not read all of it.

A fold has what is new since the fold before it: all of them together are no longer than the run's transcript. The
journal stays the truth. A fold that cannot be read, that another version of holdfast wrote or that the journal
contradicts is passed over.
"""

import zlib

import msgspec
from msgspec.structs import replace

from holdfast import __version__
from holdfast.runs.contexts import SavedContext
from holdfast.runs.state import (
    GuardrailLog,
    PersistedStruct,
    ResponseLog,
    RunTranscript,
    State,
    UsageRecord,
    decode_hook,
)
from holdfast.runs.upgrades import CURRENT_SCHEMA_VERSION
from holdfast.runtime.journal import CallKey, ReplayedRun, SnapshotCoverage
from holdfast.runtime.records import encode
from holdfast.runtime.setbacks import CrashCount
from holdfast.store.contract import Backend, RunRecord

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
