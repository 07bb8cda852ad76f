"""Rebuild a run from the entries of its journal: how each entry changes it. See also ``replay.py``."""

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
from standfast.runs.session_io import list_stored_items
from standfast.runtime._engine.crash_loop import CrashCount
from standfast.runtime._engine.records import (
    ENDED_STATUSES,
    ApprovalDecided,
    ApprovalRequested,
    JournalEntry,
    RunClaimed,
    RunNote,
    RunStopped,
    SessionCompacted,
    SessionMark,
)

CallKey = tuple[tuple[str, ...], str]
"""The key of a call: the route to its run, and its id."""


@dataclass(frozen=True)
class SnapshotCoverage:
    """How much of a run its snapshots cover: the entries of its journal, and the lengths of its lists."""

    length: int = 0
    transcript: int = 0
    responses: int = 0
    guardrails: int = 0
    usage_records: int = 0


@dataclass
class ReplayedRun:
    """A run rebuilt from its journal. ``pending_approvals`` has the ids of its undecided approvals, by call."""

    state: State
    context: SavedContext | None
    usage_records: list[UsageRecord] = field(default_factory=list)
    """The usage of each model response, those of nested runs included."""
    pending_approvals: dict[CallKey, str] = field(default_factory=dict)
    length: int = 1
    """The number of journal entries that were applied."""
    context_position: int = 1
    """The number of the entry with the latest context."""
    crashes: CrashCount = field(default_factory=CrashCount)
    session_marks: list[tuple[SessionMark, int]] = field(default_factory=list)
    """The session whenever the run was claimed or compacted it, with the number of the run's own items in it."""
    compacted: bool = False
    """Whether the run has compacted its session."""
    coverage: SnapshotCoverage = SnapshotCoverage()
    """How much of the run the snapshots cover."""

    @property
    def usage(self) -> Usage:
        total = Usage()
        for record in self.usage_records:
            total.add(from_usage_record(record))
        return total

    def apply_entries(self, entries: Iterable[JournalEntry]) -> None:
        """Apply the next entries of the journal."""
        for entry in entries:
            self._apply_entry(entry)

    def _apply_entry(self, entry: JournalEntry) -> None:
        content = entry.content
        self.length += 1
        self.crashes = self.crashes.advance(entry)
        if entry.trace is not None:
            self.state = replace(self.state, trace=entry.trace)
        if entry.context is not None:
            self.context, self.context_position = entry.context, self.length
        if isinstance(content, ApprovalRequested):
            self.pending_approvals[entry.route, content.call_id] = content.approval_id
        elif isinstance(content, ApprovalDecided):
            self.pending_approvals.pop((entry.route, content.decided.call_id), None)
            self.state = replay_outcome(self.state, entry.route, content.decided)
        elif isinstance(content, RunClaimed | SessionCompacted):
            self.compacted = self.compacted or isinstance(content, SessionCompacted)
            if content.session is not None:
                self.session_marks.append((content.session, len(list_stored_items(self.state))))
        elif isinstance(content, RunStopped):
            if content.status in ENDED_STATUSES:
                self.pending_approvals.clear()  # they were withdrawn when the run ended
        elif not isinstance(content, RunNote):
            self.state = replay_outcome(self.state, entry.route, content, stored=entry.stored)
            if isinstance(content, steps.ModelAnswered):
                self.usage_records.append(content.response.usage)


def replay_outcome(state: State, route: tuple[str, ...], outcome: steps.Outcome, *, stored: int | None = None) -> State:
    """Return the state after a recorded outcome of the nested run at the end of the route, or of the run itself."""

    def apply(run: State) -> State:
        after = apply_outcome(run, _restore_children(outcome, run))
        return after if stored is None else apply_outcome(after, steps.ItemsStored(stored))

    return apply_at_route(state, route, apply)


def strip_children(outcome: steps.Outcome) -> steps.Outcome:
    """Return the outcome without the states of nested runs, which have journal entries of their own."""
    calls: Any = getattr(outcome, "calls", ())
    if not any(call.child for call in calls):
        return outcome
    return replace(outcome, calls=tuple(replace(call, child=None) for call in calls))


def _restore_children(outcome: steps.Outcome, state: State) -> steps.Outcome:
    if not isinstance(outcome, steps.ApprovalsChecked | steps.CallsInvoked):
        return outcome
    children = {call.position: call.child for call in state.calls if call.child is not None}
    if not children:
        return outcome
    calls = tuple(
        call if call.status == "done" else replace(call, child=children.get(call.position)) for call in outcome.calls
    )
    return replace(outcome, calls=calls)
