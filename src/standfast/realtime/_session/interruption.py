"""Interruptions: by the program (``interrupt``), or by the user, as the model reports them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from standfast.lifecycle.scope import Deadline
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import RealtimeState, SessionContext
from standfast.realtime._session.guardrails import GuardrailMonitor
from standfast.realtime._session.playback_clock import AudioOutput, PlaybackClock
from standfast.realtime._session.responses import ResponseRegistry, TrackedResponse
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime._session.turns import TurnTracker
from standfast.realtime.errors import AcknowledgementTimeout
from standfast.realtime.events import RealtimeAudio, RealtimeAudioInterrupted
from standfast.realtime.model import RealtimeModelSendInterrupt
from standfast.realtime.model_events import RealtimeModelAudioInterruptedEvent

INTERRUPT_TIMEOUT = 5.0
"""Seconds within which an interruption must be sent and the response must have ended."""


class Interruption:
    """Stops the model, and keeps of its audio only what was heard."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        clock: PlaybackClock,
        history: SessionHistory,
        output: AudioOutput,
        tool_calls: ToolCallRunner,
        guardrails: GuardrailMonitor,
        turns: TurnTracker,
    ) -> None:
        self._ctx, self._connection, self._responses = ctx, connection, responses
        self._clock, self._history = clock, history
        self._output, self._tool_calls, self._guardrails, self._turns = output, tool_calls, guardrails, turns

    async def interrupt(self) -> None:
        """Stop the model, and wait until its response has ended unless a model listener calls this."""
        ctx, response = self._ctx, self._responses.active
        self._stop_audio(response or self._responses.latest)
        if response is not None:
            response.interrupted_at = ctx.now()
        self._tool_calls.handle_barge_in()
        if ctx.state is RealtimeState.RECONNECTING:
            with suppress(Exception):  # Not every model can stop playback between two connections.
                await ctx.model.send_event(RealtimeModelSendInterrupt(playback_only=True))
            return
        async with self._limit_time():
            await self._connection.wait_connected()
            self._tool_calls.unblock_events()
            await self._connection.send_or_drop(RealtimeModelSendInterrupt(force_response_cancel=response is not None))
            if response is not None and not ctx.model.is_listener_task():
                await response.wait_ended()

    def _stop_audio(self, response: TrackedResponse | None) -> None:
        if response is not None:
            self._guardrails.mute_all(response)
            self._ctx.broadcast.discard(lambda event: isinstance(event, RealtimeAudio))

    @asynccontextmanager
    async def _limit_time(self) -> AsyncIterator[None]:
        """End the block after the timeout, with an error event: the server may neither read nor answer."""
        timeout = Deadline.after(INTERRUPT_TIMEOUT).timeout()
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            self._ctx.emit_error(AcknowledgementTimeout("the interruption", INTERRUPT_TIMEOUT))

    def on_audio_interrupted(self, event: RealtimeModelAudioInterruptedEvent) -> None:
        """Stop a part of the audio that the model reports as interrupted, by the user or on request."""
        ctx = self._ctx
        response = self._responses.find_by_audio(event.item_id, event.response_id)
        requested = response is not None and (response.tripped or response.interrupted_at is not None)
        heard_ms = self._get_heard_ms(event)
        if heard_ms is not None:
            self._history.truncate(event.item_id, event.content_index, heard_ms)
        if response is not None:
            self._output.stop(response)
            by_user = self._turns.user_is_speaking and not response.tripped
            stop = self._guardrails.mute_all if by_user else self._guardrails.discard_audio
            stop(response)
        if event.from_previous_connection and event.item_id in self._history.conversation and self._connection.is_up:
            ctx.start_task(self._history.resend_item(event.item_id), f"truncation of {event.item_id}")
        part = (event.item_id, event.content_index)
        ctx.broadcast.discard(lambda it: isinstance(it, RealtimeAudio) and (it.item_id, it.content_index) == part)
        ctx.emit(RealtimeAudioInterrupted(ctx.info, *part))
        if not requested:
            self._record_barge_in(response, event.item_id)
            self._tool_calls.handle_barge_in()

    def _get_heard_ms(self, event: RealtimeModelAudioInterruptedEvent) -> int | None:
        """Return how much of an interrupted part was heard, by the model or else by our clock; ``None`` if all was."""
        if event.audio_end_ms is not None:
            return event.audio_end_ms
        heard_ms = self._clock.get_heard_ms(event.item_id, event.content_index)
        received_ms = int(self._clock.get_received_ms(event.item_id, event.content_index))
        return heard_ms if heard_ms is not None and heard_ms < received_ms else None

    def _record_barge_in(self, response: TrackedResponse | None, item_id: str) -> None:
        """Measure an interruption by the user: to the end of the response, or to now if it has ended."""
        started_at = self._turns.speech_started_at
        since = self._ctx.now() if started_at is None else started_at
        if response is not None and not response.ended:
            response.interrupted_at = since
        else:
            self._ctx.record_metric("interruption", (self._ctx.now() - since) * 1000, item_id)
