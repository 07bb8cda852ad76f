"""Agents as tools of a realtime agent: a text run inside a tool call, which may request approvals itself.

The run is the same as one nested in another run. While it waits for approvals, the call keeps its state. Each approval
has an id made of the id of the call and the id of the nested call.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from standfast.agents import approvals
from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.agents.graph import AgentGraph
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import Tool
from standfast.base.ids import new_id
from standfast.realtime._session import tool_call_outputs
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.tool_call_outputs import APPROVAL_EXPIRED_MESSAGE, ToolCallResult, TrackedCall
from standfast.realtime.events import RealtimeToolApprovalExpired, RealtimeToolApprovalRequired
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import RunConfig
from standfast.runs.core.state import CallRecord, State
from standfast.runs.decisions import UserDecision, apply_decision
from standfast.runs.items import ToolApprovalItem
from standfast.runs.nested_run import run_nested
from standfast.tool_calls.call import CallSuspended, ToolCall


@dataclass(eq=False)
class NestedApproval:
    """A call of a nested agent that waits for approval."""

    id: str
    tracked_call: TrackedCall
    item: ToolApprovalItem
    tool: Tool
    decision: "asyncio.Future[UserDecision]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def is_same_tool_as(self, other: "NestedApproval") -> bool:
        if (
            self.tracked_call.resolved_agent is not other.tracked_call.resolved_agent
            or self.item.agent_path != other.item.agent_path
        ):
            return False
        return ToolRef.from_approval(self.item) == ToolRef.from_approval(other.item)


class NestedAgentRunner:
    """Executes the calls of tools that are agents, and owns their pending approvals."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._run_id = new_id("run")
        self._pending: dict[str, NestedApproval] = {}
        self._standing_approvals: dict[str, Approvals] = {}

    @property
    def pending_approval_ids(self) -> tuple[str, ...]:
        return tuple(self._pending)

    async def execute_call(self, tracked_call: TrackedCall, call: ToolCall) -> ToolCallResult:
        """Run the agent to its end, and request the approvals that it needs on the way."""
        outer = self._build_outer_run(tracked_call, call)
        resumed = False
        while True:
            (before,) = outer.state.calls
            perform = partial(run_nested, outer, call, partial(_save_child_state, outer), before.child)
            try:
                return await tool_call_outputs.execute_call(
                    self._ctx, tracked_call, call, perform=perform, resumed=resumed
                )
            except CallSuspended:
                tracked_call.running, resumed = False, True
            await self._request_approvals(tracked_call, call, outer)

    def decide(
        self, approval_id: str, user_decision: approvals.ApprovalDecision, *, always: bool
    ) -> TrackedCall | None:
        """Decide an approval. Returns ``None`` if it is no longer pending."""
        decision = UserDecision(user_decision.approved, always, message=user_decision.message)
        approval = self._pending.get(approval_id)
        if approval is None:
            return None
        decided = [approval]
        if always:
            decided = [other for other in self._pending.values() if other.is_same_tool_as(approval)]
        for each in decided:
            del self._pending[each.id]
            each.decision.set_result(decision)
            if not any(other.tracked_call is each.tracked_call for other in self._pending.values()):
                each.tracked_call.detached.clear()
        return approval.tracked_call

    def _build_outer_run(self, tracked_call: TrackedCall, call: ToolCall) -> ActiveRun:
        """Build the run that the nested run is part of: the session looks like a run in the middle of this call."""
        record = CallRecord(call.id, 0, call.ref)
        disabled = self._ctx.run_config.get("tracing_disabled", False)
        outer = ActiveRun(
            State(self._run_id, "", calls=(record,)),
            graph=AgentGraph(tracked_call.resolved_agent.agent),
            context=self._ctx.run_context,
            config=RunConfig(tracing_disabled=disabled),
        )
        outer.standing_decisions = tuple(self._get_standing_approvals(call).list_decisions())
        return outer

    async def _request_approvals(self, tracked_call: TrackedCall, call: ToolCall, outer: ActiveRun) -> None:
        """Request the approvals that the nested run waits for, and apply the decisions."""
        ctx = self._ctx
        requested = [await self._make_approval(tracked_call, item, outer) for item in outer.get_interruptions()]
        for approval in requested:
            self._pending[approval.id] = approval
            agent, arguments = approval.item.agent, approval.item.arguments or ""
            ctx.emit(RealtimeToolApprovalRequired(agent, approval.tool, approval.id, arguments, ctx.info))
        tracked_call.detached.set()
        timeout = ctx.run_config.get("tool_execution", {}).get("approval_timeout")
        await asyncio.wait([approval.decision for approval in requested], timeout=timeout)
        expired = [approval for approval in requested if self._pending.pop(approval.id, None) is not None]
        for approval in expired:
            approval.decision.set_result(UserDecision(False, message=APPROVAL_EXPIRED_MESSAGE))
            ctx.emit(RealtimeToolApprovalExpired(approval.item.agent, approval.tool, approval.id, ctx.info))
        for approval in requested:
            decision = approval.decision.result()
            outer.state = apply_decision(outer.state, approval.item, decision)
            if decision.always:
                self._remember_decision(call, approval.item, decision)
        outer.standing_decisions = tuple(self._get_standing_approvals(call).list_decisions())

    async def _make_approval(
        self, tracked_call: TrackedCall, item: ToolApprovalItem, outer: ActiveRun
    ) -> NestedApproval:
        toolbox, ref = await outer.get_toolbox(item.agent_path or ""), ToolRef.from_approval(item)
        tool: Any = toolbox.find_tool(ref) or toolbox.find_hosted_mcp(ref.namespace)
        return NestedApproval("/".join((*item.route, item.call_id or "")), tracked_call, item, tool)

    def _get_standing_approvals(self, call: ToolCall) -> Approvals:
        return self._standing_approvals.setdefault(call.owner, Approvals())

    def _remember_decision(self, call: ToolCall, item: ToolApprovalItem, decision: UserDecision) -> None:
        """Keep a decision made with ``always`` for the later runs of the agent."""
        scratch: RunContextWrapper[Any] = RunContextWrapper(None, approvals=Approvals())
        decision.apply_to(scratch, item)
        for known in scratch.approvals.list_decisions():
            if known.call_id is None:
                self._get_standing_approvals(call).record(known.tool, None, known.decision, owner=known.owner)


def _save_child_state(outer: ActiveRun, child: State) -> None:
    (call,) = outer.state.calls
    outer.state = replace(outer.state, calls=(replace(call, status="waiting", child=child),))
