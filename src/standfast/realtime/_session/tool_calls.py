"""The calls that the model makes: judged and made once, answered for certain, whatever happens meanwhile."""

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from standfast.agents.approvals import ApprovalDecision, digest_arguments
from standfast.agents.errors import ModelBehaviorError
from standfast.base.errors import Closed
from standfast.lifecycle.cancellation import is_cancelling
from standfast.realtime._session import tool_call_outputs
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.nested_agents import NestedAgentRunner
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime._session.tool_call_outputs import APPROVAL_EXPIRED_MESSAGE, ToolCallResult, TrackedCall
from standfast.realtime.events import RealtimeToolApprovalExpired, RealtimeToolApprovalRequired, RealtimeToolEnd
from standfast.realtime.model_events import RealtimeModelToolCallEvent
from standfast.realtime.model_inputs import RealtimeModelSendToolOutput
from standfast.tool_calls.approval import ApprovalCheck, check_approval
from standfast.tool_calls.call import ToolCall

RETRY_INITIAL_DELAY, RETRY_MAX_DELAY = 0.1, 5.0
MAX_REMEMBERED_CALLS = 1024


class ToolCallManager:
    """Every call by its id. Each has a task of its own that ends when the model has the answer."""

    def __init__(self, ctx: SessionContext, agent_switcher: AgentSwitcher) -> None:
        self._ctx, self._agent_switcher = ctx, agent_switcher
        self._calls: dict[str, TrackedCall] = {}
        self._nested_agents = NestedAgentRunner(ctx)
        self._run_concurrently = ctx.run_config.get("async_tool_calls", True)
        self._handoff_locks: WeakKeyDictionary[ResolvedAgent, asyncio.Lock] = WeakKeyDictionary()
        self._serial_lock = asyncio.Lock()

    def accept(self, event: RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        """Accept a call. Without ``async_tool_calls`` it gives what waits until it is answered or asks a person."""
        record = self._register(event)
        if record is None:
            return None
        room = self._ctx
        record.task = room.start_task(self._run_call(record), f"call {event.name} ({event.call_id})")
        # A handoff needs the reader that would wait here, and so does the answer to the session's settings.
        needed = (
            event.name in record.resolved_agent.handoffs
            or self._agent_switcher.in_progress
            or not room.connection_up.is_set()
        )
        return None if needed else self.make_waiter(record)

    def decide(self, call_id: str, decision: ApprovalDecision, *, always: bool) -> TrackedCall | None:
        """What a person says about a waiting call. ``None`` if no call of that id waits any more."""
        record = self._calls.get(call_id)
        if record is None or record.pending_approval is None or record.call is None:
            return self._nested_agents.decide(call_id, decision, always=always)
        if record.pending_approval.done():
            return None
        approvals, call = self._ctx.run_context.approvals, record.call
        if always:
            approvals.record(call.ref, None, decision, owner=call.owner)
        # Bound to the arguments that the person saw.
        approvals.record(
            call.ref, call.id, msgspec.structs.replace(decision, asked=digest_arguments(call.requested_arguments))
        )
        record.detached.clear()
        for waiting in self._calls.values():
            if (
                waiting.pending_approval is not None
                and not waiting.pending_approval.done()
                and self._is_decided(waiting)
            ):
                waiting.pending_approval.set_result(None)
        return record

    def handle_barge_in(self) -> None:
        """The user speaks: running tools go on, stop, or lower their voice, as each of them says."""
        for record in self._calls.values():
            if record.result is None and record.running and record.tool is not None:
                policy = record.tool.on_barge_in
                if policy == "cancel" and not record.interrupted and record.task is not None:
                    record.interrupted = True
                    record.task.cancel()
                record.suppress_response = record.suppress_response or policy == "finish_silently"

    def release_reader(self) -> None:
        """Somebody waits for what the model will tell: no call keeps its reader any longer."""
        for record in self._calls.values():
            record.detached.set()

    def mark_replayed(self, call_ids: Collection[str | None]) -> None:
        """A new connection was told the answers to these calls."""
        for record in self._calls.values():
            if record.id in call_ids and record.result is not None and not record.sent:
                self._ctx.resend_queue.response_pending |= record.result.start_response
                record.sent = True
                record.retry_now.set()

    def make_waiter(self, tracked_call: TrackedCall) -> Awaitable[None] | None:
        """What waits for the end of a call or its next question; nothing if calls are made beside the conversation."""
        return (
            None
            if self._run_concurrently or tracked_call.task is None
            else self._wait_finished_or_detached(tracked_call.task, tracked_call)
        )

    @property
    def unsent_call_ids(self) -> tuple[str, ...]:
        return tuple(r.id for r in self._calls.values() if r.result is not None and not r.sent)

    @property
    def pending_approval_ids(self) -> tuple[str, ...]:
        return (
            *(r.id for r in self._calls.values() if r.pending_approval is not None),
            *self._nested_agents.pending_approval_ids,
        )

    @property
    def running_threads(self) -> tuple[str, ...]:
        """Tools that are plain functions and still run: they cannot be stopped."""
        return tuple(f"thread of {r.event.name} ({r.id})" for r in self._calls.values() if r.is_blocking_thread)

    def _register(self, event: RealtimeModelToolCallEvent) -> TrackedCall | None:
        room = self._ctx
        if not event.call_id:
            room.emit_error(
                ModelBehaviorError(f"the model called {event.name!r} without an id, so it cannot be answered")
            )
            return None
        known = self._calls.get(event.call_id)
        if known is not None:
            if (known.event.name, known.event.arguments) != (event.name, event.arguments):
                room.emit_error(
                    ModelBehaviorError(f"the call {event.call_id!r} came back as another call; it is ignored")
                )
            known.retry_now.set()
            return None
        response = room.responses.get_or_create(event.response_id, room.resolved_agent, now=room.now())
        record = self._calls[event.call_id] = TrackedCall(event, response.resolved_agent, room.now())
        while len(self._calls) > MAX_REMEMBERED_CALLS and (
            sent := next((r for r in self._calls.values() if r.sent), None)
        ):
            del self._calls[sent.id]
        new = room.history.add_tool_call(event)
        room.emit_history_added(event.id or event.call_id) if new else room.emit_history_updated()
        return record

    async def _run_call(self, tracked_call: TrackedCall) -> None:
        try:
            answer = await self._execute(tracked_call)
        except asyncio.CancelledError:
            if is_cancelling() and not self._absorb_barge_in_cancellation(tracked_call):
                raise
            answer = tool_call_outputs.make_cancelled_result(by_user=tracked_call.interrupted)
        except Exception as error:  # noqa: BLE001 - the model is told, and the program by an event
            log.warning("the call of %s failed: %s", tracked_call.event.name, error, exc_info=error)
            self._ctx.emit_error(error)
            answer = tool_call_outputs.make_error_result(error)
        tracked_call.running = False
        tracked_call.result = replace(
            answer, start_response=answer.start_response and not tracked_call.suppress_response
        )
        await self._deliver(tracked_call, tracked_call.result)

    async def _execute(self, tracked_call: TrackedCall) -> ToolCallResult:
        room, name = self._ctx, tracked_call.event.name
        handoff = tracked_call.resolved_agent.handoffs.get(name)
        if handoff is not None:
            async with self._handoff_locks.setdefault(tracked_call.resolved_agent, asyncio.Lock()):
                if not await tool_call_outputs.is_still_enabled(room, tracked_call, handoff):
                    return self._report_not_found(tracked_call)
                return await tool_call_outputs.perform_handoff(room, self._agent_switcher, tracked_call, handoff)
        tool = tracked_call.resolved_agent.tools.get(name)
        if tool is None or not await tool_call_outputs.is_still_enabled(room, tracked_call, tool):
            return self._report_not_found(tracked_call)
        call = tracked_call.call = tool_call_outputs.build_call(room, tracked_call, tool)
        verdict = await self._check_approval(tracked_call, call)
        if verdict.status == "rejected":
            return await tool_call_outputs.make_rejection_result(room, call, verdict)
        if verdict.arguments is not None:
            call = tracked_call.call = replace(call, arguments=verdict.arguments)
        make = (
            partial(tool_call_outputs.execute_call, room)
            if tool.agent_tool is None
            else self._nested_agents.execute_call
        )
        async with nullcontext() if self._run_concurrently else self._serial_lock:
            return await make(tracked_call, call)

    async def _check_approval(self, tracked_call: TrackedCall, call: ToolCall) -> ApprovalCheck:
        """What may be done with a call, after a person was asked if need be."""
        room, execution = self._ctx, self._ctx.run_config.get("tool_execution", {})
        guard_first = execution.get("pre_approval_tool_input_guardrails", False)
        verdict = await check_approval(call, room.run_context, run_guardrails_first=guard_first)
        if verdict.status != "waiting":
            return verdict
        agent, info = tracked_call.resolved_agent.agent, room.info
        room.emit(RealtimeToolApprovalRequired(agent, call.tool, tracked_call.id, call.arguments, info))
        tracked_call.pending_approval = asyncio.get_running_loop().create_future()
        tracked_call.detached.set()
        await asyncio.wait({tracked_call.pending_approval}, timeout=execution.get("approval_timeout"))
        decided, tracked_call.pending_approval = tracked_call.pending_approval.done(), None
        if decided:
            return await check_approval(call, room.run_context)
        room.emit(RealtimeToolApprovalExpired(agent, call.tool, tracked_call.id, info))
        return ApprovalCheck("rejected", message=APPROVAL_EXPIRED_MESSAGE)

    def _is_decided(self, tracked_call: TrackedCall) -> bool:
        call = tracked_call.call
        find = self._ctx.run_context.approvals.find
        return (
            call is not None
            and find(call.ref, call.id, owner=call.owner, arguments=call.requested_arguments) is not None
        )

    async def _deliver(self, tracked_call: TrackedCall, result: ToolCallResult) -> None:
        """Send the answer until it is sent; the tool is not run again for that."""
        room, event = self._ctx, tracked_call.event
        room.history.set_tool_output(event.call_id, result.text)
        message = RealtimeModelSendToolOutput(event, result.text, result.start_response)
        delay = RETRY_INITIAL_DELAY
        while not tracked_call.sent:
            tracked_call.retry_now.clear()
            try:
                await room.wait_connected()
                if tracked_call.sent:  # The new connection was told already.
                    break
                room.resend_queue.response_pending |= result.start_response
                await room.model.send_event(message)
                tracked_call.sent = True
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - told, and tried again
                if delay == RETRY_INITIAL_DELAY:
                    room.emit_error(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await tracked_call.retry_now.wait()
                delay = min(delay * 2, RETRY_MAX_DELAY)
        room.record_metric("tool_gap", (room.now() - tracked_call.arrived_at) * 1000, event.call_id)
        room.emit_history_updated()
        if tracked_call.tool is not None:
            agent, arguments = tracked_call.resolved_agent.agent, tracked_call.event.arguments
            room.emit(
                RealtimeToolEnd(agent, tracked_call.tool, arguments, result.output, room.info, call_id=event.call_id)
            )

    def _absorb_barge_in_cancellation(self, tracked_call: TrackedCall) -> bool:
        """Whether the user's speech, and nobody else, has cancelled the call: then it is still to be answered."""
        task = asyncio.current_task()
        return tracked_call.interrupted and task is not None and task.uncancel() == 0

    def _report_not_found(self, tracked_call: TrackedCall) -> ToolCallResult:
        answer = tool_call_outputs.make_not_found_result(tracked_call)
        self._ctx.emit_error(ModelBehaviorError(answer.text))
        return answer

    async def _wait_finished_or_detached(self, task: "asyncio.Task[None]", tracked_call: TrackedCall) -> None:
        parked = asyncio.ensure_future(tracked_call.detached.wait())
        either: set[asyncio.Future[Any]] = {task, parked}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            parked.cancel()
