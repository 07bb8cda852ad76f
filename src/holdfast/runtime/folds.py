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
from holdfast.runs.state import Record, Responses, State, Transcript, UsageRecord, Verdicts, from_hook
from holdfast.runs.upgrades import CURRENT_SCHEMA_VERSION
from holdfast.runtime.journal import Cut, Place, Replayed
from holdfast.runtime.records import encoded
from holdfast.runtime.setbacks import Setbacks
from holdfast.store.contract import Backend, RunRecord

WRITER = f"{__version__}/{CURRENT_SCHEMA_VERSION}"


class Fold(Record, frozen=True):
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
    asked: tuple[tuple[Place, str], ...] = ()
    context: SavedContext | None = None
    setbacks: Setbacks = Setbacks()


_folds = msgspec.json.Decoder(Fold, dec_hook=from_hook)


def foldable(state: State) -> bool:
    """Whether the run is between two turns."""
    return bool(state.responses) and not state.calls and state.answer is None


def cut_of(run: Replayed) -> Cut:
    """How much folds have, if the latest is of the run as it is. Its latest turn may still be changed by its end."""
    state = run.state
    return Cut(run.length, state.turn_start, len(state.responses), len(state.guardrails), len(run.consumed))


def folded(run: Replayed, mark: tuple[int, int]) -> bytes:
    """The fold of the run as it is, for the store."""
    state, cut = run.state, run.cut
    fold = Fold(
        WRITER,
        since=cut.length,
        upto=run.length,
        mark=mark,
        kept=cut.transcript,
        state=replace(
            state,
            input="" if cut.length else state.input,
            transcript=Transcript(state.transcript.since(cut.transcript)),
            responses=Responses(state.responses.since(cut.responses)),
            guardrails=Verdicts(state.guardrails.since(cut.verdicts)),
        ),
        consumed=tuple(run.consumed[cut.consumed :]),
        asked=tuple(run.asked.items()),
        context=run.context if run.context_at > cut.length else None,
        setbacks=run.setbacks,
    )
    return zlib.compress(encoded(fold))


async def newest(backend: Backend, record: RunRecord, *, upto: int | None) -> tuple[Replayed, tuple[int, int]] | None:
    """The run as its latest fold tells it, of those within the first ``upto`` entries, and the mark of its last one."""
    if not record.event_length:
        return None
    rows = await backend.events(record.run_id, after=0, limit=record.event_length)
    chain: list[Fold] = []
    for row in reversed(rows):
        fold = _read(row.data)
        if fold is None:
            chain.clear()
        elif fold.upto == chain[-1].since if chain else upto is None or fold.upto <= upto:
            chain.append(fold)
            if not fold.since:
                return _unfolded(chain[::-1]), chain[0].mark
    return None


def _read(data: bytes) -> Fold | None:
    try:
        fold = _folds.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None
    return fold if fold.writer == WRITER else None


def _unfolded(chain: list[Fold]) -> Replayed:
    first, last = chain[0], chain[-1]
    transcript, responses, verdicts = first.state.transcript, first.state.responses, first.state.guardrails
    for fold in chain[1:]:
        transcript = transcript.upto(fold.kept).plus(fold.state.transcript)
        responses = responses.plus(fold.state.responses)
        verdicts = verdicts.plus(fold.state.guardrails)
    logs = {"transcript": transcript, "responses": responses, "guardrails": verdicts}
    run = Replayed(
        replace(last.state, input=first.state.input, **logs),
        next((fold.context for fold in reversed(chain) if fold.context is not None), None),
        [usage for fold in chain for usage in fold.consumed],
        dict(last.asked),
        last.upto,
        setbacks=last.setbacks,
    )
    run.cut = cut_of(run)
    return run
