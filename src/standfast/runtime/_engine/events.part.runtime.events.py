"""What programs see of a run's journal."""

from typing import Any

import msgspec

from holdfast.runs import steps
from holdfast.runtime.contract import Event
from holdfast.runtime.records import (
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    JournalEntry,
    LeaseLossReported,
    ResumeRequested,
    RunClaimed,
    RunQueued,
    RunStopped,
)
from holdfast.store.contract import LogEntry

_EVENT_TYPES: dict[type, str] = {
    steps.InputTaken: "input.taken",
    steps.ModelAnswered: "model.answered",
    steps.ApprovalsChecked: "calls.judged",
    steps.CallsStarted: "calls.started",
    steps.CallsInvoked: "calls.made",
    steps.HandoffPerformed: "agent.handed_over",
    steps.NestedRunStarted: "agent.nested",
    RunQueued: "run.queued",
    ApprovalRequested: "approval.requested",
    ApprovalDecided: "approval.decided",
    CancelRequested: "run.cancel_requested",
    ResumeRequested: "run.resumed",
    LeaseLossReported: "run.outlived",
}


def make_event(run_id: str, row: LogEntry, entry: JournalEntry) -> Event:
    """The event that a journal entry is: its sequence number is the entry's."""
    data = _build_data(entry)
    if entry.route:
        data["route"] = list(entry.route)
    return Event(row.seq, run_id, _get_event_type(entry.it), data, row.at)


def _get_event_type(it: Any) -> str:
    if isinstance(it, RunStopped):
        return {"woken": "run.suspended", "blocked": "run.waiting"}.get(it.status, f"run.{it.status}")
    if isinstance(it, RunClaimed):
        return f"run.{it.how}"
    return _EVENT_TYPES.get(type(it), f"step.{type(it).__name__.lower()}")


def _build_data(entry: JournalEntry) -> dict[str, Any]:
    it = entry.it
    match it:
        case steps.InputTaken() | steps.HandoffPerformed():
            return {"items": [one.item for one in it.entries]} | _build_agent_data(it)
        case steps.ModelAnswered():
            return {"items": [one.item for one in it.entries], "usage": msgspec.to_builtins(it.response.usage)}
        case steps.ApprovalsChecked():
            return {"calls": [_build_call_data(call) for call in it.calls]}
        case steps.CallsInvoked():
            items = [one.item for one in it.entries]
            return {"calls": [_build_call_data(call) for call in it.calls], "items": items} | _build_error_data(
                it.error
            )
        case steps.CallsStarted():
            return {"call_ids": list(it.call_ids)}
        case steps.NestedRunStarted():
            return {"call_id": it.call_id, "agent": it.child.agent}
        case steps.Finished():
            return {"items": [one.item for one in it.entries]} | _build_error_data(it.error)
        case RunQueued():
            return {"input": it.input, "parent": it.parent, "at": it.at}
        case ApprovalDecided():
            return {"approval_id": it.approval_id, "verdict": it.verdict, "by": it.by, "call_id": it.decided.call_id}
        case ApprovalRequested():
            return {
                "approval_id": it.approval_id,
                "call_id": it.call_id,
                "tool": str(it.tool),
                "kind": "uncertain" if it.uncertain else "approval",
            }
        case RunClaimed() | LeaseLossReported() | RunStopped() | CancelRequested() | ResumeRequested():
            plain: dict[str, Any] = msgspec.to_builtins(it)
            plain.pop("type", None)
            return plain
    return {}


def _build_agent_data(it: Any) -> dict[str, Any]:
    return {"agent": it.agent} if isinstance(it, steps.HandoffPerformed) else {}


def _build_error_data(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error": str(error)}


def _build_call_data(call: Any) -> dict[str, Any]:
    return {"call_id": call.id, "tool": str(call.tool), "status": call.status}
