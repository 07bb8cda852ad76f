"""The tool calls of the model: each is executed at most once, and its output is sent until the model has it."""

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
from standfast.lifecycle.scope import is_cancelling
from standfast.realtime._session import tool_call_outputs
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.nested_agents import NestedAgentRunner
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime._session.responses import ResponseRegistry
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_call_outputs import APPROVAL_EXPIRED_MESSAGE, ToolCallResult, TrackedCall
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.events import RealtimeToolApprovalExpired, RealtimeToolApprovalRequired, RealtimeToolEnd
from standfast.realtime.model import RealtimeModelSendToolOutput
from standfast.realtime.model_events import RealtimeModelToolCallEvent
from standfast.tool_calls.call import ApprovalCheck, ToolCall, check_approval

RETRY_INITIAL_DELAY, RETRY_MAX_DELAY = 0.1, 5.0
MAX_REMEMBERED_CALLS = 1024


class ToolCallRunner:
    """Runs the tool calls of a session, each in its own task, until the model has the output."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        agent_switcher: AgentSwitcher,
    ) -> None:
        self._ctx, self._connection, self._responses, self._history = ctx, connection, responses, history
        self._agent_switcher = agent_switcher
        self._calls: dict[str, TrackedCall] = {}
        self._nested_agents = NestedAgentRunner(ctx)
        self._run_concurrently = ctx.run_config.get("async_tool_calls", True)
        self._handoff_locks: WeakKeyDictionary[ResolvedAgent, asyncio.Lock] = WeakKeyDictionary()
        self._serial_lock = asyncio.Lock()
        self._agents_by_owner: dict[str, RealtimeAgent[Any]] = {}

    def start_call(self, event: RealtimeModelToolCallEvent) -> Awaitable[None] | None:
        """Start a call.

        Without ``async_tool_calls`` it returns an awaitable that ends when the call has its output or waits for an
        approval; the model awaits it before it passes the next event.
        """
        call = self._register(event)
        if call is None:
            return None
        call.task = self._ctx.start_task(self._run_call(call), f"call {event.name} ({event.call_id})")
        # A handoff and an agent switch wait for an event: the acknowledgement of the settings.
        events_needed = (
            event.name in call.resolved_agent.handoffs or self._agent_switcher.in_progress or not self._connection.is_up
        )
        return None if events_needed else self.make_waiter(call)

    def decide(self, call_id: str, decision: ApprovalDecision, *, always: bool) -> TrackedCall | None:
        """Apply a decision to a call that waits for approval. Returns ``None`` if no such call waits."""
        tracked = self._calls.get(call_id)
        if tracked is None or tracked.pending_approval is None or tracked.call is None:
            return self._nested_agents.decide(call_id, decision, always=always)
        if tracked.pending_approval.done():
            return None
        approvals, call = self._ctx.run_context.approvals, tracked.call
        if always:
            approvals.record(call.ref, None, decision, owner=call.owner)
        # The decision holds for the arguments that were shown, and no others.
        approvals.record(
            call.ref, call.id, msgspec.structs.replace(decision, asked=digest_arguments(call.shown_arguments))
        )
        tracked.detached.clear()
        for other in self._calls.values():
            if other.pending_approval is not None and not other.pending_approval.done() and self._is_decided(other):
                other.pending_approval.set_result(None)
        return tracked

    def handle_barge_in(self) -> None:
        """Apply each running tool's ``on_barge_in`` policy, because the user has started to speak."""
        for call in self._calls.values():
            if call.result is None and call.running and call.tool is not None:
                policy = call.tool.on_barge_in
                if policy == "cancel" and not call.interrupted and call.task is not None:
                    call.interrupted = True
                    call.task.cancel()
                call.suppress_response = call.suppress_response or policy == "finish_silently"

    def unblock_events(self) -> None:
        """Have no call delay the next event of the model any longer, because the session waits for one."""
        for call in self._calls.values():
            call.detached.set()

    def mark_replayed(self, call_ids: Collection[str | None]) -> None:
        """Record that a new connection has the outputs of these calls, as part of the history."""
        for call in self._calls.values():
            if call.id in call_ids and call.result is not None and not call.sent:
                self._connection.resend_queue.response_pending |= call.result.start_response
                call.sent = True
                call.retry_now.set()

    def make_waiter(self, tracked_call: TrackedCall) -> Awaitable[None] | None:
        """Return an awaitable for the end or the next approval of a call; ``None`` if calls run concurrently."""
        if self._run_concurrently or tracked_call.task is None:
            return None
        return self._wait_finished_or_detached(tracked_call.task, tracked_call)

    @property
    def unsent_call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in self._calls.values() if call.result is not None and not call.sent)

    @property
    def pending_approval_ids(self) -> tuple[str, ...]:
        return (
            *(call.id for call in self._calls.values() if call.pending_approval is not None),
            *self._nested_agents.pending_approval_ids,
        )

    @property
    def running_threads(self) -> tuple[str, ...]:
        """The threads in which plain functions still run as tools; threads cannot be stopped."""
        return tuple(
            f"thread of {call.event.name} ({call.id})" for call in self._calls.values() if call.is_blocking_thread
        )

    def _register(self, event: RealtimeModelToolCallEvent) -> TrackedCall | None:
        ctx = self._ctx
        if not event.call_id:
            ctx.emit_error(
                ModelBehaviorError(f"the model called {event.name!r} without a call id; the call was ignored")
            )
            return None
        known = self._calls.get(event.call_id)
        if known is not None:
            if (known.event.name, known.event.arguments) != (event.name, event.arguments):
                ctx.emit_error(
                    ModelBehaviorError(f"the model reused the call id {event.call_id!r}; the second call was ignored")
                )
            known.retry_now.set()
            return None
        response = self._responses.get_or_create(event.response_id, self._agent_switcher.current, now=ctx.now())
        call = self._calls[event.call_id] = TrackedCall(event, response.resolved_agent, ctx.now())
        while len(self._calls) > MAX_REMEMBERED_CALLS and (
            sent := next((other for other in self._calls.values() if other.sent), None)
        ):
            del self._calls[sent.id]
        if self._history.conversation.add_tool_call(event):
            self._history.emit_added(event.id or event.call_id)
        else:
            self._history.emit_updated()
        return call

    async def _run_call(self, tracked_call: TrackedCall) -> None:
        try:
            result = await self._execute(tracked_call)
        except asyncio.CancelledError:
            if is_cancelling() and not self._absorb_barge_in_cancellation(tracked_call):
                raise
            result = tool_call_outputs.make_cancelled_result(by_user=tracked_call.interrupted)
        except Exception as error:  # noqa: BLE001 - the model gets it as the output, the program as an event
            log.warning("the call of %s failed: %s", tracked_call.event.name, error, exc_info=error)
            self._ctx.emit_error(error)
            result = tool_call_outputs.make_error_result(error)
        tracked_call.running = False
        tracked_call.result = replace(
            result, start_response=result.start_response and not tracked_call.suppress_response
        )
        await self._deliver(tracked_call, tracked_call.result)

    async def _execute(self, tracked_call: TrackedCall) -> ToolCallResult:
        ctx, name = self._ctx, tracked_call.event.name
        handoff = tracked_call.resolved_agent.handoffs.get(name)
        if handoff is not None:
            async with self._handoff_locks.setdefault(tracked_call.resolved_agent, asyncio.Lock()):
                if not await tool_call_outputs.is_still_enabled(ctx, tracked_call, handoff):
                    return self._report_not_found(tracked_call)
                return await tool_call_outputs.perform_handoff(ctx, self._agent_switcher, tracked_call, handoff)
        tool = tracked_call.resolved_agent.tools.get(name)
        if tool is None or not await tool_call_outputs.is_still_enabled(ctx, tracked_call, tool):
            return self._report_not_found(tracked_call)
        owner = self._get_owner_name(tracked_call.resolved_agent.agent)
        call = tracked_call.call = tool_call_outputs.build_call(ctx, tracked_call, tool, owner=owner)
        check = await self._check_approval(tracked_call, call)
        if check.status == "rejected":
            return await tool_call_outputs.make_rejection_result(ctx, call, check)
        if check.arguments is not None:
            call = tracked_call.call = replace(call, arguments=check.arguments)
        execute = (
            partial(tool_call_outputs.execute_call, ctx)
            if tool.agent_tool is None
            else self._nested_agents.execute_call
        )
        async with nullcontext() if self._run_concurrently else self._serial_lock:
            return await execute(tracked_call, call)

    async def _check_approval(self, tracked_call: TrackedCall, call: ToolCall) -> ApprovalCheck:
        """Check whether the call is approved, and request an approval if it needs one."""
        ctx, execution = self._ctx, self._ctx.run_config.get("tool_execution", {})
        guardrails_first = execution.get("pre_approval_tool_input_guardrails", False)
        check = await check_approval(call, ctx.run_context, run_guardrails_first=guardrails_first)
        if check.status != "waiting":
            return check
        agent, info = tracked_call.resolved_agent.agent, ctx.info
        ctx.emit(RealtimeToolApprovalRequired(agent, call.tool, tracked_call.id, call.shown_arguments, info))
        tracked_call.pending_approval = asyncio.get_running_loop().create_future()
        tracked_call.detached.set()
        await asyncio.wait({tracked_call.pending_approval}, timeout=execution.get("approval_timeout"))
        decided, tracked_call.pending_approval = tracked_call.pending_approval.done(), None
        if decided:
            return await check_approval(call, ctx.run_context)
        ctx.emit(RealtimeToolApprovalExpired(agent, call.tool, tracked_call.id, info))
        return ApprovalCheck("rejected", message=APPROVAL_EXPIRED_MESSAGE)

    def _is_decided(self, tracked_call: TrackedCall) -> bool:
        call = tracked_call.call
        find = self._ctx.run_context.approvals.find
        return (
            call is not None and find(call.ref, call.id, owner=call.owner, arguments=call.shown_arguments) is not None
        )

    async def _deliver(self, tracked_call: TrackedCall, result: ToolCallResult) -> None:
        """Send the output until the model has it; the tool is not executed again."""
        ctx, event = self._ctx, tracked_call.event
        self._history.conversation.set_tool_output(event.call_id, result.text)
        message = RealtimeModelSendToolOutput(event, result.text, result.start_response)
        delay = RETRY_INITIAL_DELAY
        while not tracked_call.sent:
            tracked_call.retry_now.clear()
            try:
                await self._connection.wait_connected()
                if tracked_call.sent:  # The replay of the history has delivered it.
                    break
                self._connection.resend_queue.response_pending |= result.start_response
                await ctx.model.send_event(message)
                tracked_call.sent = True
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - reported once, and retried
                if delay == RETRY_INITIAL_DELAY:
                    ctx.emit_error(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await tracked_call.retry_now.wait()
                delay = min(delay * 2, RETRY_MAX_DELAY)
        ctx.record_metric("tool_gap", (ctx.now() - tracked_call.arrived_at) * 1000, event.call_id)
        self._history.emit_updated()
        if tracked_call.tool is not None:
            agent, arguments = tracked_call.resolved_agent.agent, event.arguments
            ctx.emit(
                RealtimeToolEnd(agent, tracked_call.tool, arguments, result.output, ctx.info, call_id=event.call_id)
            )

    def _absorb_barge_in_cancellation(self, tracked_call: TrackedCall) -> bool:
        """Return True if the barge-in alone has cancelled the call, so that it still gets an output."""
        task = asyncio.current_task()
        return tracked_call.interrupted and task is not None and task.uncancel() == 0

    def _report_not_found(self, tracked_call: TrackedCall) -> ToolCallResult:
        result = tool_call_outputs.make_not_found_result(tracked_call)
        self._ctx.emit_error(ModelBehaviorError(result.text))
        return result

    def _get_owner_name(self, agent: RealtimeAgent[Any]) -> str:
        """Return a name for an agent that no other agent of this session has."""
        number, name = 1, agent.name
        while self._agents_by_owner.setdefault(name, agent) is not agent:
            number += 1
            name = f"{agent.name}#{number}"
        return name

    async def _wait_finished_or_detached(self, task: "asyncio.Task[None]", tracked_call: TrackedCall) -> None:
        detached = asyncio.ensure_future(tracked_call.detached.wait())
        either: set[asyncio.Future[Any]] = {task, detached}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            detached.cancel()
