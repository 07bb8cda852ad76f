"""What a history shows, as spans over append-only tapes.

Stored items are never moved or edited. Each session writes to a tape of its own, whose places (``seq``) are
never reused, and its history is a list of spans over its own and its ancestors' tapes. Appending grows the last
span; popping, rewinding, replacing and forking only write a new list of spans.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec


class TapeSpan(msgspec.Struct, frozen=True, array_like=True):
    """The items ``start <= seq < stop`` of one tape."""

    tape: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


TapeSpans = tuple[TapeSpan, ...]


def total_length(spans: Iterable[TapeSpan]) -> int:
    return sum(map(len, spans))


def slice_spans(spans: Sequence[TapeSpan], start: int, stop: int) -> TapeSpans:
    """The part of a view between two positions, clipped to what there is."""
    kept = []
    position = 0
    for span in spans:
        low, high = max(start - position, 0), min(stop - position, len(span))
        if low < high:
            kept.append(TapeSpan(span.tape, span.start + low, span.start + high))
        position += len(span)
    return tuple(kept)


def join_spans(*views: Iterable[TapeSpan]) -> TapeSpans:
    """Views one after the other; touching spans become one."""
    joined: list[TapeSpan] = []
    for view in views:
        for span in view:
            if not len(span):
                continue
            if joined and joined[-1].tape == span.tape and joined[-1].stop == span.start:
                joined[-1] = TapeSpan(span.tape, joined[-1].start, span.stop)
            else:
                joined.append(span)
    return tuple(joined)


def get_tape_ends(spans: Iterable[TapeSpan]) -> dict[int, int]:
    """For each tape the end of the last span on it."""
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.tape] = max(ends.get(span.tape, 0), span.stop)
    return ends


def get_ranges_on_tape(spans: Iterable[TapeSpan], tape: int) -> tuple[tuple[int, int], ...]:
    """The stretches of one tape that a view shows."""
    return tuple((span.start, span.stop) for span in spans if span.tape == tape and len(span))


def iter_gaps(ranges: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """What lies on a tape before ``end`` and in none of these stretches, in order."""
    place = 0
    for start, stop in sorted(ranges):
        if place < min(start, end):
            yield place, min(start, end)
        place = max(place, stop)
    if place < end:
        yield place, end


def find_position(spans: Iterable[TapeSpan], tape: int, seq: int) -> int | None:
    """Where a stored item stands in a view, or ``None`` when the view does not show it."""
    position = 0
    for span in spans:
        if span.tape == tape and span.start <= seq < span.stop:
            return position + seq - span.start
        position += len(span)
    return None
