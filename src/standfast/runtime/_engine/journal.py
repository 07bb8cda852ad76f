"""A run, made again from what was written down about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from standfast.base.usage import Usage
from standfast.runs.core import steps
from standfast.runs.core.context import SavedContext
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.core.state import State, UsageRecord
from standfast.runs.core.transitions import apply_at_route, apply_outcome
from standfast.runtime._engine.crash_loop import CrashCount
from standfast.runtime._engine.records import (
    ENDED_STATUSES,
    ApprovalDecided,
    ApprovalRequested,
    JournalEntry,
    RunNote,
    RunStopped,
)

CallKey = tuple[tuple[str, ...], str]
"""A call: the route to its run, and its id."""


@dataclass(frozen=True)
class SnapshotCoverage:
    """How much of a run folds have: entries of its journal, and what these came to."""

    length: int = 0
    transcript: int = 0
    responses: int = 0
    guardrails: int = 0
    usage_records: int = 0


@dataclass
class ReplayedRun:
    """A run as its journal tells it. ``asked`` are the questions about calls that nobody has answered."""

    state: State
    context: SavedContext | None
    usage_records: list[UsageRecord] = field(default_factory=list)
    """What each answer of a model cost, those of nested runs included."""
    pending_approvals: dict[CallKey, str] = field(default_factory=dict)
    length: int = 1
    """How many entries of the journal this is."""
    context_position: int = 1
    """Which of them has the context."""
    crashes: CrashCount = field(default_factory=CrashCount)
    coverage: SnapshotCoverage = SnapshotCoverage()
    """How much of it folds have."""

    @property
    def usage(self) -> Usage:
        found = Usage()
        for record in self.usage_records:
            found.add(from_usage_record(record))
        return found

    def apply_entries(self, entries: Iterable[JournalEntry]) -> None:
        """Take in what happened next."""
        for entry in entries:
            self._apply_entry(entry)

    def _apply_entry(self, entry: JournalEntry) -> None:
        it = entry.it
        self.length += 1
        self.crashes = self.crashes.advance(entry)
        if entry.trace is not None:
            self.state = replace(self.state, trace=entry.trace)
        if entry.context is not None:
            self.context, self.context_position = entry.context, self.length
        if isinstance(it, ApprovalRequested):
            self.pending_approvals[entry.route, it.call_id] = it.approval_id
        elif isinstance(it, ApprovalDecided):
            self.pending_approvals.pop((entry.route, it.decided.call_id), None)
            self.state = replay_outcome(self.state, entry.route, it.decided)
        elif isinstance(it, RunStopped):
            if it.status in ENDED_STATUSES:
                self.pending_approvals.clear()  # they were taken back with its end
        elif not isinstance(it, RunNote):
            self.state = replay_outcome(self.state, entry.route, it, stored=entry.stored)
            if isinstance(it, steps.ModelAnswered):
                self.usage_records.append(it.response.usage)


def replay_outcome(state: State, route: tuple[str, ...], outcome: steps.Outcome, *, stored: int | None = None) -> State:
    """Return the state after a recorded outcome of the nested run at the end of the route, or of the run itself."""

    def apply(run: State) -> State:
        after = apply_outcome(run, _restore_children(outcome, run))
        return after if stored is None else apply_outcome(after, steps.ItemsStored(stored))

    return apply_at_route(state, route, apply)


def strip_children(outcome: steps.Outcome) -> steps.Outcome:
    """The outcome as it is written down: what happened in nested runs has entries of its own."""
    calls: Any = getattr(outcome, "calls", ())
    if not any(call.child for call in calls):
        return outcome
    return replace(outcome, calls=tuple(replace(call, child=None) for call in calls))


def _restore_children(outcome: steps.Outcome, state: State) -> steps.Outcome:
    if not isinstance(outcome, steps.ApprovalsChecked | steps.CallsInvoked):
        return outcome
    known = {call.position: call.child for call in state.calls if call.child is not None}
    if not known:
        return outcome
    calls = tuple(
        call if call.status == "done" else replace(call, child=known.get(call.position)) for call in outcome.calls
    )
    return replace(outcome, calls=calls)
