"""Output guardrails on what is being said, while it is being said.

The words of each item are looked at whenever they have grown by the debounce length, and once more when they are
complete. The first refusal stops the response: one trip, one cancellation, one message to the model.
"""

import asyncio
from dataclasses import dataclass, field

from holdfast.agents.guardrails import OutputGuardrailResult
from holdfast.realtime.events import RealtimeAudio, RealtimeAudioEnd, RealtimeGuardrailTripped
from holdfast.realtime.model_inputs import RealtimeModelSendInterrupt, RealtimeModelSendUserInput
from holdfast.realtime.responses import Response
from holdfast.realtime.room import Room, log, told_to_stop
from holdfast.tracing.inner import guarding_span

DEBOUNCE = 100


@dataclass
class _Words:
    """What one item says so far, and up to where it was given to the guardrails."""

    pieces: list[str] = field(default_factory=list)
    length: int = 0
    given: int = 0
    next_at: int = 0

    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


@dataclass
class _Watch:
    """One response under guard; ``held`` is its audio that waits for the verdict on the words it came with."""

    words: dict[str, _Words] = field(default_factory=dict)
    held: list[RealtimeAudio | RealtimeAudioEnd] = field(default_factory=list)
    checking: int = 0
    over: bool = False


class Guard:
    """Watches every response of an agent that has output guardrails."""

    def __init__(self, room: Room) -> None:
        settings = room.run_config.get("guardrails_settings", {})
        self._room = room
        self._debounce = max(settings.get("debounce_text_length", DEBOUNCE), 1)
        self._message = settings.get("message")
        self.holds_back = settings.get("hold_back_audio", False)
        self._watched: dict[str, _Watch] = {}

    def hear(self, response: Response, item_id: str, delta: str) -> None:
        """The next words of a response."""
        words = self._words(response, item_id)
        words.pieces.append(delta)
        words.length += len(delta)
        if response.ended or words.length >= (words.next_at or self._debounce):
            words.next_at = (words.length // self._debounce + 1) * self._debounce
            self._check(response, words)

    def complete(self, response: Response, item_id: str, text: str) -> None:
        """The words of an item are complete. Those that were not looked at are now."""
        words = self._words(response, item_id)
        if text and text != words.text():
            words.pieces, words.length, words.given = [text], len(text), 0
        if words.given < words.length:
            self._check(response, words)

    def hold(self, response: Response, audio: RealtimeAudio | RealtimeAudioEnd) -> None:
        """Keep audio, or the word that it is complete, back until the words so far were looked at."""
        watch = self._watch(response)
        watch.held.append(audio)
        self._settle(response, watch)  # Behind the end of the response, no more words would let it go.

    def end(self, response: Response) -> None:
        """The response is over: look at what is left, and let go of audio that nothing more will be said about."""
        watch = self._watched.get(response.id)
        if watch is None:
            return
        watch.over = True
        for words in watch.words.values():
            if words.given < words.length:
                self._check(response, words)
        self._settle(response, watch)

    def drop(self, response: Response) -> None:
        """The response was stopped; nothing of it is to be heard any more."""
        watch = self._watched.get(response.id)
        if watch is not None:
            watch.held.clear()

    def _watch(self, response: Response) -> _Watch:
        return self._watched.setdefault(response.id, _Watch(over=response.ended))

    def _words(self, response: Response, item_id: str) -> _Words:
        return self._watch(response).words.setdefault(item_id, _Words())

    def _check(self, response: Response, words: _Words) -> None:
        if response.tripped:
            return
        watch = self._watch(response)
        words.given = words.length
        watch.checking += 1
        held = len(watch.held)
        if self._room.start(self._ask(response, watch, words.text(), held), f"guardrails of {response.id}") is None:
            watch.checking -= 1

    async def _ask(self, response: Response, watch: _Watch, text: str, held: int) -> None:
        try:
            results = await self._verdicts(response, text)
            tripped = [result for result in results if result.output.tripwire_triggered]
            if tripped:
                await self._trip(response, tripped, text)
            elif not response.tripped:
                self._release(response, watch, held)
        finally:
            watch.checking -= 1
            self._settle(response, watch)

    async def _verdicts(self, response: Response, text: str) -> list[OutputGuardrailResult]:
        results = []
        for guardrail in response.snapshot.guardrails:
            try:
                with guarding_span(guardrail.get_name()) as span:
                    results.append(await guardrail.run(self._room.context, response.snapshot.agent, text))  # type: ignore[arg-type]
                    if span is not None:
                        span.span_data.triggered = results[-1].output.tripwire_triggered
            except (Exception, asyncio.CancelledError) as error:  # One that fails has no say.
                if told_to_stop():
                    raise
                log.warning("the guardrail %r failed and was skipped: %s", guardrail.get_name(), error, exc_info=error)
            if results and results[-1].output.tripwire_triggered:
                break
        return results

    async def _trip(self, response: Response, results: list[OutputGuardrailResult], text: str) -> None:
        # No await before the mark: whoever else finds a reason now finds the response tripped.
        if response.tripped:
            return
        response.tripped = response.muted = True
        room = self._room
        self.drop(response)
        room.outlet.forget(lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == response.id)
        room.emit(RealtimeGuardrailTripped(results, text, room.info, response_id=response.id))
        if response.ended or response.newer:
            await room.send(RealtimeModelSendInterrupt(playback_only=True, response_id=response.id))
        else:
            await room.send(RealtimeModelSendInterrupt(force_response_cancel=True, response_id=response.id))
        if not response.newer:
            await room.say(RealtimeModelSendUserInput(self._feedback(results)))

    def _feedback(self, results: list[OutputGuardrailResult]) -> str:
        names = [result.guardrail.get_name() for result in results]
        if callable(self._message):
            return self._message(names)
        return self._message or f"guardrail triggered: {', '.join(names)}"

    def _release(self, response: Response, watch: _Watch, count: int) -> None:
        """Pass on the audio that came with words that were found good."""
        passed, watch.held = watch.held[:count], watch.held[count:]
        if not response.muted:
            for audio in passed:
                if isinstance(audio, RealtimeAudio):
                    self._room.outlet.flow(audio)
                else:
                    self._room.emit(audio)

    def _settle(self, response: Response, watch: _Watch) -> None:
        if watch.over and not watch.checking:
            self._release(response, watch, len(watch.held))
            self._watched.pop(response.id, None)
