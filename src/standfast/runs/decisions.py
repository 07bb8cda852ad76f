"""Decisions of a person about the waiting calls of a run."""

import json
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from standfast.agents.approvals import ApprovalDecision, Approvals
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import InvalidArguments, UserError
from standfast.agents.graph import ROOT, AgentGraph
from standfast.agents.tool_identity import ToolRef, index_tools_by_ref, match_tool
from standfast.base.errors import InvalidDecision
from standfast.runs.core.state import CallRecord, State
from standfast.runs.core.steps import CallDecided
from standfast.runs.core.transitions import apply_at_route, apply_outcome
from standfast.runs.items import ToolApprovalItem
from standfast.tool_calls.arguments import parse_arguments


@dataclass(frozen=True)
class UserDecision:
    """An approval, perhaps with edited ``arguments``, or a rejection with a ``message``.

    ``always`` extends the decision to every further call of the same tool by the same agent.
    """

    approved: bool
    always: bool = False
    arguments: str | None = None
    message: str | None = None

    def to_approval_decision(self) -> ApprovalDecision:
        return ApprovalDecision(self.approved, self.message, self.arguments)

    def apply_to(self, context: RunContextWrapper[Any], item: ToolApprovalItem) -> None:
        """Record the decision in the approvals of a run."""
        if self.approved:
            context.approve_tool(item, self.always, arguments=self.arguments)
        else:
            context.reject_tool(item, self.always, self.message)


def encode_arguments(arguments: Any) -> str | None:
    """Return edited arguments as JSON text, or ``None`` if the arguments were not edited."""
    if arguments is None:
        return None
    try:
        edited = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
        parsed = json.loads(edited)
    except (TypeError, ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise UserError("the arguments of a call must be a JSON object")
    return edited


def find_waiting_call(state: State, item: ToolApprovalItem) -> CallRecord:
    """Return the call of the approval item, or raise :class:`UserError` if the run does not wait for it."""
    if not isinstance(item, ToolApprovalItem):
        raise UserError(f"a decision needs a ToolApprovalItem, got {type(item).__name__}")
    run: State | None = state
    for call_id in item.route:
        run = next((call.child for call in run.calls if call.id == call_id), None) if run else None
    for call in run.calls if run else ():
        if call.id == item.call_id and call.status == "waiting":
            return call
    raise UserError(
        f"this run does not wait for a decision about the call {item.call_id!r}: use the items of get_interruptions()"
    )


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


def check_edited_arguments(graph: AgentGraph, item: ToolApprovalItem, arguments: str) -> None:
    """Raise :class:`UserError` if edited arguments do not fit the tool.

    Those of a tool of an MCP server are checked when the run is resumed.
    """
    tools = index_tools_by_ref(getattr(graph.find(item.agent_path or ROOT), "tools", ()))
    tool = match_tool(tools, ToolRef.from_approval(item))
    if tool is None:
        return
    try:
        parse_arguments(tool, arguments, edited=True)
    except InvalidArguments as error:
        raise UserError(str(error)) from None


def require_uncertain(state: State, item: ToolApprovalItem) -> None:
    """Raise :class:`InvalidDecision` unless the call may have been made already."""
    if not find_waiting_call(state, item).uncertain:
        raise InvalidDecision(f"the call {item.call_id!r} has not been made yet: approve or reject it")
