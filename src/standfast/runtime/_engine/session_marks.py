"""Where the items of a run are in its session, whatever others have done to the session meanwhile.

Each claim of a run records a mark: the generation of the session, its length and where its tape ends. Items that the
run stores after it follow the marked ones, in that generation and on that tape, even if the session is later
compacted, rewound or extended.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.items import Item, decode_item, encode_items
from standfast.history.codec import DecodedRecord
from standfast.history.encryption.keys import TAG_SIZE
from standfast.runs.session_io import list_stored_items
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.journal import ReplayedRun, replay
from standfast.runtime._engine.records import SessionMark, decode_header
from standfast.store.operations import Op, Splice, ViewUpdate
from standfast.store.records import Row, RunRecord, SessionRecord
from standfast.store.tape import TapeSpan, TapeSpans, compute_length, join_spans, slice_spans
from standfast.workspaces import branches


def mark_session(record: SessionRecord | None) -> SessionMark:
    if record is None:
        return SessionMark()
    return SessionMark(record.tape, record.generation, record.length, record.next_seq)


async def build_rewind_ops(ctx: RuntimeContext, record: RunRecord) -> list[Op]:
    """Return the operations that remove the items of the run from its session, for the commit that ends the run.

    They must be part of that commit: until then the run holds the session, and no other run has added items. Items of
    other writers stay, and so does a summary that covers items of the run.
    """
    if record.session_id is None:
        return []
    session = ctx.open_session(record.session_id)
    page = await session.read_page()
    if page is None:
        return []
    replayed = await replay(ctx.backend, record)
    if replayed.session_marks:
        mark, inherited = replayed.session_marks[0]
        own = list_stored_items(replayed.state)[inherited:]
        removed = {row.position for row in find_own_rows(session.decode_page(page)[0], page.record, mark, own)}
    else:  # claimed by a version that recorded only the length
        length = decode_header(record).session_length_before
        removed = set() if length is None else {row.position for row in page.rows[length:]}
    workspace = [
        op
        for key in session.list_workspaces()
        for op in await branches.build_rewind_ops(ctx.backend, key, record.run_id)
    ]
    if not removed:
        return workspace
    kept = [row for row in page.rows if row.position not in removed]
    view = join_spans(TapeSpan(row.tape, row.seq, row.seq + 1) for row in kept)
    update = ViewUpdate(closed=view, open_from=page.record.next_seq, length=len(kept), archive=True)
    splice = Splice(session_id=record.session_id, view_update=update, tape=page.record.tape)
    tags = {(row.tape, row.seq): row.data[-TAG_SIZE:] for row in kept if row.data}
    return [session.complete_splice(page.record, splice, tags=tags), *workspace]


def find_own_rows(
    entries: Sequence[DecodedRecord], record: SessionRecord, mark: SessionMark, own: Sequence[Item]
) -> Iterator[Row]:
    """Yield the rows of a run's own items: those with their content, in their order, written after the mark."""
    if mark.tape not in (0, record.tape):  # the session was deleted and created again
        return
    rest = [entry for entry in entries if entry.row.tape == record.tape and entry.row.seq >= mark.next_seq]
    for item in map(decode_item, encode_items(own)):
        index = next((index for index, entry in enumerate(rest) if entry.item == item), None)
        if index is not None:
            yield rest[index].row
            del rest[: index + 1]


class ForkPlace(NamedTuple):
    """The first ``length`` items of a session, of its current generation if that is ``None``.

    ``call`` is the place of a call made then, see :class:`standfast.workspaces.versions.Cell`.
    """

    length: int
    generation: int | None = None
    call: tuple[int, int, int] | None = None


async def find_fork_place(ctx: RuntimeContext, parent: RunRecord, run: ReplayedRun) -> ForkPlace | None:
    """Return where the parent's session was when the run was at this step; ``None`` if it does not exist."""
    session = ctx.open_session(parent.session_id or "")
    record = await session.read_verified_record()
    if record is None or not record.version:
        return None
    own = len(list_stored_items(run.state))
    marks = run.session_marks or (await replay(ctx.backend, parent)).session_marks[:1]
    if not marks:  # not claimed yet, or by a version that recorded only the length
        before = decode_header(parent).session_length_before
        length = (record.length if before is None else before) + own
        if length > record.length:
            raise make_changed_error(record, length)
        return ForkPlace(length)
    mark, inherited = marks[-1]
    length = mark.length + max(own - inherited, 0)
    current = record.generation == mark.generation
    try:
        spans = record.view if current else await session.get_generation_spans(mark.generation)
    except NotFound:
        raise make_changed_error(record, length) from None
    if mark.tape not in (0, record.tape) or not is_followed(spans, record.tape, mark, count=length - mark.length):
        raise make_changed_error(record, length)
    call = (record.tape, mark.generation, mark.next_seq + length - mark.length)
    return ForkPlace(length, None if current else mark.generation, call)


def is_followed(spans: TapeSpans, tape: int, mark: SessionMark, *, count: int) -> bool:
    """Return whether the view begins with the marked items, followed by ``count`` that were written after them."""
    before = sum(
        max(min(span.stop, mark.next_seq) - span.start, 0) if span.tape == tape else len(span) for span in spans
    )
    following = slice_spans(spans, mark.length, mark.length + count)
    return (
        before == mark.length
        and compute_length(following) == count
        and (not following or following[0].start == mark.next_seq)
    )


def make_changed_error(record: SessionRecord, length: int) -> InvalidInput:
    return InvalidInput(
        f"the session {record.session_id!r} has {record.length} items, and at this step it had {length} that are no"
        " longer all stored: it was rewound or cleared since, so the run cannot be forked there"
    )
