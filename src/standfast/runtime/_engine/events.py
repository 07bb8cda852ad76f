"""The events of a run, made from its journal."""

from typing import Any

import msgspec

from standfast.runs.core import steps
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
    WorkspaceUnsaved,
)
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
    WorkspaceUnsaved: "workspace.unsaved",
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
                "model": content.model,
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
        case WorkspaceSaved() | WorkspaceUnsaved() | WorkspaceRestored():
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
