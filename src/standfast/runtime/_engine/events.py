"""The events of a run, made from its journal, and how to follow them from any process."""

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

import msgspec

from standfast.base.time import Backoff
from standfast.runs.core import steps
from standfast.runtime._engine.context import EntryMark, RunSubscription, RuntimeContext
from standfast.runtime._engine.records import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    JournalEntry,
    LeaseLossReported,
    ResumeRequested,
    RunClaimed,
    RunQueued,
    RunStopped,
    SessionCompacted,
    WorkspaceRestored,
    WorkspaceSaved,
    decode_row,
)
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime.types import Event
from standfast.store.records import LogEntry

# Event types are public names and stay the same when a class is renamed; they are not the tags that are stored. The
# types of RunStopped and RunClaimed depend on their fields.
EVENT_TYPES: dict[type, str] = {
    steps.InputTaken: "input.taken",
    steps.ModelAnswered: "model.answered",
    steps.ApprovalsChecked: "calls.checked",
    steps.CallsStarted: "calls.started",
    steps.CallsInvoked: "calls.made",
    steps.HandoffPerformed: "agent.handed_over",
    steps.NestedRunStarted: "agent.nested",
    steps.Resumed: "step.resumed",
    steps.InputStaged: "input.staged",
    steps.ToolOutputChecked: "step.output_checked",
    steps.Finished: "step.finished",
    steps.ItemsStored: "step.stored",
    steps.CallDecided: "step.decided",
    RunQueued: "run.queued",
    ApprovalRequested: "approval.requested",
    ApprovalDecided: "approval.decided",
    CancelRequested: "run.cancel_requested",
    ResumeRequested: "run.resumed",
    LeaseLossReported: "run.lease_lost",
    WorkspaceSaved: "workspace.saved",
    WorkspaceRestored: "workspace.restored",
    SessionCompacted: "session.compacted",
}


def make_event(run_id: str, row: LogEntry, entry: JournalEntry) -> Event:
    """Return the event of a journal entry, with the sequence number of the entry."""
    data = _build_data(entry)
    if entry.route:
        data["route"] = list(entry.route)
    return Event(row.seq, run_id, _get_event_type(entry.content), data, row.at)


def _get_event_type(content: Any) -> str:
    if isinstance(content, RunStopped):
        return {"woken": "run.suspended", "blocked": "run.waiting"}.get(content.status, f"run.{content.status}")
    if isinstance(content, RunClaimed):
        return f"run.{content.how}"
    return EVENT_TYPES[type(content)]


def _build_data(entry: JournalEntry) -> dict[str, Any]:
    content = entry.content
    match content:
        case steps.InputTaken() | steps.HandoffPerformed():
            return {"items": [one.item for one in content.entries]} | _build_agent_data(content)
        case steps.ModelAnswered():
            return {
                "items": [one.item for one in content.entries],
                "usage": msgspec.to_builtins(content.response.usage),
            }
        case steps.ApprovalsChecked():
            return {"calls": [_build_call_data(call) for call in content.calls]}
        case steps.CallsInvoked():
            items = [one.item for one in content.entries]
            return {"calls": [_build_call_data(call) for call in content.calls], "items": items} | _build_error_data(
                content.error
            )
        case steps.CallsStarted():
            return {"call_ids": list(content.call_ids)}
        case steps.NestedRunStarted():
            return {"call_id": content.call_id, "agent": content.child.agent}
        case steps.Finished():
            return {"items": [one.item for one in content.entries]} | _build_error_data(content.error)
        case RunQueued():
            return {"input": content.input, "parent": content.parent, "at": content.at}
        case ApprovalDecided():
            return {
                "approval_id": content.approval_id,
                "verdict": content.verdict,
                "by": content.by,
                "call_id": content.decided.call_id,
            }
        case ApprovalRequested():
            return {
                "approval_id": content.approval_id,
                "call_id": content.call_id,
                "tool": str(content.tool),
                "kind": "uncertain" if content.uncertain else "approval",
            }
        case SessionCompacted():
            return {"replaced": content.replaced, "length": content.session.length}
        case RunClaimed() | LeaseLossReported() | RunStopped() | CancelRequested() | ResumeRequested():
            plain: dict[str, Any] = msgspec.to_builtins(content)
            plain.pop("type", None)
            plain.pop("session", None)
            return plain
        case WorkspaceSaved() | WorkspaceRestored():
            fields = {name: getattr(content, name) for name in content.__struct_fields__}
            data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
            return data
    return {}


