"""Output guardrails on what is being said, while it is being said.

The words of each item are looked at whenever they have grown by the debounce length, and once more when they are
complete. The first refusal stops the response: one trip, one cancellation, one message to the model.

Audio that is held back is let go in the order in which it was said: what is good already waits for what is in front of
it. How much of it the words found good let go is known to :mod:`holdfast.realtime.watch`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.agents.guardrails import OutputGuardrail, OutputGuardrailResult
from holdfast.lifecycle.finishing import told_to_stop
from holdfast.realtime.errors import AnswersRefused, GuardrailTimedOut
from holdfast.realtime.events import RealtimeAudio, RealtimeAudioEnd, RealtimeGuardrailTripped
from holdfast.realtime.model_inputs import RealtimeModelSendInterrupt, RealtimeModelSendUserInput
from holdfast.realtime.responses import Response
from holdfast.realtime.retelling import retell, send_raw
from holdfast.realtime.room import Room, log
from holdfast.realtime.watch import Check, Watch, Words
from holdfast.tracing.inner import guarding_span

DEBOUNCE = 100
ANSWERED_WITHIN = 30.0
"""How many seconds a guardrail may take for a verdict, unless the settings say otherwise."""
IN_A_ROW = 3
"""How many answers are refused before no other one is asked for: each of them is paid for, and nobody hears it."""


class Guard:
    """Watches every response of an agent that has output guardrails, and where audio is held back, all audio.

    ``let_go`` is called when the model has something to tell that must not wait for the end of a call.
    """

    def __init__(self, room: Room, *, let_go: Callable[[], None]) -> None:
        settings = room.run_config.get("guardrails_settings", {})
        self._room, self._let_reader_go = room, let_go
        self._debounce = max(settings.get("debounce_text_length", DEBOUNCE), 1)
        self._message = settings.get("message")
        self._timeout = settings.get("timeout", ANSWERED_WITHIN)
        self.holds_back = settings.get("hold_back_audio", False)
        self._refused = 0
        """How many answers were refused since the user said something or one was let through."""
        self._line: dict[Response, Watch] = {}
        """Responses that were over before their audio was let go. The first has its turn; everything else waits."""

    def begin(self, response: Response) -> None:
        """A response begins."""
        if response.asked_at is not None:
            self._refused = 0

    def hear(self, response: Response, item_id: str, content_index: int, delta: str) -> None:
        """The next words of a response."""
        words = self._watch(response).words[item_id, content_index]
        words.add(delta)
        if response.ended or words.length >= (words.next_at or self._debounce):
            words.next_at = (words.length // self._debounce + 1) * self._debounce
            self._check(response, words)

    def complete(self, response: Response, item_id: str, content_index: int, text: str) -> None:
        """The words of a part are complete. Those that were not looked at are now."""
        watch = self._watch(response)
        words = watch.words[item_id, content_index]
        words.are(text)
        if words.given < words.length:
            self._check(response, words)
        self._let_go(response, watch)

    def hold(self, response: Response, audio: RealtimeAudio | RealtimeAudioEnd, lasts_ms: float = 0.0) -> None:
        """Keep audio, or the word that it is complete, back until its words were looked at and it has its turn."""
        watch = self._watch(response)
        watch.held.append((audio, lasts_ms))
        self._let_go(response, watch)

    def end(self, response: Response, *, complete: bool, then: Callable[[], None]) -> None:
        """The response is over: look at what is left, and let go of audio that nothing more will be said about.

        One that was not ``complete`` lets go only of what the words that came last, or whose words were complete.
        ``then`` is called: at once, or where audio is held back, when it is known what is heard of it.
        """
        watch = response.watch
        if watch is None or not self.holds_back:
            then()
        if watch is None:
            return
        watch.over, watch.cut_short, watch.then = True, not complete, then if self.holds_back else None
        for words in list(watch.words.values()):
            words.complete = words.complete or complete
            if words.given < words.length:
                self._check(response, words)
        self._let_go(response, watch)

    def interrupt(self, response: Response) -> None:
        """Nothing more is heard of the response, nor of anything else that is held."""
        held = [other for other in self._latest_first() if other.watch is not None and other.watch.held]
        for stopped in (*held, response):
            stopped.muted = True
            self.drop(stopped)

    def drop(self, response: Response) -> None:
        """The response was stopped: nothing more of it is heard, and what is held back never was."""
        watch, ledger = response.watch, self._room.ledger
        if watch is None:
            return
        held = {(audio.item_id, audio.content_index) for audio, _ in watch.held}
        watch.held.clear()
        for item_id, index in {**watch.words, **dict.fromkeys(held)} if self.holds_back else ():
            let_go = watch.words[item_id, index].let_go
            if (not let_go or (item_id, index) in held) and index in ledger.spoken(item_id):
                self._room.cut(item_id, index, int(let_go))
        self._let_go(response, watch)

    def silence(self) -> None:
        """The session is over: what is still held back will never be heard."""
        for response in self._latest_first() if self.holds_back else ():
            watch = response.watch
            if watch is not None and (watch.held or watch.checks or not watch.over):
                self._leave_out(watch)
                self._unheard(response, watch)

    def _latest_first(self) -> list[Response]:
        """Every response that may hold audio. Who stops them in this order gives none of them a turn."""
        return [*self._line, *self._room.responses.known.values()][::-1]

    def _watch(self, response: Response) -> Watch:
        if response.watch is None:
            response.watch = Watch(self._room.links, over=response.ended)
        return response.watch

    def _check(self, response: Response, words: Words) -> None:
        if response.tripped:
            return
        watch, guardrails = self._watch(response), response.snapshot.guardrails
        words.given = words.length
        check = Check(words, words.text(), unanswered=len(guardrails))
        watch.checks.append(check)
        for guardrail in guardrails:
            name = f"guardrail {guardrail.get_name()} of {response.id}"
            if self._room.start(self._ask(guardrail, response, watch, check), name) is None:
                self._unjudged(response, watch)
                break

    async def _ask(self, guardrail: OutputGuardrail[Any], response: Response, watch: Watch, check: Check) -> None:
        try:
            result = await self._verdict(guardrail, response, check)
        except asyncio.CancelledError:
            self._unjudged(response, watch)
            raise
        if response.tripped:
            return
        if result is not None and result.output.tripwire_triggered:
            await self._trip(response, watch, result, check.text)
        else:
            check.unanswered -= 1
            self._let_go(response, watch)

    async def _verdict(
        self, guardrail: OutputGuardrail[Any], response: Response, check: Check
    ) -> OutputGuardrailResult | None:
        """What the guardrail says; ``None`` if it fails, and has no say."""
        name = guardrail.get_name()
        try:
            with guarding_span(name) as span:
                result = await self._in_time(guardrail, response, check.text)
                if span is not None:
                    span.span_data.triggered = result.output.tripwire_triggered
                return result
        except (Exception, asyncio.CancelledError) as error:
            if told_to_stop():
                raise
            log.warning("the guardrail %r failed and was skipped: %s", name, error, exc_info=error)
            if isinstance(error, GuardrailTimedOut):  # Given more time, it might have refused.
                check.good = False
                self._room.fail(error)
            return None

    async def _in_time(self, guardrail: OutputGuardrail[Any], response: Response, text: str) -> OutputGuardrailResult:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await guardrail.run(self._room.context, response.snapshot.agent, text)  # type: ignore[arg-type]
        except Exception as error:
            if self._timeout is not None and limit.expired():
                raise GuardrailTimedOut(guardrail.get_name(), self._timeout) from error
            raise

    async def _trip(self, response: Response, watch: Watch, result: OutputGuardrailResult, text: str) -> None:
        # No await before the mark: whoever else finds a reason now finds the response tripped.
        response.tripped = response.muted = True
        room = self._room
        room.outlet.forget(lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == response.id)
        room.emit(RealtimeGuardrailTripped([result], text, room.info, response_id=response.id))
        self._unheard(response, watch)
        self._let_reader_go()
        if response.ended or response.newer:
            await room.send(RealtimeModelSendInterrupt(playback_only=True, response_id=response.id))
        else:
            await room.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response.id))
        if not response.newer:
            await self._follow_up(result)

    async def _follow_up(self, result: OutputGuardrailResult) -> None:
        """Tell the model why it was stopped and ask for another answer, unless that has led nowhere so far."""
        self._refused += 1
        if self._refused < IN_A_ROW:
            await self._room.say(RealtimeModelSendUserInput(self._feedback(result), follow_up=True))
        else:
            self._room.fail(AnswersRefused(result.guardrail.get_name(), self._refused))

    def _feedback(self, result: OutputGuardrailResult) -> str:
        name = result.guardrail.get_name()
        words = self._message
        if callable(words):
            try:
                words = words([name])
            except Exception as error:  # noqa: BLE001 - the usual words do
                self._room.fail(error)
        return words if words and isinstance(words, str) else f"guardrail triggered: {name}"

    def _let_go(self, response: Response, watch: Watch) -> None:
        """Pass on what can be heard of the response now, and of those that waited for it."""
        self._go_on(response, watch)
        while self._line and not next(iter(self._line.values())).held:
            del self._line[next(iter(self._line))]
            for after in list(self._line)[:1] or self._room.responses.known.values():
                if after.watch is not None and after.watch.held:
                    self._go_on(after, after.watch)

    def _go_on(self, response: Response, watch: Watch) -> None:
        """Pass on the audio whose words were found good, as were all words before them, if it has its turn."""
        while watch.checks and not watch.checks[0].unanswered:
            check = watch.checks.popleft()
            if check.good:
                check.words.found_good(check.text)
        while watch.held and self._has_turn(response) and self._may_go(response, watch, *watch.held[0]):
            audio, lasts_ms = watch.held.popleft()
            if isinstance(audio, RealtimeAudio):
                self._room.play(response, audio, lasts_ms)
            else:
                self._room.emit(audio)
        if watch.over:
            self._settle(response, watch)

    def _has_turn(self, response: Response) -> bool:
        return not self._line or next(iter(self._line)) is response

    def _may_go(
        self, response: Response, watch: Watch, audio: RealtimeAudio | RealtimeAudioEnd, lasts_ms: float
    ) -> bool:
        if isinstance(audio, RealtimeAudioEnd):
            return True
        words = watch.words[audio.item_id, audio.content_index]
        after = words.let_go + lasts_ms
        speed = max(1.0, response.snapshot.output("speed", "speed") or 1.0)
        # Nothing was said about it, and nothing will be.
        silent = watch.over and not watch.cut_short and not words.length
        if response.snapshot.guardrails and not silent and after > words.may_last(speed):
            return False
        words.let_go = after
        return True

    def _leave_out(self, watch: Watch) -> None:
        """Nobody will find good what is still held back: it is not heard."""
        room = self._room
        unheard = [(audio.item_id, audio.content_index) for audio, _ in watch.held if isinstance(audio, RealtimeAudio)]
        for item_id, index in dict.fromkeys(unheard):
            heard_ms = int(watch.words[item_id, index].let_go)
            room.cut(item_id, index, heard_ms)
            if not watch.cut_short or room.links != watch.link:  # Otherwise the server may not have it at all.
                room.start(self._tell_cut(watch, item_id, index, heard_ms), f"cutting {item_id}")
        for audio, _ in watch.held:
            if isinstance(audio, RealtimeAudioEnd):
                room.emit(audio)
        watch.held.clear()

    async def _tell_cut(self, watch: Watch, item_id: str, index: int, heard_ms: int) -> None:
        room = self._room
        await room.connected()
        if room.links == watch.link:
            place = {"item_id": item_id, "content_index": index, "audio_end_ms": heard_ms}
            await send_raw(room, "conversation.item.truncate", **place)
        elif item_id in room.ledger and item_id not in room.ledger.untold:  # This connection knows it as text.
            await retell(room, item_id)

    def _unjudged(self, response: Response, watch: Watch) -> None:
        """The session closes, and nobody will judge it. Nor has anybody a turn any more."""
        self.silence()
        self._unheard(response, watch)

    def _unheard(self, response: Response, watch: Watch) -> None:
        """Nothing more of it is let go, whatever would be found."""
        response.muted = True
        watch.checks.clear()
        self.drop(response)

    def _settle(self, response: Response, watch: Watch) -> None:
        """It is over. What is held then waits for verdicts and for its turn, and is left out if it may not go."""
        if watch.held:
            self._line.setdefault(response, watch)
        if not watch.checks and (not watch.held or self._has_turn(response)):
            if not (response.tripped or watch.cut_short):
                self._refused = 0
            self._leave_out(watch)
            then, watch.then = watch.then, None
            if then is not None:
                then()
