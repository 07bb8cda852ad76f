"""The turns of a conversation: the start and end of each response, its hooks and span, and the user's own turn."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from standfast.agents.context import AgentHookContext
from standfast.realtime._session.agent_switch import AgentSwitcher
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.item_conversion import get_text
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime._session.responses import ResponseRegistry, TrackedResponse
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from standfast.realtime.events import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeResponseFailed,
    RealtimeResponseIncomplete,
)
from standfast.realtime.model_events import RealtimeModelTurnEndedEvent, RealtimeModelTurnStartedEvent
from standfast.tracing.provider import new_span, new_trace
from standfast.tracing.span_data import AgentSpanData
from standfast.tracing.spans import Span, Trace, get_current_trace

DEFAULT_WORKFLOW_NAME = "Realtime session"


def open_session_trace(
    run_config: RealtimeRunConfig, base: RealtimeSessionModelSettings
) -> AbstractContextManager[Trace | None]:
    """Open the trace of a session: the current trace if there is one, else a new one as set by ``tracing``."""
    if run_config.get("tracing_disabled"):
        return Trace(recorded=False)
    if get_current_trace() is not None:
        return nullcontext()
    setting: Any = base.get("tracing")
    options: dict[str, Any] = setting if isinstance(setting, dict) else {}
    return new_trace(
        options.get("workflow_name") or DEFAULT_WORKFLOW_NAME,
        group_id=options.get("group_id"),
        metadata=options.get("metadata"),
        emit_otel_span=True,
    )


def start_response_span(parent: Trace | Span[Any] | None, resolved_agent: ResolvedAgent) -> Span[AgentSpanData] | None:
    """Start the span of a response. It is never the current span: events meanwhile may belong to another response."""
    if parent is None:
        return None
    data = AgentSpanData(
        resolved_agent.agent.name, handoffs=list(resolved_agent.handoffs), tools=list(resolved_agent.tools)
    )
    span = new_span(data, parent=parent)
    span.start()
    return span


class TurnTracker:
    """Emits exactly one start and one end event for each response."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        agent_switcher: AgentSwitcher,
        guardrails: GuardrailMonitor,
    ) -> None:
        self._ctx, self._connection, self._responses, self._history = ctx, connection, responses, history
        self._agent_switcher, self._guardrails = agent_switcher, guardrails
        self._hooks = _ResponseHooks(ctx)
        self._unannounced_end: tuple[TrackedResponse, str] | None = None
        self._requested_at: float | None = None
        self.user_is_speaking = False
        self.speech_started_at: float | None = None

    def mark_requested(self) -> None:
        """Record that the user's turn ended or a response was requested; the time to the first audio counts from it."""
        self._requested_at = self._ctx.now()

    def on_speech_started(self) -> None:
        self.user_is_speaking, self.speech_started_at = True, self._ctx.now()

    def on_speech_stopped(self) -> None:
        self.user_is_speaking, self.speech_started_at = False, None
        self.mark_requested()

    def on_started(self, event: RealtimeModelTurnStartedEvent) -> None:
        ctx, previous = self._ctx, self._responses.active
        response = self._responses.begin(
            event.response_id, self._agent_switcher.current, now=ctx.now(), requested_at=self._requested_at
        )
        if response is None:
            return
        if previous is not None:  # There is one active response at a time.
            self._end_response(previous, RealtimeModelTurnEndedEvent(status="lost", reason="its end was not reported"))
        response.retryable, response.connection_number = event.retryable, self._connection.count
        response.span = start_response_span(ctx.trace_parent, response.resolved_agent)
        self._guardrails.on_response_started(response)
        self._requested_at = None
        self._connection.resend_queue.on_response_started()
        self._announce_pending_end()
        ctx.emit(RealtimeAgentStartEvent(response.resolved_agent.agent, ctx.info, response_id=event.response_id))
        self._hooks.on_response_started(response)

    def ensure_response(self, response_id: str | None) -> TrackedResponse:
        """Return the response with that id, after starting it if its start was not reported."""
        responses = self._responses
        if response_id is not None and responses.active is None and responses.get(response_id) is None:
            self.on_started(RealtimeModelTurnStartedEvent(response_id=response_id))
        return responses.get_or_create(response_id, self._agent_switcher.current, now=self._ctx.now())

    def on_ended(self, event: RealtimeModelTurnEndedEvent) -> None:
        responses = self._responses
        response = responses.active if event.response_id is None else responses.get(event.response_id)
        if response is None or response.ended:
            self._announce_failure(event.response_id, event)
        else:
            self._end_response(response, event)

    def on_connection_lost(self) -> None:
        """End the active response, which was lost with the connection, and the user's turn."""
        self.user_is_speaking = False
        self._history.conversation.mark_all_transcripts_unavailable()
        response = self._responses.active
        if response is not None:
            self._end_response(response, RealtimeModelTurnEndedEvent(status="lost", reason="the connection was lost"))
        self._history.write_requested.set()

    def _end_response(self, response: TrackedResponse, event: RealtimeModelTurnEndedEvent) -> None:
        ctx, status = self._ctx, event.status
        if response.span is not None and status in ("failed", "lost"):
            response.span.set_error({"message": event.reason or status, "data": None})
        self._responses.end(response)
        if status == "lost":
            for item_id, index in self._history.conversation.find_parts_without_audio(response.id):
                self._history.truncate(item_id, index, 0)
        self._announce_failure(response.id, event)
        if response.interrupted_at is not None:
            ctx.record_metric("interruption", (ctx.now() - response.interrupted_at) * 1000, response.id)
        self._announce_pending_end()
        self._unannounced_end = (response, status)
        self._guardrails.on_response_ended(
            response, complete=status == "completed", on_settled=lambda: self._finalize(response, status)
        )

    def _finalize(self, response: TrackedResponse, status: str) -> None:
        """Close the messages of a response once it is known what of it is heard."""
        response.lost = status == "lost"
        if response.needs_retry:
            self._retry_response(response)
        message_ids = self._history.conversation.end_response(response.id, complete=status == "completed")
        if message_ids:
            self._history.emit_updated()
        self._announce_end(response, message_ids)
        self._history.write_requested.set()

    def _retry_response(self, response: TrackedResponse) -> None:
        """Request a lost response again, if the next connection is up and has its history."""
        connection = self._connection
        restored = connection.is_up and connection.count != response.connection_number and not connection.is_restoring
        if restored and not connection.resend_queue.response_pending:
            connection.resend_queue.response_pending = True
            self._ctx.start_task(connection.send_raw("response.create"), "response retry")

    def _announce_pending_end(self) -> None:
        """Announce an end that still waits for guardrails, because the next event belongs after it."""
        if self._unannounced_end is not None:
            response, _ = self._unannounced_end
            self._announce_end(response, self._history.conversation.get_open_messages(response.id))

    def _announce_end(self, response: TrackedResponse, message_ids: list[str]) -> None:
        if self._unannounced_end is None or self._unannounced_end[0] is not response:
            return
        ctx, status, self._unannounced_end = self._ctx, self._unannounced_end[1], None
        ctx.emit(RealtimeAgentEndEvent(response.resolved_agent.agent, ctx.info, response_id=response.id, status=status))
        conversation = self._history.conversation
        self._hooks.on_response_ended(
            response, "\n".join(get_text(conversation.get_item(item_id)) for item_id in message_ids)
        )

    def _announce_failure(self, response_id: str | None, event: RealtimeModelTurnEndedEvent) -> None:
        ctx = self._ctx
        match event.status:
            case "failed" | "lost" as status:
                ctx.emit(RealtimeResponseFailed(response_id, status, event.reason, event.error, ctx.info))
            case "incomplete":
                ctx.emit(RealtimeResponseIncomplete(response_id, event.reason, ctx.info))


