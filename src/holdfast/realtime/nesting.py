"""Agents as tools of the agent that speaks: a text run inside of a call, which may have to ask a person itself.

The run is the same as one nested in another run. While it waits, the call keeps its state, and the session asks: every
question has an id of its own, made of the call's and the nested call's.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.agents import approvals
from holdfast.agents.approvals import Approvals
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.graph import AgentGraph
from holdfast.agents.tool_refs import ToolRef
from holdfast.agents.tools import Tool
from holdfast.base.ids import new_id
from holdfast.realtime import answering
from holdfast.realtime.answering import EXPIRED, Answer, Record
from holdfast.realtime.events import RealtimeToolApprovalExpired, RealtimeToolApprovalRequired
from holdfast.realtime.room import Room
from holdfast.runs.config import RunConfig
from holdfast.runs.decisions import Decision, with_decision
from holdfast.runs.items import ToolApprovalItem
from holdfast.runs.live import Live
from holdfast.runs.nested import run_nested
from holdfast.runs.state import CallRecord, State
from holdfast.toolcalls.call import Call
from holdfast.toolcalls.invoke import Unfinished


@dataclass(eq=False)
class Question:
    """A call that a nested agent wants to make."""

    id: str
    record: Record
    item: ToolApprovalItem
    tool: Tool
    answer: "asyncio.Future[Decision]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def is_about_the_same_tool_as(self, other: "Question") -> bool:
        if self.record.snapshot is not other.record.snapshot or self.item.agent_path != other.item.agent_path:
            return False
        return ToolRef.of_approval(self.item) == ToolRef.of_approval(other.item)


class Nesting:
    """Makes the calls of tools that are agents, and has the questions that these wait for."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._run_id = new_id("run")
        self._open: dict[str, Question] = {}
        self._standing: dict[str, Approvals] = {}

    @property
    def undecided(self) -> tuple[str, ...]:
        return tuple(self._open)

    async def make(self, record: Record, call: Call) -> Answer:
        """Run the agent to its end, with a person's decisions in between if it needs them."""
        outer = self._outer(record, call)
        again = False
        while True:
            (before,) = outer.state.calls
            perform = partial(run_nested, outer, call, partial(_keep, outer), before.child)
            try:
                return await answering.make(self._room, record, call, perform=perform, again=again)
            except Unfinished:
                record.running, again = False, True
            await self._ask(record, call, outer)

    def decide(self, question_id: str, said: approvals.Decision, *, always: bool) -> Record | None:
        """Answer a question; ``None`` if nobody asks it any more."""
        decision = Decision(said.approved, always, message=said.message)
        question = self._open.get(question_id)
        if question is None:
            return None
        answered = [other for other in self._open.values() if other is question]
        if always:
            answered = [other for other in self._open.values() if other.is_about_the_same_tool_as(question)]
        for each in answered:
            del self._open[each.id]
            each.answer.set_result(decision)
            if not any(other.record is each.record for other in self._open.values()):
                each.record.parked.clear()
        return question.record

    def _outer(self, record: Record, call: Call) -> Live:
        """What a nested run sees of the session: as if the session were a run in the middle of this call."""
        waiting = CallRecord(call.id, 0, call.ref)
        disabled = self._room.run_config.get("tracing_disabled", False)
        outer = Live(
            State(self._run_id, "", calls=(waiting,)),
            graph=AgentGraph(record.snapshot.agent),
            context=self._room.context,
            config=RunConfig(tracing_disabled=disabled),
        )
        outer.standing = tuple(self._standing_of(call).recorded())
        return outer

    async def _ask(self, record: Record, call: Call, outer: Live) -> None:
        """Let people decide about everything that the nested run waits for."""
        room = self._room
        questions = [await self._question(record, item, outer) for item in outer.interruptions()]
        for question in questions:
            self._open[question.id] = question
            agent, arguments = question.item.agent, question.item.arguments or ""
            room.emit(RealtimeToolApprovalRequired(agent, question.tool, question.id, arguments, room.info))
        record.parked.set()
        patience = room.run_config.get("tool_execution", {}).get("approval_timeout")
        await asyncio.wait([question.answer for question in questions], timeout=patience)
        late = [question for question in questions if self._open.pop(question.id, None) is not None]
        for question in late:
            question.answer.set_result(Decision(False, message=EXPIRED))
            room.emit(RealtimeToolApprovalExpired(question.item.agent, question.tool, question.id, room.info))
        for question in questions:
            decision = question.answer.result()
            outer.state = with_decision(outer.state, question.item, decision)
            if decision.always:
                self._remember(call, question.item, decision)
        outer.standing = tuple(self._standing_of(call).recorded())

    async def _question(self, record: Record, item: ToolApprovalItem, outer: Live) -> Question:
        box, ref = await outer.toolbox(item.agent_path or ""), ToolRef.of_approval(item)
        tool: Any = box.find(ref) or box.hosted_mcp(ref.namespace)
        return Question("/".join((*item.route, item.call_id or "")), record, item, tool)

    def _standing_of(self, call: Call) -> Approvals:
        return self._standing.setdefault(call.owner, Approvals())

    def _remember(self, call: Call, item: ToolApprovalItem, decision: Decision) -> None:
        """What was decided for ever holds for the next run of the agent as well."""
        scratch: RunContextWrapper[Any] = RunContextWrapper(None, approvals=Approvals())
        decision.file(scratch, item)
        for known in scratch.approvals.recorded():
            if known.call_id is None:
                self._standing_of(call).record(known.tool, None, known.decision, owner=known.owner)


def _keep(outer: Live, child: State) -> None:
    (call,) = outer.state.calls
    outer.state = replace(outer.state, calls=(replace(call, status="waiting", child=child),))