def _build_agent_data(content: Any) -> dict[str, Any]:
    return {"agent": content.agent} if isinstance(content, steps.HandoffPerformed) else {}


def _build_error_data(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error": str(error)}


def _build_call_data(call: Any) -> dict[str, Any]:
    return {"call_id": call.id, "tool": str(call.tool), "status": call.status}


async def follow_events(ctx: RuntimeContext, run_id: str, *, after: int, stop: Collection[str]) -> AsyncIterator[Event]:
    """Yield every event with a ``seq`` above ``after``, then new ones, until the run has one of the ``stop`` statuses.

    Live events of a model response come before the event of the complete response, and after all earlier ones.
    """
    with ctx.subscriptions.subscribe(run_id) as subscription:
        reader = EventReader(ctx, run_id, after, stop)
        backoff = Backoff(maximum=ctx.poll_interval)
        while True:
            stopped = await reader.fetch()
            # Live events that precede a fetched entry are pending by now, so entries without a notification are next
            # once nothing is pending.
            while subscription.pending or reader.pending_rows:
                for event in await reader.read_next(subscription):
                    yield event
                backoff.reset()
            if stopped:
                return
            await subscription.wait(timeout=backoff.next_delay())


class EventReader:
    """The position of a reader, and the rows that it has fetched but not yielded."""

    def __init__(self, ctx: RuntimeContext, run_id: str, after: int, stop: Collection[str]) -> None:
        self._ctx, self._run_id, self._fetched, self._stop = ctx, run_id, after, stop
        self._last_mark: EntryMark = (0, 0)
        self.pending_rows: deque[tuple[LogEntry, JournalEntry]] = deque()

    async def fetch(self) -> bool:
        """Fetch new entries of the journal; return True when there is nothing new and the run has stopped."""
        # The record is read first, so that every entry it counts is in the journal by then.
        record = await self._ctx.get_run(self._run_id)
        require_unlocked(record)
        if record.journal_length <= self._fetched:
            return record.status in self._stop
        for row in await self._ctx.backend.read_journal(self._run_id, after=self._fetched):
            self._fetched = row.seq
            self.pending_rows.append((row, decode_row(row)))
        return False

    async def read_next(self, subscription: RunSubscription) -> Iterator[Event]:
        """Return the next events: a live event, or the rows before it."""
        if not subscription.pending:
            return self._drain_to(None)
        message = subscription.pending.popleft()
        if isinstance(message, Event):
            return iter((message,))
        return iter(()) if message.upto is None else await self._read_announced(message.upto)

    async def _read_announced(self, mark: EntryMark) -> Iterator[Event]:
        if mark <= self._last_mark:
            return iter(())
        if not self._has_mark(mark):
            await self.fetch()
        return self._drain_to(mark) if self._has_mark(mark) else iter(())

    def _has_mark(self, mark: EntryMark) -> bool:
        return any(entry.mark == mark for _, entry in self.pending_rows)

    def _drain_to(self, mark: EntryMark | None) -> Iterator[Event]:
        """Yield the events of the fetched rows up to the one with this mark, or of all."""
        while self.pending_rows:
            row, entry = self.pending_rows.popleft()
            self._last_mark = max(self._last_mark, entry.mark or self._last_mark)
            yield make_event(self._run_id, row, entry)
            if mark is not None and entry.mark == mark:
                return
