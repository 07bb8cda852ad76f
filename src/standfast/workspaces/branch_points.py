"""Points of a conversation, and the version that its workspace had there.

A call notes where the session was when it was made (``Cell.place``), and its output is among the items that follow, so
that a call is found again by its place even if models use an id twice, and even if its items were summarized since.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from standfast.store.records import Generation
from standfast.store.tape import TapeSpans
from standfast.workspaces.versions import (
    Cell,
    WorkspaceVersion,
    choose_version,
    find_version,
    select_versions,
    trace_line,
)


class ViewRow(msgspec.Struct, frozen=True):
    """An item of a session: where it is stored, and the id of the call if it is an output."""

    tape: int
    seq: int
    call_id: str = ""


class SessionPoint(msgspec.Struct, frozen=True):
    """The point of a session after the first ``length`` of ``rows``, all items that it has or had in a generation.

    ``tape`` is its own. ``closed_at`` has the place on it at which each earlier generation was replaced by the next,
    and the place after the items that were written for that.
    """

    rows: Sequence[ViewRow]
    length: int
    tape: int
    generation: int
    closed_at: dict[int, tuple[int, int]]

    @property
    def outputs(self) -> list[str]:
        return [row.call_id for row in self.rows[: self.length] if row.call_id]


class RunPoint(msgspec.Struct, frozen=True):
    """The point of a run that has these outputs, in a part of its session that may have been rewound since.

    ``place`` is that of a call made then, see :class:`~standfast.workspaces.versions.Cell`, if there is a session.
    ``pending`` are those outputs that the run ``run_id`` has made and that were not in the session yet. A fork gets
    them at ``stored_at``, a place in its own session.
    """

    outputs: Sequence[str]
    place: tuple[int, int, int] | None = None
    run_id: str = ""
    pending: Sequence[str] = ()
    stored_at: tuple[int, int, int] | None = None


def find_closings(generations: Sequence[Generation], view: TapeSpans, tape: int) -> dict[int, tuple[int, int]]:
    """Return where each generation was replaced: before and after the items that replaced others.

    ``view`` is what the session shows now, and ``tape`` its own.
    """
    closings, end = dict[int, tuple[int, int]](), 0
    following = [*(entry.spans for entry in generations[1:]), view]
    for entry, spans in zip(generations, following, strict=False):
        end = max([end, *(span.stop for span in entry.spans if span.tape == tape)])
        added = (
            max(span.start, end) for span in spans if span.tape == tape and span.start < entry.resumes_at <= span.stop
        )
        closings[entry.number] = next(added, entry.resumes_at), entry.resumes_at
        end = max(end, entry.resumes_at)
    return closings


def choose_at_point(versions: Sequence[WorkspaceVersion], number: int, point: SessionPoint | RunPoint) -> int:
    """Return the version that a conversation had at a point; ``number`` is the one that it has now."""
    if isinstance(point, RunPoint):
        if point.place is not None:
            return _choose_at_place(versions, point, point.place)
        return find_version(trace_line(versions, number), point.outputs)
    if point.generation not in point.closed_at:
        return _choose_in_line(versions, number, point)
    base = _find_last(versions, point)
    earlier = [one for one in versions if one.number <= base]
    if earlier and earlier[-1].cell.place is None:  # an earlier release made it: the ids decide
        return choose_version(earlier, point.outputs)
    return _choose_in_line(versions, base, point)


def find_pending(line: Sequence[WorkspaceVersion], point: RunPoint) -> set[int]:
    """Return the versions of a line whose outputs were not in the session yet."""
    if point.place is None:
        return set()
    tape, *end = point.place
    since = []
    for one in line:
        found, *time = one.cell.called or one.cell.place or (tape, 0, -1)
        if found in (0, tape) and time >= end:
            since.append(one)
    return {one.number for one in select_versions(reversed(since), point.pending)}


def is_by_program(cell: Cell) -> bool:
    """Return whether the program has made a version, and neither a call nor a change of the conversation."""
    return not cell.call and not cell.called and (cell.code is not None or cell.went_back)


def choose_before_run(line: Sequence[WorkspaceVersion], run_id: str) -> int:
    """Return the version of a line before those that a run has made."""
    first = next((index for index, one in enumerate(line) if one.cell.run_id == run_id), len(line))
    return line[first - 1].number if first else 0


# --- in sessions ------------------------------------------------------------------------------------


def _choose_in_line(versions: Sequence[WorkspaceVersion], number: int, point: SessionPoint) -> int:
    removed = {row.tape: row.seq for row in reversed(point.rows[point.length :])}
    line = trace_line(versions, _find_before_return(versions, number, removed))
    if any(one.cell.place is None for one in line):  # an earlier release made it: the ids decide
        return find_version(line, point.outputs)
    if not point.length:
        return _choose_before_items(line, point)
    rows = _find_rows(line, point)
    for index, version in enumerate(line):
        tape, _, seq = version.cell.called or version.cell.place or (0, 0, 0)
        by_program = not version.cell.call
        if seq > removed.get(tape, seq) if by_program else rows.get(version.number, -1) >= point.length:
            return line[index - 1].number if index else 0
    return line[-1].number if line else 0


def _find_before_return(versions: Sequence[WorkspaceVersion], number: int, removed: dict[int, int]) -> int:
    """Return the version that the conversation had before the program went back, if it did so after the point."""
    by_number, found = {one.number: one for one in versions}, number
    while (version := by_number.get(number)) is not None and version.cell.parent < number:
        tape, _, seq = version.cell.place or (0, 0, 0)
        number = version.cell.parent
        if version.cell.went_back and seq > removed.get(tape, seq):
            found = number = version.number - 1
    return found


def _choose_before_items(line: Sequence[WorkspaceVersion], point: SessionPoint) -> int:
    """Return the version that the program had made before the session had its first item."""
    number = 0
    for version in line:
        tape, generation, seq = version.cell.place or (0, 0, 0)
        if version.cell.call or tape not in (0, point.tape) or (generation, seq) != (0, 0):
            break
        number = version.number
    return number


def _find_rows(line: Sequence[WorkspaceVersion], point: SessionPoint) -> dict[int, int]:
    """Return the index of the output of each call, or of what has replaced it, by version.

    An output was written after its call was made, and before that generation was replaced by the next one, if
    anything was written in between. Of the calls with one id the latest is matched first: others may be summarized.
    """
    found: dict[int, int] = {}
    taken: dict[int, tuple[Any, ...]] = {}
    for version in reversed(line):
        cell = version.cell
        if not cell.call:
            continue
        root = cell.call.partition(":")[0]
        tape, generation, start = cell.called or cell.place or (0, 0, 0)
        closing = point.closed_at.get(generation) if tape in (0, point.tape) else None
        outer = (version.number,) if root == cell.call else (cell.run_id, root, tape, generation, start)
        for index, row in enumerate(point.rows):
            is_open = row.tape != point.tape or closing is None or row.seq < closing[0] or start == closing[0]
            # A nested agent makes several calls in one, and some of them before a fork.
            is_free = taken.get(index, outer) == outer or (root != cell.call and cell.called == (row.tape, 0, 0))
            if row.call_id == root and tape in (0, row.tape) and row.seq >= start and is_open and is_free:
                found[version.number], taken[index] = index, outer
                break
        else:
            found[version.number] = _find_summary(point, generation if tape in (0, point.tape) else 0)
    return found


def _find_summary(point: SessionPoint, generation: int) -> int:
    """Return the index of the first item that has replaced others of this generation or a later one, or -1."""
    written = [places for number, places in point.closed_at.items() if number >= generation]
    for index, row in enumerate(point.rows):
        if row.tape == point.tape and any(start <= row.seq < end for start, end in written):
            return index
    return -1


def _find_last(versions: Sequence[WorkspaceVersion], point: SessionPoint) -> int:
    """Return the latest version that was made in the generation of the point, or before."""
    end = point.generation, point.closed_at[point.generation][0]
    own = [(tuple(place[1:]), one) for one in versions if (place := one.cell.place) and place[0] == point.tape]
    if not own:  # all of them are older than the session
        return versions[-1].number if versions else 0
    # What was made just when the generation was replaced has made the next one, unless it was the program.
    made = [one.number for time, one in own if time < end or (time == end and is_by_program(one.cell))]
    return max(made, default=own[0][1].number - 1)


# --- in runs ----------------------------------------------------------------------------------------


def _choose_at_place(versions: Sequence[WorkspaceVersion], point: RunPoint, place: tuple[int, int, int]) -> int:
    tape, *end = place
    own = [([*found[1:]], one) for one in versions if (found := one.cell.place) is not None and found[0] == tape]
    made = [
        (time, one.number)
        for time, one in own
        if time >= end and one.cell.run_id == point.run_id and find_version([one], point.pending)
    ]
    if made:  # a later call may have the same id
        first = min(time for time, _ in made)
        return max(number for time, number in made if time == first)
    before = [one.number for time, one in own if time < end]
    # The program may have run cells there before the run made its next call.
    there = (one for time, one in own if time == end)
    before += [one.number for one in takewhile(lambda one: is_by_program(one.cell), there)]
    if not versions:
        return 0
    base = max(before, default=own[0][1].number - 1 if own else versions[-1].number)  # without own, all are older
    earlier = [one for one in versions if one.number <= base]
    if earlier and earlier[-1].cell.place is None:  # an earlier release made it: the ids decide
        return choose_version(earlier, point.outputs)
    return base