class _ResponseHooks:
    """Runs the hooks of the run and of the agent for each response, one after the other and in the background."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._lock = asyncio.Lock()

    def on_response_started(self, response: TrackedResponse) -> None:
        if self._has_hooks(response):
            self._ctx.start_task(self._run_start_hooks(response), "start hooks")

    def on_response_ended(self, response: TrackedResponse, output: str) -> None:
        if self._has_hooks(response):
            self._ctx.start_task(self._run_end_hooks(response, output), "end hooks")

    def _has_hooks(self, response: TrackedResponse) -> bool:
        return self._ctx.hooks is not None or response.resolved_agent.agent.hooks is not None

    def _make_hook_context(self) -> AgentHookContext[Any]:
        context = self._ctx.run_context
        return AgentHookContext(context.context, context.usage, context.turn_input, context.approvals)

    async def _run_start_hooks(self, response: TrackedResponse) -> None:
        context, agent = self._make_hook_context(), response.resolved_agent.agent
        async with self._lock:
            if self._ctx.hooks is not None:
                await self._ctx.hooks.on_agent_start(context, agent)
            if agent.hooks is not None:
                await agent.hooks.on_start(context, agent)

    async def _run_end_hooks(self, response: TrackedResponse, output: Any) -> None:
        context, agent = self._make_hook_context(), response.resolved_agent.agent
        async with self._lock:
            if self._ctx.hooks is not None:
                await self._ctx.hooks.on_agent_end(context, agent, output)
            if agent.hooks is not None:
                await agent.hooks.on_end(context, agent, output)
