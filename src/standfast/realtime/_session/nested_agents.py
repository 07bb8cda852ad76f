"""Agents as tools of the agent that speaks: a text run inside of a call, which may have to ask a person itself.

The run is the same as one nested in another run. While it waits, the call keeps its state, and the session asks: every
question has an id of its own, made of the call's and the nested call's.
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
from standfast.runs.core.approvals import UserDecision, apply_decision
from standfast.runs.core.state import CallRecord, State
from standfast.runs.items import ToolApprovalItem
from standfast.runs.nested_run import run_nested
from standfast.tool_calls.call import ToolCall
from standfast.tool_calls.execution import CallSuspended


@dataclass(eq=False)
class NestedApproval:
    """A call that a nested agent wants to make."""

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
    """Makes the calls of tools that are agents, and has the questions that these wait for."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._run_id = new_id("run")
        self._pending: dict[str, NestedApproval] = {}
        self._standing_approvals: dict[str, Approvals] = {}

    @property
    def pending_approval_ids(self) -> tuple[str, ...]:
        return tuple(self._pending)

    async def execute_call(self, tracked_call: TrackedCall, call: ToolCall) -> ToolCallResult:
        """Run the agent to its end, with a person's decisions in between if it needs them."""
        outer = self._build_outer_run(tracked_call, call)
        again = False
        while True:
            (before,) = outer.state.calls
            perform = partial(run_nested, outer, call, partial(_save_child_state, outer), before.child)
            try:
                return await tool_call_outputs.execute_call(
                    self._ctx, tracked_call, call, perform=perform, resumed=again
                )
            except CallSuspended:
                tracked_call.running, again = False, True
            await self._request_approvals(tracked_call, call, outer)

    def decide(
        self, approval_id: str, user_decision: approvals.ApprovalDecision, *, always: bool
    ) -> TrackedCall | None:
        """Answer a question; ``None`` if nobody asks it any more."""
        decision = UserDecision(user_decision.approved, always, message=user_decision.message)
        question = self._pending.get(approval_id)
        if question is None:
            return None
        answered = [other for other in self._pending.values() if other is question]
        if always:
            answered = [other for other in self._pending.values() if other.is_same_tool_as(question)]
        for each in answered:
            del self._pending[each.id]
            each.decision.set_result(decision)
            if not any(other.tracked_call is each.tracked_call for other in self._pending.values()):
                each.tracked_call.detached.clear()
        return question.tracked_call

    def _build_outer_run(self, tracked_call: TrackedCall, call: ToolCall) -> ActiveRun:
        """What a nested run sees of the session: as if the session were a run in the middle of this call."""
        waiting = CallRecord(call.id, 0, call.ref)
        disabled = self._ctx.run_config.get("tracing_disabled", False)
        outer = ActiveRun(
            State(self._run_id, "", calls=(waiting,)),
            graph=AgentGraph(tracked_call.resolved_agent.agent),
            context=self._ctx.run_context,
            config=RunConfig(tracing_disabled=disabled),
        )
        outer.standing_decisions = tuple(self._get_standing_approvals(call).list_decisions())
        return outer

    async def _request_approvals(self, tracked_call: TrackedCall, call: ToolCall, outer: ActiveRun) -> None:
        """Let people decide about everything that the nested run waits for."""
        room = self._ctx
        questions = [await self._make_approval(tracked_call, item, outer) for item in outer.get_interruptions()]
        for question in questions:
            self._pending[question.id] = question
            agent, arguments = question.item.agent, question.item.arguments or ""
            room.emit(RealtimeToolApprovalRequired(agent, question.tool, question.id, arguments, room.info))
        tracked_call.detached.set()
        patience = room.run_config.get("tool_execution", {}).get("approval_timeout")
        await asyncio.wait([question.decision for question in questions], timeout=patience)
        late = [question for question in questions if self._pending.pop(question.id, None) is not None]
        for question in late:
            question.decision.set_result(UserDecision(False, message=APPROVAL_EXPIRED_MESSAGE))
            room.emit(RealtimeToolApprovalExpired(question.item.agent, question.tool, question.id, room.info))
        for question in questions:
            decision = question.decision.result()
            outer.state = apply_decision(outer.state, question.item, decision)
            if decision.always:
                self._remember_decision(call, question.item, decision)
        outer.standing_decisions = tuple(self._get_standing_approvals(call).list_decisions())

    async def _make_approval(
        self, tracked_call: TrackedCall, item: ToolApprovalItem, outer: ActiveRun
    ) -> NestedApproval:
        box, ref = await outer.get_toolbox(item.agent_path or ""), ToolRef.from_approval(item)
        tool: Any = box.find_tool(ref) or box.find_hosted_mcp(ref.namespace)
        return NestedApproval("/".join((*item.route, item.call_id or "")), tracked_call, item, tool)

    def _get_standing_approvals(self, call: ToolCall) -> Approvals:
        return self._standing_approvals.setdefault(call.owner, Approvals())

    def _remember_decision(self, call: ToolCall, item: ToolApprovalItem, decision: UserDecision) -> None:
        """What was decided for ever holds for the next run of the agent as well."""
        scratch: RunContextWrapper[Any] = RunContextWrapper(None, approvals=Approvals())
        decision.apply_to(scratch, item)
        for known in scratch.approvals.list_decisions():
            if known.call_id is None:
                self._get_standing_approvals(call).record(known.tool, None, known.decision, owner=known.owner)


def _save_child_state(outer: ActiveRun, child: State) -> None:
    (call,) = outer.state.calls
    outer.state = replace(outer.state, calls=(replace(call, status="waiting", child=child),))
