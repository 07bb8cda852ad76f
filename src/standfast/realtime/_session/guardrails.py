"""Output guardrails on responses while the model is speaking.

The text of each part is checked whenever it has grown by the debounce length, and once more when it is complete. The
first guardrail that trips stops the response: one event, one cancellation, one message to the model.

If audio is held back, it is released in the order in which it was spoken: audio that has passed waits for the audio
before it. :mod:`standfast.realtime._session.responses` computes how much audio the checked text releases.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from standfast.agents.guardrails import OutputGuardrail, OutputGuardrailResult
from standfast.lifecycle.scope import is_cancelling
from standfast.realtime._session.connection import SessionConnection
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.playback_clock import AudioOutput, PlaybackClock
from standfast.realtime._session.responses import (
    GuardedResponse,
    GuardedText,
    GuardrailCheck,
    ResponseRegistry,
    TrackedResponse,
)
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime._session.tool_calls import ToolCallRunner
from standfast.realtime.config import RealtimeRunConfig
from standfast.realtime.errors import GuardrailTimedOut, TooManyGuardrailTrips
from standfast.realtime.events import RealtimeAudio, RealtimeAudioEnd, RealtimeGuardrailTripped
from standfast.realtime.model import RealtimeModelSendInterrupt, RealtimeModelSendUserInput
from standfast.tracing.create import maybe_guardrail_span

DEFAULT_DEBOUNCE_LENGTH = 100
DEFAULT_TIMEOUT = 30.0
"""Seconds that a guardrail may take, unless the settings say otherwise."""
MAX_CONSECUTIVE_TRIPS = 3
"""After so many rejected responses in a row no other one is requested: each costs money and is not heard."""


def holds_back_audio(run_config: RealtimeRunConfig) -> bool:
    """Return whether audio is released only after its text has passed the guardrails."""
    return run_config.get("guardrails_settings", {}).get("hold_back_audio", False)


class GuardrailMonitor:
    """Checks the responses of agents with output guardrails, and releases held audio."""

    def __init__(
        self,
        ctx: SessionContext,
        connection: SessionConnection,
        responses: ResponseRegistry,
        history: SessionHistory,
        clock: PlaybackClock,
        output: AudioOutput,
        tool_calls: ToolCallRunner,
    ) -> None:
        settings = ctx.run_config.get("guardrails_settings", {})
        self._ctx, self._connection, self._responses, self._history = ctx, connection, responses, history
        self._clock, self._output, self._tool_calls = clock, output, tool_calls
        self._debounce_length = max(settings.get("debounce_text_length", DEFAULT_DEBOUNCE_LENGTH), 1)
        self._feedback_message = settings.get("message")
        self._timeout = settings.get("timeout", DEFAULT_TIMEOUT)
        self.holds_back_audio = holds_back_audio(ctx.run_config)
        self._consecutive_trips = 0
        """Rejected responses since the user's last turn or the last response that passed."""
        self._release_queue: dict[TrackedResponse, GuardedResponse] = {}
        """Responses that ended before their audio was released. The first may release; the others wait for it."""

    def on_response_started(self, response: TrackedResponse) -> None:
        if response.requested_at is not None:
            self._consecutive_trips = 0

    def add_text(self, response: TrackedResponse, item_id: str, content_index: int, delta: str) -> None:
        """Add a delta of the text of a part, and check the text if it has grown enough."""
        text = self._get_guarded(response).texts[item_id, content_index]
        text.append(delta)
        if response.ended or text.length >= (text.next_check_at or self._debounce_length):
            text.next_check_at = (text.length // self._debounce_length + 1) * self._debounce_length
            self._start_check(response, text)

    def complete_text(self, response: TrackedResponse, item_id: str, content_index: int, text: str) -> None:
        """Set the complete text of a part, and check what was not checked yet."""
        guarded = self._get_guarded(response)
        guarded_text = guarded.texts[item_id, content_index]
        guarded_text.set_final_text(text)
        if guarded_text.submitted_length < guarded_text.length:
            self._start_check(response, guarded_text)
        self._release_audio(response, guarded)

    def hold_audio(
        self, response: TrackedResponse, audio: RealtimeAudio | RealtimeAudioEnd, duration_ms: float = 0.0
    ) -> None:
        """Hold audio, or its end event, back until its text has passed and all audio before it is released."""
        guarded = self._get_guarded(response)
        guarded.held_audio.append((audio, duration_ms))
        self._release_audio(response, guarded)

    def on_response_ended(self, response: TrackedResponse, *, complete: bool, on_settled: Callable[[], None]) -> None:
        """Check the rest of the text, and release audio that has no text.

        A response that is not ``complete`` releases only audio whose text has passed. ``on_settled`` is called once it
        is known what of the response is heard: at once, unless audio is held back.
        """
        guarded = response.guarded
        if guarded is None or not self.holds_back_audio:
            on_settled()
        if guarded is None:
            return
        guarded.ended, guarded.incomplete = True, not complete
        guarded.on_settled = on_settled if self.holds_back_audio else None
        for text in list(guarded.texts.values()):
            text.complete = text.complete or complete
            if text.submitted_length < text.length:
                self._start_check(response, text)
        self._release_audio(response, guarded)

    def mute_all(self, response: TrackedResponse) -> None:
        """Mute the response and every other response that holds audio."""
        held = [other for other in self._list_latest_first() if other.guarded is not None and other.guarded.held_audio]
        for stopped in (*held, response):
            stopped.muted = True
            self.discard_audio(stopped)

    def discard_audio(self, response: TrackedResponse) -> None:
        """Drop the held audio of a response that was stopped; it counts as not heard."""
        guarded = response.guarded
        if guarded is None:
            return
        held = {(audio.item_id, audio.content_index) for audio, _ in guarded.held_audio}
        guarded.held_audio.clear()
        for item_id, index in {**guarded.texts, **dict.fromkeys(held)} if self.holds_back_audio else ():
            released_ms = self._clock.get_released_ms(response, item_id, index)
            spoken = self._history.conversation.get_spoken_parts(item_id)
            if (not released_ms or (item_id, index) in held) and index in spoken:
                self._history.truncate(item_id, index, int(released_ms))
        self._release_audio(response, guarded)

    def discard_all_audio(self) -> None:
        """Drop all held audio, because the session is over."""
        for response in self._list_latest_first() if self.holds_back_audio else ():
            guarded = response.guarded
            if guarded is not None and (guarded.held_audio or guarded.checks or not guarded.ended):
                self._discard_unreleased(response, guarded)
                self._mute(response, guarded)

    def _list_latest_first(self) -> list[TrackedResponse]:
        """Return every response that may hold audio. Stopping them in this order releases none of them."""
        return [*self._release_queue, *self._responses.by_id.values()][::-1]

    def _get_guarded(self, response: TrackedResponse) -> GuardedResponse:
        if response.guarded is None:
            response.guarded = GuardedResponse(self._connection.count, ended=response.ended)
        return response.guarded

    def _start_check(self, response: TrackedResponse, guarded_text: GuardedText) -> None:
        if response.tripped:
            return
        guarded, guardrails = self._get_guarded(response), response.resolved_agent.guardrails
        guarded_text.submitted_length = guarded_text.length
        check = GuardrailCheck(guarded_text, guarded_text.get_text(), pending_count=len(guardrails))
        guarded.checks.append(check)
        for guardrail in guardrails:
            name = f"guardrail {guardrail.get_name()} of {response.id}"
            if self._ctx.start_task(self._run_guardrail(guardrail, response, guarded, check), name) is None:
                self._abandon_checks(response, guarded)
                break

    async def _run_guardrail(
        self,
        guardrail: OutputGuardrail[Any],
        response: TrackedResponse,
        guarded: GuardedResponse,
        check: GuardrailCheck,
    ) -> None:
        try:
            result = await self._evaluate(guardrail, response, check)
        except asyncio.CancelledError:
            self._abandon_checks(response, guarded)
            raise
        if response.tripped:
            return
        if result is not None and result.output.tripwire_triggered:
            await self._trip(response, guarded, result, check.text)
        else:
            check.pending_count -= 1
            self._release_audio(response, guarded)

    async def _evaluate(
        self, guardrail: OutputGuardrail[Any], response: TrackedResponse, check: GuardrailCheck
    ) -> OutputGuardrailResult | None:
        """Run a guardrail. Returns ``None`` if it fails: a failed guardrail is skipped."""
        name = guardrail.get_name()
        try:
            with maybe_guardrail_span(name) as span:
                result = await self._run_with_timeout(guardrail, response, check.text)
                if span is not None:
                    span.span_data.triggered = result.output.tripwire_triggered
                return result
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelling():
                raise
            log.warning("the guardrail %r failed and was skipped: %s", name, error, exc_info=error)
            if isinstance(error, GuardrailTimedOut):  # It might have tripped, given more time.
                check.passed = False
                self._ctx.emit_error(error)
            return None

    async def _run_with_timeout(
        self, guardrail: OutputGuardrail[Any], response: TrackedResponse, text: str
    ) -> OutputGuardrailResult:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await guardrail.run(self._ctx.run_context, response.resolved_agent.agent, text)  # type: ignore[arg-type]
        except Exception as error:
            if self._timeout is not None and limit.expired():
                raise GuardrailTimedOut(guardrail.get_name(), self._timeout) from error
            raise

    async def _trip(
        self, response: TrackedResponse, guarded: GuardedResponse, result: OutputGuardrailResult, text: str
    ) -> None:
        # No await before the flags are set: another guardrail that trips now must find the response tripped.
        response.tripped = response.muted = True
        ctx = self._ctx
        ctx.broadcast.discard(lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == response.id)
        ctx.emit(RealtimeGuardrailTripped([result], text, ctx.info, response_id=response.id))
        self._mute(response, guarded)
        self._tool_calls.unblock_events()
        if response.ended or response.superseded:
            await self._connection.send(RealtimeModelSendInterrupt(playback_only=True, response_id=response.id))
        else:
            await self._connection.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response.id))
        if not response.superseded:
            await self._send_feedback(result)

    async def _send_feedback(self, result: OutputGuardrailResult) -> None:
        """Tell the model why it was stopped and request another response, unless too many were rejected in a row."""
        self._consecutive_trips += 1
        if self._consecutive_trips < MAX_CONSECUTIVE_TRIPS:
            message = RealtimeModelSendUserInput(self._build_feedback(result), follow_up=True)
            await self._connection.send_user_input(message)
        else:
            self._ctx.emit_error(TooManyGuardrailTrips(result.guardrail.get_name(), self._consecutive_trips))

    def _build_feedback(self, result: OutputGuardrailResult) -> str:
        name = result.guardrail.get_name()
        message = self._feedback_message
        if callable(message):
            try:
                message = message([name])
            except Exception as error:  # noqa: BLE001 - the default message is used
                self._ctx.emit_error(error)
        return message if message and isinstance(message, str) else f"guardrail triggered: {name}"

    def _release_audio(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Release the audio of the response that has passed, and then of the responses that waited for it."""
        self._release_for_response(response, guarded)
        while self._release_queue and not next(iter(self._release_queue.values())).held_audio:
            del self._release_queue[next(iter(self._release_queue))]
            for after in list(self._release_queue)[:1] or self._responses.by_id.values():
                if after.guarded is not None and after.guarded.held_audio:
                    self._release_for_response(after, after.guarded)

    def _release_for_response(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Release audio whose text, and all text before it, has passed, if it is the response's turn."""
        while guarded.checks and not guarded.checks[0].pending_count:
            check = guarded.checks.popleft()
            if check.passed:
                check.guarded_text.mark_passed(check.text)
        while (
            guarded.held_audio
            and self._has_turn(response)
            and self._may_release(response, guarded, *guarded.held_audio[0])
        ):
            audio, duration_ms = guarded.held_audio.popleft()
            if isinstance(audio, RealtimeAudio):
                self._output.play(response, audio, duration_ms)
            else:
                self._ctx.emit(audio)
        if guarded.ended:
            self._finalize(response, guarded)

    def _has_turn(self, response: TrackedResponse) -> bool:
        return not self._release_queue or next(iter(self._release_queue)) is response

    def _may_release(
        self,
        response: TrackedResponse,
        guarded: GuardedResponse,
        audio: RealtimeAudio | RealtimeAudioEnd,
        duration_ms: float,
    ) -> bool:
        if isinstance(audio, RealtimeAudioEnd):
            return True
        text = guarded.texts[audio.item_id, audio.content_index]
        released_ms = self._clock.get_released_ms(response, audio.item_id, audio.content_index) + duration_ms
        speed = max(1.0, response.resolved_agent.get_output_setting("speed", "speed") or 1.0)
        # A complete response has no text for this part, and will not have any.
        silent = guarded.ended and not guarded.incomplete and not text.length
        return not response.resolved_agent.guardrails or silent or released_ms <= text.get_releasable_ms(speed)

    def _discard_unreleased(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Drop the held audio, which no check will release, here and at the server."""
        unheard = [
            (audio.item_id, audio.content_index) for audio, _ in guarded.held_audio if isinstance(audio, RealtimeAudio)
        ]
        for item_id, index in dict.fromkeys(unheard):
            heard_ms = int(self._clock.get_released_ms(response, item_id, index))
            self._history.truncate(item_id, index, heard_ms)
            # The server may not have the item at all if the response broke off over this connection.
            if not guarded.incomplete or self._connection.count != guarded.connection_number:
                self._ctx.start_task(
                    self._send_truncation(guarded, item_id, index, heard_ms), f"truncation of {item_id}"
                )
        for audio, _ in guarded.held_audio:
            if isinstance(audio, RealtimeAudioEnd):
                self._ctx.emit(audio)
        guarded.held_audio.clear()

    async def _send_truncation(self, guarded: GuardedResponse, item_id: str, content_index: int, heard_ms: int) -> None:
        connection, conversation = self._connection, self._history.conversation
        await connection.wait_connected()
        if connection.count == guarded.connection_number:
            await connection.send_raw(
                "conversation.item.truncate", item_id=item_id, content_index=content_index, audio_end_ms=heard_ms
            )
        elif item_id in conversation and item_id not in conversation.unknown_to_server:
            await self._history.resend_item(item_id)  # This connection has the item as text.

    def _abandon_checks(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Drop all held audio, because the session closes and no check will end."""
        self.discard_all_audio()
        self._mute(response, guarded)

    def _mute(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        response.muted = True
        guarded.checks.clear()
        self.discard_audio(response)

    def _finalize(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Settle a response that has ended: its held audio waits for checks and its turn, then the rest is dropped."""
        if guarded.held_audio:
            self._release_queue.setdefault(response, guarded)
        if not guarded.checks and (not guarded.held_audio or self._has_turn(response)):
            if not (response.tripped or guarded.incomplete):
                self._consecutive_trips = 0
            self._discard_unreleased(response, guarded)
            on_settled, guarded.on_settled = guarded.on_settled, None
            if on_settled is not None:
                on_settled()
