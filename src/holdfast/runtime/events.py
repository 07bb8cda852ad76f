"""What programs see of a run's journal."""

from typing import Any

import msgspec

from holdfast.runs import steps
from holdfast.runtime.contract import Event
from holdfast.runtime.records import (
    Asked,
    Begun,
    Called,
    CancelAsked,
    JournalEntry,
    Outlived,
    Owned,
    Rested,
    Settled,
)
from holdfast.store.contract import Logged

_TYPES: dict[type, str] = {
    steps.InputTaken: "input.taken",
    steps.Answered: "model.answered",
    steps.Judged: "calls.judged",
    steps.Started: "calls.started",
    steps.CallsMade: "calls.made",
    steps.HandedOver: "agent.handed_over",
    steps.NestedBegun: "agent.nested",
    Begun: "run.queued",
    Asked: "approval.requested",
    Settled: "approval.decided",
    CancelAsked: "run.cancel_requested",
    Called: "run.resumed",
    Outlived: "run.outlived",
}


def event_of(run_id: str, row: Logged, entry: JournalEntry) -> Event:
    """The event that a journal entry is: its sequence number is the entry's."""
    data = _data(entry)
    if entry.route:
        data["route"] = list(entry.route)
    return Event(row.seq, run_id, _type(entry.it), data, row.at)


def _type(it: Any) -> str:
    if isinstance(it, Rested):
        return {"woken": "run.suspended", "blocked": "run.waiting"}.get(it.status, f"run.{it.status}")
    if isinstance(it, Owned):
        return f"run.{it.how}"
    return _TYPES.get(type(it), f"step.{type(it).__name__.lower()}")


def _data(entry: JournalEntry) -> dict[str, Any]:
    it = entry.it
    match it:
        case steps.InputTaken() | steps.HandedOver():
            return {"items": [one.item for one in it.entries]} | _agent(it)
        case steps.Answered():
            return {"items": [one.item for one in it.entries], "usage": msgspec.to_builtins(it.response.usage)}
        case steps.Judged():
            return {"calls": [_call(call) for call in it.calls]}
        case steps.CallsMade():
            items = [one.item for one in it.entries]
            return {"calls": [_call(call) for call in it.calls], "items": items} | _error(it.error)
        case steps.Started():
            return {"call_ids": list(it.call_ids)}
        case steps.NestedBegun():
            return {"call_id": it.call_id, "agent": it.child.agent}
        case steps.Finished():
            return {"items": [one.item for one in it.entries]} | _error(it.error)
        case Begun():
            return {"input": it.input, "parent": it.parent, "at": it.at}
        case Settled():
            return {"approval_id": it.approval_id, "verdict": it.verdict, "by": it.by, "call_id": it.decided.call_id}
        case Asked():
            return {
                "approval_id": it.approval_id,
                "call_id": it.call_id,
                "tool": str(it.tool),
                "kind": "uncertain" if it.uncertain else "approval",
            }
        case Owned() | Outlived() | Rested() | CancelAsked() | Called():
            plain: dict[str, Any] = msgspec.to_builtins(it)
            plain.pop("type", None)
            return plain
    return {}


def _agent(it: Any) -> dict[str, Any]:
    return {"agent": it.agent} if isinstance(it, steps.HandedOver) else {}


def _error(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error": str(error)}


def _call(call: Any) -> dict[str, Any]:
    return {"call_id": call.id, "tool": str(call.tool), "status": call.status}
