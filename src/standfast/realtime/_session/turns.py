"""The beginning and the end of each response, as everybody hears of them."""

from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.history_sync import send_raw_message
from standfast.realtime._session.hooks import ResponseHookRunner
from standfast.realtime._session.item_conversion import get_text
from standfast.realtime._session.responses import TrackedResponse
from standfast.realtime._session.tracing import start_response_span
from standfast.realtime.events import (
    RealtimeAgentEndEvent,
    RealtimeAgentStartEvent,
    RealtimeResponseFailed,
    RealtimeResponseIncomplete,
)
from standfast.realtime.model_events import RealtimeModelTurnEndedEvent, RealtimeModelTurnStartedEvent


class TurnTracker:
    """Each response begins once and ends once."""

    def __init__(self, ctx: SessionContext, *, guardrails: GuardrailMonitor) -> None:
        self._ctx, self._guardrails = ctx, guardrails
        self._hooks = ResponseHookRunner(ctx)
        self._unannounced_end: tuple[TrackedResponse, str] | None = None

    def on_started(self, event: RealtimeModelTurnStartedEvent) -> None:
        room, before = self._ctx, self._ctx.responses.active
        response = room.responses.begin(
            event.response_id, room.resolved_agent, now=room.now(), requested_at=room.requested_at
        )
        if response is None:
            return
        if before is not None:  # There is one at a time.
            self._end_response(before, RealtimeModelTurnEndedEvent(status="lost", reason="its end was not told"))
        response.retryable, response.connection_number = event.retryable, room.connection_count
        response.span = start_response_span(room.trace_parent, response.resolved_agent)
        self._guardrails.on_response_started(response)
        room.requested_at = None
        room.resend_queue.on_response_started()
        self._announce_pending_end()
        room.emit(RealtimeAgentStartEvent(response.resolved_agent.agent, room.info, response_id=event.response_id))
        self._hooks.on_response_started(response)

    def on_ended(self, event: RealtimeModelTurnEndedEvent) -> None:
        responses = self._ctx.responses
        response = responses.active if event.response_id is None else responses.get(event.response_id)
        if response is None or response.ended:
            self._announce_failure(event.response_id, event)
        else:
            self._end_response(response, event)

    def on_connection_lost(self) -> None:
        """The connection is gone, and with it the active response."""
        response = self._ctx.responses.active
        if response is not None:
            self._end_response(response, RealtimeModelTurnEndedEvent(status="lost", reason="the connection was lost"))

    def _end_response(self, response: TrackedResponse, event: RealtimeModelTurnEndedEvent) -> None:
        room, status = self._ctx, event.status
        if response.span is not None and status in ("failed", "lost"):
            response.span.set_error({"message": event.reason or status, "data": None})
        room.responses.end(response)
        if status == "lost":
            for item_id, index in room.history.find_parts_without_audio(response.id):
                room.truncate(item_id, index, 0)
        self._announce_failure(response.id, event)
        if response.interrupted_at is not None:
            room.record_metric("interruption", (room.now() - response.interrupted_at) * 1000, response.id)
        self._announce_pending_end()
        self._unannounced_end = (response, status)
        self._guardrails.on_response_ended(
            response, complete=status == "completed", on_settled=lambda: self._finalize(response, status)
        )

    def _finalize(self, response: TrackedResponse, status: str) -> None:
        """What was said in it is final."""
        room = self._ctx
        response.lost = status == "lost"
        if response.needs_retry:
            self._retry_response(response)
        answers = room.history.end_response(response.id, complete=status == "completed")
        if answers:
            room.emit_history_updated()
        self._announce_end(response, answers)
        room.write_requested.set()

    def _retry_response(self, response: TrackedResponse) -> None:
        """Nothing was heard of a response that died with its connection: if the next one is there, it is asked."""
        room = self._ctx
        restored = (
            room.connection_up.is_set()
            and room.connection_count != response.connection_number
            and not room.is_restoring
        )
        if restored and not room.resend_queue.response_pending:
            room.resend_queue.response_pending = True
            room.start_task(send_raw_message(room, "response.create"), "asking again")

    def _announce_pending_end(self) -> None:
        """Something comes that belongs behind an end which still waits for verdicts."""
        if self._unannounced_end is not None:
            response, _ = self._unannounced_end
            self._announce_end(response, self._ctx.history.get_open_messages(response.id))

    def _announce_end(self, response: TrackedResponse, message_ids: list[str]) -> None:
        """Tell that it has ended, once."""
        if self._unannounced_end is None or self._unannounced_end[0] is not response:
            return
        room, status, self._unannounced_end = self._ctx, self._unannounced_end[1], None
        room.emit(
            RealtimeAgentEndEvent(response.resolved_agent.agent, room.info, response_id=response.id, status=status)
        )
        self._hooks.on_response_ended(
            response, "\n".join(get_text(room.history.get_item(name)) for name in message_ids)
        )

    def _announce_failure(self, response_id: str | None, event: RealtimeModelTurnEndedEvent) -> None:
        room = self._ctx
        match event.status:
            case "failed" | "lost" as status:
                room.emit(RealtimeResponseFailed(response_id, status, event.reason, event.error, room.info))
            case "incomplete":
                room.emit(RealtimeResponseIncomplete(response_id, event.reason, room.info))
