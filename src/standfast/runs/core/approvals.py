"""What a person decided about calls, kept where it belongs: with the run that asks."""

import json
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from standfast.agents.approvals import ApprovalDecision, Approvals
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.runs.core.state import CallRecord, State
from standfast.runs.core.steps import CallDecided
from standfast.runs.core.transitions import apply_at_route, apply_outcome
from standfast.runs.items import ToolApprovalItem


@dataclass(frozen=True)
class UserDecision:
    """A yes, perhaps with other ``arguments``, or a no with a ``message``; ``always`` is about every such call."""

    approved: bool
    always: bool = False
    arguments: str | None = None
    message: str | None = None

    def to_approval_decision(self) -> ApprovalDecision:
        return ApprovalDecision(self.approved, self.message, self.arguments)

    def apply_to(self, context: RunContextWrapper[Any], item: ToolApprovalItem) -> None:
        """Write it down among the decisions of a run."""
        if self.approved:
            context.approve_tool(item, self.always, arguments=self.arguments)
        else:
            context.reject_tool(item, self.always, self.message)


def encode_arguments(arguments: Any) -> str | None:
    """A person's own arguments as JSON, if they are some."""
    if arguments is None:
        return None
    try:
        edited = arguments if isinstance(arguments, str) else json.dumps(arguments)
        given = json.loads(edited)
    except (TypeError, ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise UserError("the arguments of a call must be a JSON object")
    return edited


def find_waiting_call(state: State, item: ToolApprovalItem) -> CallRecord:
    """The call that the item asks about, if the run waits for that."""
    if not isinstance(item, ToolApprovalItem):
        raise UserError(f"a decision needs an approval item, not {type(item).__name__}")
    asking: State | None = state
    for step in item.route:
        asking = next((call.child for call in asking.calls if call.id == step), None) if asking else None
    for call in asking.calls if asking else ():
        if call.id == item.call_id and call.status == "waiting":
            return call
    raise UserError(f"this run does not wait for a decision about the call {item.call_id!r}")


def apply_decision(state: State, item: ToolApprovalItem, decision: UserDecision) -> State:
    """Return the run with the decision in the nested run that requested it, or in the record of an uncertain call."""
    call = find_waiting_call(state, item)

    def apply(run: State) -> State:
        if call.uncertain:
            return apply_outcome(run, CallDecided(call.id, call.tool, decision.to_approval_decision()))
        context: RunContextWrapper[Any] = RunContextWrapper(None, approvals=Approvals(list(run.approvals)))
        decision.apply_to(context, item)
        return replace(run, approvals=tuple(context.approvals.list_decisions()))

    return apply_at_route(state, item.route, apply)
