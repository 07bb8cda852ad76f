"""Output guardrails on what is being said, while it is being said.

The words of each item are looked at whenever they have grown by the debounce length, and once more when they are
complete. The first refusal stops the response: one trip, one cancellation, one message to the model.
"""

import asyncio
from collections import deque
from collections.abc import Callable
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


@dataclass(eq=False)
class _Check:
    """Guardrails at work. When they find nothing, audio may be let go up to this place."""

    upto: int
    good: bool = False


@dataclass
class _Watch:
    """One response under guard; ``held`` is its audio that waits for the verdict on the words it came with.

    ``gone`` counts the audio before it, ``passed`` has the items of which some was let go. ``then`` is called when
    every verdict is there.
    """

    words: dict[str, _Words] = field(default_factory=dict)
    held: list[RealtimeAudio | RealtimeAudioEnd] = field(default_factory=list)
    gone: int = 0
    passed: set[str] = field(default_factory=set)
    checks: deque[_Check] = field(default_factory=deque)
    over: bool = False
    then: Callable[[], None] | None = None

    def take(self, upto: int) -> list[RealtimeAudio | RealtimeAudioEnd]:
        count = upto - self.gone
        taken, self.held = self.held[:count], self.held[count:]
        self.gone += len(taken)
        return taken


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

    def end(self, response: Response, *, then: Callable[[], None]) -> None:
        """The response is over: look at what is left, and let go of audio that nothing more will be said about.

        ``then`` is called: at once, or where audio is held back, when it is known whether the answer was refused.
        """
        watch = self._watched.get(response.id)
        if watch is None or not self.holds_back:
            then()
        if watch is None:
            return
        watch.over, watch.then = True, then if self.holds_back else None
        for words in watch.words.values():
            if words.given < words.length:
                self._check(response, words)
        self._settle(response, watch)

    def drop(self, response: Response) -> None:
        """The response was stopped; nothing of it is to be heard any more."""
        watch = self._watched.get(response.id)
        if watch is not None:
            watch.take(watch.gone + len(watch.held))

    def _watch(self, response: Response) -> _Watch:
        return self._watched.setdefault(response.id, _Watch(over=response.ended))

    def _words(self, response: Response, item_id: str) -> _Words:
        return self._watch(response).words.setdefault(item_id, _Words())

    def _check(self, response: Response, words: _Words) -> None:
        if response.tripped:
            return
        watch = self._watch(response)
        words.given = words.length
        check = _Check(watch.gone + len(watch.held))
        watch.checks.append(check)
        if self._room.start(self._ask(response, watch, words.text(), check), f"guardrails of {response.id}") is None:
            self._unheard(response, watch)  # The session closes, and nobody will judge it.

    async def _ask(self, response: Response, watch: _Watch, text: str, check: _Check) -> None:
        try:
            results = await self._verdicts(response, text)
        except asyncio.CancelledError:
            self._unheard(response, watch)
            raise
        tripped = [result for result in results if result.output.tripwire_triggered]
        if tripped and not response.tripped:
            await self._trip(response, watch, tripped, text)
        elif not response.tripped:
            self._let_go(response, watch, check)

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

    async def _trip(self, response: Response, watch: _Watch, results: list[OutputGuardrailResult], text: str) -> None:
        # No await before the mark: whoever else finds a reason now finds the response tripped.
        response.tripped = response.muted = True
        room = self._room
        room.outlet.forget(lambda event: isinstance(event, RealtimeAudio) and event.audio.response_id == response.id)
        room.emit(RealtimeGuardrailTripped(results, text, room.info, response_id=response.id))
        self._unheard(response, watch)
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

    def _let_go(self, response: Response, watch: _Watch, check: _Check) -> None:
        """Pass on the audio that came with words that were found good, as were all words before them."""
        check.good = True
        while watch.checks and watch.checks[0].good:
            self._release(response, watch, watch.checks.popleft().upto)
        self._settle(response, watch)

    def _release(self, response: Response, watch: _Watch, upto: int) -> None:
        for audio in watch.take(upto):
            if response.muted:
                continue
            if isinstance(audio, RealtimeAudio):
                watch.passed.add(audio.item_id)
                self._room.play(response, audio)
            else:
                self._room.emit(audio)

    def _unheard(self, response: Response, watch: _Watch) -> None:
        """Nothing more of it is let go. What was held back from its beginning on was not heard at all."""
        response.muted = True
        self.drop(response)
        watch.checks.clear()
        for item_id in watch.words if self.holds_back else ():
            for index in self._room.ledger.spoken(item_id) if item_id not in watch.passed else ():
                self._room.cut(item_id, index, 0)
        self._settle(response, watch)

    def _settle(self, response: Response, watch: _Watch) -> None:
        if watch.over and not watch.checks:
            self._release(response, watch, watch.gone + len(watch.held))
            self._watched.pop(response.id, None)
            then, watch.then = watch.then, None
            if then is not None:
                then()
