"""Views of histories, as spans over append-only tapes.

Stored items are never moved or edited. Each session writes to its own tape, whose sequence numbers (``seq``) are never
reused. Its view, the items that its history consists of, is a list of spans over its own tape and those of its
ancestors. Appending extends the last span; popping, rewinding, replacing and forking only write a new list of spans.
"""

import secrets
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


def generate_tape_id() -> int:
    """Return a random tape number. It has at most 63 bits, so that every database can store it."""
    return secrets.randbits(62) + 1


def compute_length(spans: Iterable[TapeSpan]) -> int:
    return sum(map(len, spans))


def slice_spans(spans: Sequence[TapeSpan], start: int, stop: int) -> TapeSpans:
    """Return the part of a view between two positions, clipped to its length."""
    parts = []
    position = 0
    for span in spans:
        low, high = max(start - position, 0), min(stop - position, len(span))
        if low < high:
            parts.append(TapeSpan(span.tape, span.start + low, span.start + high))
        position += len(span)
    return tuple(parts)


def count_shared(first: Iterable[TapeSpan], second: Iterable[TapeSpan]) -> int:
    """Return the number of items with which both views begin."""
    shared = 0
    for one, other in zip(first, second, strict=False):
        if (one.tape, one.start) != (other.tape, other.start):
            break
        shared += min(len(one), len(other))
        if len(one) != len(other):
            break
    return shared


def join_spans(*views: Iterable[TapeSpan]) -> TapeSpans:
    """Concatenate views. Adjacent spans are merged and empty ones removed."""
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
    """Return, for each tape, the highest ``stop`` of its spans."""
    ends: dict[int, int] = {}
    for span in spans:
        ends[span.tape] = max(ends.get(span.tape, 0), span.stop)
    return ends


def get_ranges_on_tape(spans: Iterable[TapeSpan], tape: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of one tape that a view contains."""
    return tuple((span.start, span.stop) for span in spans if span.tape == tape and len(span))


def iter_gaps(ranges: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a tape before ``end`` that none of ``ranges`` covers, in order."""
    place = 0
    for start, stop in sorted(ranges):
        if place < min(start, end):
            yield place, min(start, end)
        place = max(place, stop)
    if place < end:
        yield place, end


def find_position(spans: Iterable[TapeSpan], tape: int, seq: int) -> int | None:
    """Return the position of a stored item in a view, or ``None`` if the view does not contain it."""
    position = 0
    for span in spans:
        if span.tape == tape and span.start <= seq < span.stop:
            return position + seq - span.start
        position += len(span)
    return None
