"""Output guardrails on what is being said, while it is being said.

The words of each item are looked at whenever they have grown by the debounce length, and once more when they are
complete. The first refusal stops the response: one trip, one cancellation, one message to the model.

Audio that is held back is let go in the order in which it was said: what is good already waits for what is in front of
it. How much of it the words found good let go is known to :mod:`standfast.realtime._session.guarded_response`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from standfast.agents.guardrails import OutputGuardrail, OutputGuardrailResult
from standfast.lifecycle.cancellation import is_cancelling
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.guarded_response import GuardedResponse, GuardedText, GuardrailCheck
from standfast.realtime._session.history_sync import resend_item, send_raw_message
from standfast.realtime._session.responses import TrackedResponse
from standfast.realtime.errors import GuardrailTimedOut, TooManyGuardrailTrips
from standfast.realtime.events import RealtimeAudio, RealtimeAudioEnd, RealtimeGuardrailTripped
from standfast.realtime.model_inputs import RealtimeModelSendInterrupt, RealtimeModelSendUserInput
from standfast.tracing.instrumentation import maybe_guardrail_span

DEFAULT_DEBOUNCE_LENGTH = 100
DEFAULT_TIMEOUT = 30.0
"""How many seconds a guardrail may take for a verdict, unless the settings say otherwise."""
MAX_CONSECUTIVE_TRIPS = 3
"""How many answers are refused before no other one is asked for: each of them is paid for, and nobody hears it."""


class GuardrailMonitor:
    """Watches every response of an agent that has output guardrails, and where audio is held back, all audio.

    ``let_go`` is called when the model has something to tell that must not wait for the end of a call.
    """

    def __init__(self, ctx: SessionContext, *, release_reader: Callable[[], None]) -> None:
        settings = ctx.run_config.get("guardrails_settings", {})
        self._ctx, self._release_reader = ctx, release_reader
        self._debounce_length = max(settings.get("debounce_text_length", DEFAULT_DEBOUNCE_LENGTH), 1)
        self._feedback_message = settings.get("message")
        self._timeout = settings.get("timeout", DEFAULT_TIMEOUT)
        self.holds_back_audio = settings.get("hold_back_audio", False)
        self._consecutive_trips = 0
        """How many answers were refused since the user said something or one was let through."""
        self._release_queue: dict[TrackedResponse, GuardedResponse] = {}
        """Responses that were over before their audio was let go. The first has its turn; everything else waits."""

    def on_response_started(self, response: TrackedResponse) -> None:
        """A response begins."""
        if response.requested_at is not None:
            self._consecutive_trips = 0

    def add_text(self, response: TrackedResponse, item_id: str, content_index: int, delta: str) -> None:
        """The next words of a response."""
        words = self._get_guarded(response).texts[item_id, content_index]
        words.append(delta)
        if response.ended or words.length >= (words.next_check_at or self._debounce_length):
            words.next_check_at = (words.length // self._debounce_length + 1) * self._debounce_length
            self._start_check(response, words)

    def complete_text(self, response: TrackedResponse, item_id: str, content_index: int, text: str) -> None:
        """The words of a part are complete. Those that were not looked at are now."""
        watch = self._get_guarded(response)
        words = watch.texts[item_id, content_index]
        words.set_final_text(text)
        if words.submitted_length < words.length:
            self._start_check(response, words)
        self._release_audio(response, watch)

    def hold_audio(
        self, response: TrackedResponse, audio: RealtimeAudio | RealtimeAudioEnd, duration_ms: float = 0.0
    ) -> None:
        """Keep audio, or the word that it is complete, back until its words were looked at and it has its turn."""
        watch = self._get_guarded(response)
        watch.held_audio.append((audio, duration_ms))
        self._release_audio(response, watch)

    def on_response_ended(self, response: TrackedResponse, *, complete: bool, on_settled: Callable[[], None]) -> None:
        """The response is over: look at what is left, and let go of audio that nothing more will be said about.

        One that was not ``complete`` lets go only of what the words that came last, or whose words were complete.
        ``then`` is called: at once, or where audio is held back, when it is known what is heard of it.
        """
        watch = response.guarded
        if watch is None or not self.holds_back_audio:
            on_settled()
        if watch is None:
            return
        watch.ended, watch.incomplete, watch.on_settled = (
            True,
            not complete,
            on_settled if self.holds_back_audio else None,
        )
        for words in list(watch.texts.values()):
            words.complete = words.complete or complete
            if words.submitted_length < words.length:
                self._start_check(response, words)
        self._release_audio(response, watch)

    def interrupt(self, response: TrackedResponse) -> None:
        """Nothing more is heard of the response, nor of anything else that is held."""
        held = [other for other in self._list_latest_first() if other.guarded is not None and other.guarded.held_audio]
        for stopped in (*held, response):
            stopped.muted = True
            self.discard_audio(stopped)

    def discard_audio(self, response: TrackedResponse) -> None:
        """The response was stopped: nothing more of it is heard, and what is held back never was."""
        watch, ledger = response.guarded, self._ctx.history
        if watch is None:
            return
        held = {(audio.item_id, audio.content_index) for audio, _ in watch.held_audio}
        watch.held_audio.clear()
        for item_id, index in {**watch.texts, **dict.fromkeys(held)} if self.holds_back_audio else ():
            let_go = watch.texts[item_id, index].released_ms
            if (not let_go or (item_id, index) in held) and index in ledger.get_spoken_parts(item_id):
                self._ctx.truncate(item_id, index, int(let_go))
        self._release_audio(response, watch)

    def discard_all_audio(self) -> None:
        """The session is over: what is still held back will never be heard."""
        for response in self._list_latest_first() if self.holds_back_audio else ():
            watch = response.guarded
            if watch is not None and (watch.held_audio or watch.checks or not watch.ended):
                self._discard_unreleased(watch)
                self._mute(response, watch)

    def _list_latest_first(self) -> list[TrackedResponse]:
        """Every response that may hold audio. Who stops them in this order gives none of them a turn."""
        return [*self._release_queue, *self._ctx.responses.by_id.values()][::-1]

    def _get_guarded(self, response: TrackedResponse) -> GuardedResponse:
        if response.guarded is None:
            response.guarded = GuardedResponse(self._ctx.connection_count, ended=response.ended)
        return response.guarded

    def _start_check(self, response: TrackedResponse, guarded_text: GuardedText) -> None:
        if response.tripped:
            return
        watch, guardrails = self._get_guarded(response), response.resolved_agent.guardrails
        guarded_text.submitted_length = guarded_text.length
        check = GuardrailCheck(guarded_text, guarded_text.get_text(), pending_count=len(guardrails))
        watch.checks.append(check)
        for guardrail in guardrails:
            name = f"guardrail {guardrail.get_name()} of {response.id}"
            if self._ctx.start_task(self._run_guardrail(guardrail, response, watch, check), name) is None:
                self._abandon_checks(response, watch)
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
        """What the guardrail says; ``None`` if it fails, and has no say."""
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
            if isinstance(error, GuardrailTimedOut):  # Given more time, it might have refused.
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
        # No await before the mark: whoever else finds a reason now finds the response tripped.
        response.tripped = response.muted = True
        room = self._ctx
        room.broadcast.discard(
            lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == response.id
        )
        room.emit(RealtimeGuardrailTripped([result], text, room.info, response_id=response.id))
        self._mute(response, guarded)
        self._release_reader()
        if response.ended or response.superseded:
            await room.send(RealtimeModelSendInterrupt(playback_only=True, response_id=response.id))
        else:
            await room.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response.id))
        if not response.superseded:
            await self._send_feedback(result)

    async def _send_feedback(self, result: OutputGuardrailResult) -> None:
        """Tell the model why it was stopped and ask for another answer, unless that has led nowhere so far."""
        self._consecutive_trips += 1
        if self._consecutive_trips < MAX_CONSECUTIVE_TRIPS:
            await self._ctx.send_user_input(RealtimeModelSendUserInput(self._build_feedback(result), follow_up=True))
        else:
            self._ctx.emit_error(TooManyGuardrailTrips(result.guardrail.get_name(), self._consecutive_trips))

    def _build_feedback(self, result: OutputGuardrailResult) -> str:
        name = result.guardrail.get_name()
        words = self._feedback_message
        if callable(words):
            try:
                words = words([name])
            except Exception as error:  # noqa: BLE001 - the usual words do
                self._ctx.emit_error(error)
        return words if words and isinstance(words, str) else f"guardrail triggered: {name}"

    def _release_audio(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Pass on what can be heard of the response now, and of those that waited for it."""
        self._release_for_response(response, guarded)
        while self._release_queue and not next(iter(self._release_queue.values())).held_audio:
            del self._release_queue[next(iter(self._release_queue))]
            for after in list(self._release_queue)[:1] or self._ctx.responses.by_id.values():
                if after.guarded is not None and after.guarded.held_audio:
                    self._release_for_response(after, after.guarded)

    def _release_for_response(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Pass on the audio whose words were found good, as were all words before them, if it has its turn."""
        while guarded.checks and not guarded.checks[0].pending_count:
            check = guarded.checks.popleft()
            if check.passed:
                check.guarded_text.mark_passed(check.text)
        while (
            guarded.held_audio
            and self._has_turn(response)
            and self._try_release(response, guarded, *guarded.held_audio[0])
        ):
            audio, lasts_ms = guarded.held_audio.popleft()
            if isinstance(audio, RealtimeAudio):
                self._ctx.play(response, audio, lasts_ms)
            else:
                self._ctx.emit(audio)
        if guarded.ended:
            self._finalize(response, guarded)

    def _has_turn(self, response: TrackedResponse) -> bool:
        return not self._release_queue or next(iter(self._release_queue)) is response

    def _try_release(
        self,
        response: TrackedResponse,
        guarded: GuardedResponse,
        audio: RealtimeAudio | RealtimeAudioEnd,
        duration_ms: float,
    ) -> bool:
        if isinstance(audio, RealtimeAudioEnd):
            return True
        words = guarded.texts[audio.item_id, audio.content_index]
        after = words.released_ms + duration_ms
        speed = max(1.0, response.resolved_agent.get_output_setting("speed", "speed") or 1.0)
        # Nothing was said about it, and nothing will be.
        silent = guarded.ended and not guarded.incomplete and not words.length
        if response.resolved_agent.guardrails and not silent and after > words.get_releasable_ms(speed):
            return False
        words.released_ms = after
        return True

    def _discard_unreleased(self, guarded: GuardedResponse) -> None:
        """Nobody will find good what is still held back: it is not heard."""
        room = self._ctx
        unheard = [
            (audio.item_id, audio.content_index) for audio, _ in guarded.held_audio if isinstance(audio, RealtimeAudio)
        ]
        for item_id, index in dict.fromkeys(unheard):
            heard_ms = int(guarded.texts[item_id, index].released_ms)
            room.truncate(item_id, index, heard_ms)
            if (
                not guarded.incomplete or room.connection_count != guarded.connection_number
            ):  # Otherwise the server may not have it at all.
                room.start_task(self._send_truncation(guarded, item_id, index, heard_ms), f"cutting {item_id}")
        for audio, _ in guarded.held_audio:
            if isinstance(audio, RealtimeAudioEnd):
                room.emit(audio)
        guarded.held_audio.clear()

    async def _send_truncation(self, guarded: GuardedResponse, item_id: str, content_index: int, heard_ms: int) -> None:
        room = self._ctx
        await room.wait_connected()
        if room.connection_count == guarded.connection_number:
            place = {"item_id": item_id, "content_index": content_index, "audio_end_ms": heard_ms}
            await send_raw_message(room, "conversation.item.truncate", **place)
        elif (
            item_id in room.history and item_id not in room.history.unknown_to_server
        ):  # This connection knows it as text.
            await resend_item(room, item_id)

    def _abandon_checks(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """The session closes, and nobody will judge it. Nor has anybody a turn any more."""
        self.discard_all_audio()
        self._mute(response, guarded)

    def _mute(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """Nothing more of it is let go, whatever would be found."""
        response.muted = True
        guarded.checks.clear()
        self.discard_audio(response)

    def _finalize(self, response: TrackedResponse, guarded: GuardedResponse) -> None:
        """It is over. What is held then waits for verdicts and for its turn, and is left out if it may not go."""
        if guarded.held_audio:
            self._release_queue.setdefault(response, guarded)
        if not guarded.checks and (not guarded.held_audio or self._has_turn(response)):
            if not (response.tripped or guarded.incomplete):
                self._consecutive_trips = 0
            self._discard_unreleased(guarded)
            then, guarded.on_settled = guarded.on_settled, None
            if then is not None:
                then()
