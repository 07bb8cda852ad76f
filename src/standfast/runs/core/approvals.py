"""What a person decided about calls, kept where it belongs: with the run that asks."""

import json
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.runs.core.state import CallRecord, State
from standfast.runs.items import ToolApprovalItem


@dataclass(frozen=True)
class UserDecision:
    """A yes, perhaps with other ``arguments``, or a no with a ``message``; ``always`` is about every such call."""

    approved: bool
    always: bool = False
    arguments: str | None = None
    message: str | None = None

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
    """The run, with the decision in the nested run that asked or, for a call that is uncertain, in its record.

    What was decided before such a call was made, or about every call of the tool, is no answer to that.
    """
    return _apply_at_route(state, item.route, item, decision, uncertain=find_waiting_call(state, item).uncertain)


def _apply_at_route(
    state: State, route: tuple[str, ...], item: ToolApprovalItem, decision: UserDecision, *, uncertain: bool
) -> State:
    if route:
        calls = tuple(
            replace(call, child=_apply_at_route(call.child, route[1:], item, decision, uncertain=uncertain))
            if call.id == route[0] and call.child
            else call
            for call in state.calls
        )
        return replace(state, calls=calls)
    if uncertain:
        calls = tuple(
            _decide_uncertain_call(call, decision) if call.id == item.call_id else call for call in state.calls
        )
        return replace(state, calls=calls)
    context: RunContextWrapper[Any] = RunContextWrapper(None, approvals=Approvals(list(state.approvals)))
    decision.apply_to(context, item)
    return replace(state, approvals=tuple(context.approvals.list_decisions()))


def _decide_uncertain_call(call: CallRecord, decision: UserDecision) -> CallRecord:
    if decision.approved:
        edited = decision.arguments if decision.arguments is not None else call.arguments
        return replace(call, status="approved", arguments=edited)
    return replace(call, status="rejected", message=decision.message)
