"""A run, made again from what was written down about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from holdfast.base.usage import Usage
from holdfast.runs import steps
from holdfast.runs.apply import apply
from holdfast.runs.contexts import SavedContext
from holdfast.runs.state import State, UsageRecord
from holdfast.runs.usage import usage_of
from holdfast.runtime.records import ENDED, Asked, JournalEntry, Note, Rested, Settled
from holdfast.runtime.setbacks import Setbacks

Place = tuple[tuple[str, ...], str]
"""A call: the route to its run, and its id."""


@dataclass(frozen=True)
class Cut:
    """How much of a run folds have: entries of its journal, and what these came to."""

    length: int = 0
    transcript: int = 0
    responses: int = 0
    verdicts: int = 0
    consumed: int = 0


@dataclass
class Replayed:
    """A run as its journal tells it. ``asked`` are the questions about calls that nobody has answered."""

    state: State
    context: SavedContext | None
    consumed: list[UsageRecord] = field(default_factory=list)
    """What each answer of a model cost, those of nested runs included."""
    asked: dict[Place, str] = field(default_factory=dict)
    length: int = 1
    """How many entries of the journal this is."""
    context_at: int = 1
    """Which of them has the context."""
    setbacks: Setbacks = field(default_factory=Setbacks)
    cut: Cut = Cut()
    """How much of it folds have."""

    @property
    def usage(self) -> Usage:
        found = Usage()
        for record in self.consumed:
            found.add(usage_of(record))
        return found

    def go_on(self, entries: Iterable[JournalEntry]) -> None:
        """Take in what happened next."""
        for entry in entries:
            self._take_in(entry)

    def _take_in(self, entry: JournalEntry) -> None:
        it = entry.it
        self.length += 1
        self.setbacks = self.setbacks.after(entry)
        if entry.trace is not None:
            self.state = replace(self.state, trace=entry.trace)
        if entry.context is not None:
            self.context, self.context_at = entry.context, self.length
        if isinstance(it, Asked):
            self.asked[entry.route, it.call_id] = it.approval_id
        elif isinstance(it, Settled):
            self.asked.pop((entry.route, it.decided.call_id), None)
            self.state = taken_in(self.state, entry.route, it.decided)
        elif isinstance(it, Rested):
            if it.status in ENDED:
                self.asked.clear()  # they were taken back with its end
        elif not isinstance(it, Note):
            self.state = taken_in(self.state, entry.route, it, stored=entry.stored)
            if isinstance(it, steps.Answered):
                self.consumed.append(it.response.usage)


def taken_in(state: State, route: tuple[str, ...], outcome: steps.Outcome, *, stored: int | None = None) -> State:
    """The state after an outcome of the nested run at the end of the route, or of the run itself."""
    if route:
        calls = tuple(
            replace(call, child=taken_in(call.child, route[1:], outcome, stored=stored))
            if call.id == route[0] and call.child is not None
            else call
            for call in state.calls
        )
        return replace(state, calls=calls)
    after = apply(state, _with_children(outcome, state))
    return after if stored is None else apply(after, steps.Stored(stored))


def without_children(outcome: steps.Outcome) -> steps.Outcome:
    """The outcome as it is written down: what happened in nested runs has entries of its own."""
    calls: Any = getattr(outcome, "calls", ())
    if not any(call.child for call in calls):
        return outcome
    return replace(outcome, calls=tuple(replace(call, child=None) for call in calls))


def _with_children(outcome: steps.Outcome, state: State) -> steps.Outcome:
    if not isinstance(outcome, steps.Judged | steps.CallsMade):
        return outcome
    known = {call.position: call.child for call in state.calls if call.child is not None}
    if not known:
        return outcome
    calls = tuple(
        call if call.status == "done" else replace(call, child=known.get(call.position)) for call in outcome.calls
    )
    return replace(outcome, calls=calls)
