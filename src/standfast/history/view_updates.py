"""How a write changes the view of a session: the new spans, and the record after it. No I/O."""

import msgspec

from standfast.history.reader import StoredSessionReader
from standfast.store.operations import Annotate, Op, Splice, ViewUpdate
from standfast.store.records import Generation, SessionRecord
from standfast.store.tape import TapeSpan, TapeSpans, compute_length, get_tape_ends, join_spans, slice_spans


def build_cut(record: SessionRecord, end: int) -> ViewUpdate:
    """Return the update that removes all items from position ``end`` on."""
    return ViewUpdate(closed=slice_spans(record.view, 0, end), open_from=record.next_seq, length=end)


def build_replacement_update(record: SessionRecord, start: int, stop: int, count: int) -> ViewUpdate:
    """Return the update that shows ``count`` appended items in the place of a range."""
    seq, rest = record.next_seq, slice_spans(record.view, stop, record.length)
    before = slice_spans(record.view, 0, start)
    if rest:  # the new items are in the middle, so the open span at the end starts empty
        before = join_spans(before, (TapeSpan(record.tape, seq, seq + count),), rest)
    return ViewUpdate(
        closed=before,
        open_from=seq + count if rest else seq,
        length=record.length - (stop - start) + count,
        archive=record.length > 0,
    )


def build_restoration(record: SessionRecord, generation: Generation) -> ViewUpdate:
    """Return the update that shows an earlier generation again, followed by the items added since."""
    since = tuple(
        TapeSpan(span.tape, max(span.start, generation.resumes_at), span.stop)
        for span in record.view
        if span.tape == record.tape and span.stop > generation.resumes_at
    )
    view = join_spans(generation.spans, since)
    return ViewUpdate(closed=view, open_from=record.next_seq, length=compute_length(view), archive=True)


def build_fork_splice(record: SessionRecord, view: TapeSpans, *, session_id: str, tape: int) -> Splice:
    """Return the first splice of a session that starts with items of another one, ``view``."""
    return Splice(
        session_id=session_id,
        tape=tape,
        view_update=ViewUpdate(closed=view, open_from=0, length=compute_length(view)),
        links=tuple(get_tape_ends(view).items()),
        owner=record.owner,
    )


def list_span_ends(spans: TapeSpans) -> list[int]:
    """Return the position of the last item of each span."""
    return [compute_length(spans[:count]) - 1 for count in range(1, len(spans) + 1)]


def make_updated_record(record: SessionRecord, update: ViewUpdate, *, added: int) -> SessionRecord:
    """Return the record as it is after an update that appends ``added`` items."""
    return msgspec.structs.replace(
        record,
        version=record.version + 1,
        length=update.length,
        next_seq=record.next_seq + added,
        open_from=update.open_from,
        closed=update.closed,
    )


def build_claim(session: StoredSessionReader) -> list[Op]:
    """Return the operation that refuses a commit to a session of another owner, if this session ``claims``."""
    if not session.claims or session.owner is None:
        return []
    return [Annotate(session_id=session.session_id, metadata={}, owner=session.owner, claim=True)]
