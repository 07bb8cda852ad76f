"""Span arithmetic, compared with list slicing."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.store.tape import (
    TapeSpan,
    TapeSpans,
    compute_length,
    find_position,
    get_ranges_on_tape,
    get_tape_ends,
    iter_gaps,
    join_spans,
    slice_spans,
)

often = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def spans(draw: st.DrawFn) -> TapeSpans:
    made = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 8))
        made.append(TapeSpan(draw(st.integers(1, 3)), start, start + draw(st.integers(0, 5))))
    return tuple(made)


def places(view: TapeSpans) -> list[tuple[int, int]]:
    """The (tape, seq) of each item of a view."""
    return [(span.tape, seq) for span in view for seq in range(span.start, span.stop)]


edges = st.integers(0, 40)


@often
@given(spans())
def test_length_counts_the_items_of_a_view(view: TapeSpans) -> None:
    assert compute_length(view) == len(places(view))


@often
@given(spans(), edges, edges)
def test_slicing_a_view_is_slicing_a_list(view: TapeSpans, start: int, stop: int) -> None:
    assert places(slice_spans(view, start, stop)) == places(view)[start:stop]


@often
@given(spans(), edges, edges)
def test_a_slice_has_no_empty_spans(view: TapeSpans, start: int, stop: int) -> None:
    assert all(len(span) for span in slice_spans(view, start, stop))


@often
@given(st.lists(spans(), max_size=4))
def test_joining_views_is_concatenation(views: list[TapeSpans]) -> None:
    assert places(join_spans(*views)) == [place for view in views for place in places(view)]


@often
@given(spans())
def test_joined_spans_are_neither_adjacent_nor_empty(view: TapeSpans) -> None:
    joined = join_spans(view)
    assert all(len(span) for span in joined)
    assert all((a.tape, a.stop) != (b.tape, b.start) for a, b in itertools.pairwise(joined))
    assert join_spans(joined) == joined


@often
@given(spans(), edges)
def test_the_parts_of_a_view_make_the_view(view: TapeSpans, at: int) -> None:
    assert join_spans(slice_spans(view, 0, at), slice_spans(view, at, compute_length(view))) == join_spans(view)


@often
@given(spans(), edges, edges, st.integers(0, 5))
def test_replacing_a_range_is_slice_assignment(view: TapeSpans, a: int, b: int, added: int) -> None:
    start, stop = sorted((min(a, compute_length(view)), min(b, compute_length(view))))
    new = (TapeSpan(9, 0, added),)
    expected = places(view)
    expected[start:stop] = places(new)
    assert (
        places(join_spans(slice_spans(view, 0, start), new, slice_spans(view, stop, compute_length(view)))) == expected
    )


@often
@given(spans())
def test_tape_ends_are_after_the_last_item_of_each_tape(view: TapeSpans) -> None:
    view = join_spans(view)
    ends = get_tape_ends(view)
    assert ends == {tape: max(seq for other, seq in places(view) if other == tape) + 1 for tape, _ in places(view)}


@often
@given(spans(), st.integers(1, 3), st.integers(0, 13))
def test_gaps_are_the_ranges_that_a_view_does_not_cover(view: TapeSpans, tape: int, end: int) -> None:
    gaps = list(iter_gaps(get_ranges_on_tape(view, tape), end))
    covered = {seq for other, seq in places(view) if other == tape}
    assert [seq for start, stop in gaps for seq in range(start, stop)] == [n for n in range(end) if n not in covered]
    assert all(start < stop for start, stop in gaps)
    assert all(before[1] < behind[0] for before, behind in itertools.pairwise(gaps))


@often
@given(spans(), st.integers(1, 3), st.integers(0, 13))
def test_a_position_is_an_index(view: TapeSpans, tape: int, seq: int) -> None:
    items = places(view)
    assert find_position(view, tape, seq) == (items.index((tape, seq)) if (tape, seq) in items else None)
