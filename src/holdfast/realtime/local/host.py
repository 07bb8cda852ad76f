"""Runs an engine in an event loop: keeps its time, and fulfils its wishes with a brain, a voice and a recogniser."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.lifecycle.finishing import told_to_stop
from holdfast.lifecycle.scope import Scope
from holdfast.realtime.local.brain import Brain, Call, Say, question_of
from holdfast.realtime.local.engine import Engine
from holdfast.realtime.local.outbox import Ask, Forget, Frame, HangUp, Transcribe, Wish
from holdfast.realtime.local.responses import Response
from holdfast.realtime.local.speech import Voice, words_of
from holdfast.realtime.local.transcription import Transcriber

log = logging.getLogger("holdfast.realtime")

_SENTENCE_END = re.compile(r"[.!?…:;]\s+|\n")


class Host:
    """One engine, alive. Give it frames; it sends frames and, at the end, hangs up.

    Its tasks belong to ``scope``: they end with it. ``stop`` keeps it from waking up again.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        scope: Scope,
        brain: Brain,
        voice: Voice,
        transcriber: Transcriber | None,
        send: Callable[[Frame], None],
        hang_up: Callable[[int, str], None],
    ) -> None:
        self.engine = engine
        self._scope, self._brain, self._voice, self._transcriber = scope, brain, voice, transcriber
        self._send, self._hang_up = send, hang_up
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._transcripts: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = self._settling = self._said_so = False

    def start(self) -> None:
        """Say what a server says first."""
        self.settle()

    def receive(self, data: str | bytes | Mapping[str, Any]) -> None:
        """A frame from the client."""
        self.engine.receive(data, self._loop.time())
        self.settle()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def settle(self) -> None:
        """Send what there is to send and do what is wished for. To be called after any change of the engine."""
        self.engine.settle(self._loop.time())
        if self._settling:  # whoever is at it sends this too, in its turn
            return
        self._settling = True
        try:
            while taken := self.engine.take():
                for each in taken:
                    self._fulfil(each)
        finally:
            self._settling = False
        self._set_timer()

    def _set_timer(self) -> None:
        due = self.engine.due
        if self._timer is not None:
            if due == self._timer.when():
                return
            self._timer.cancel()
        self._timer = None if due is None or self._stopped else self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        # A timer may come a little before its time, and what is due must be due then.
        self.engine.advance(max(self._loop.time(), self.engine.due or 0.0))
        self.settle()

    def _fulfil(self, wish: Frame | Wish) -> None:
        if self._stopped:
            return
        match wish:
            case dict():
                self._send(wish)
            case Ask(response_id):
                self._answers[response_id] = task = self._scope.start(self._answer(response_id))
                task.add_done_callback(lambda _: self._answers.pop(response_id, None))
            case Forget(response_id):
                if response_id in self._answers:
                    self._answers.pop(response_id).cancel()
            case Transcribe(item_id, audio):
                self._begin_to_transcribe(item_id, audio)
            case HangUp(code, reason):
                self._hang_up(code, reason)

    async def _answer(self, response_id: str) -> None:
        if self._transcripts:
            await asyncio.wait(set(self._transcripts.values()))
        response = self.engine.response(response_id)
        if response is None:
            return
        try:
            await self._give(response)
        except (Exception, asyncio.CancelledError) as error:  # A brain is anybody's code.
            if isinstance(error, asyncio.CancelledError) and told_to_stop():
                raise
            log.warning("the brain of a realtime model failed", exc_info=error)
            response.fail(str(getattr(error, "code", "") or "server_error"), _told(error))
        else:
            response.finish(self._loop.time())
        self.settle()

    async def _give(self, response: Response) -> None:
        tools = msgspec.to_builtins(response.settings.tools)
        unsaid = ""
        async with aclosing(self._brain.answer(question_of(response, tools))) as parts:
            async for part in parts:
                match part:
                    case Say(text):
                        unsaid = await self._say(response, unsaid + text)
                    case Call(name, _, call_id):
                        await self._say(response, unsaid, all_of_it=True)
                        unsaid = ""
                        response.call(_whole(name), _whole(part.json), self._loop.time(), call_id=call_id)
                self.settle()
        await self._say(response, unsaid, all_of_it=True)

    async def _say(self, response: Response, text: str, *, all_of_it: bool = False) -> str:
        """Say the whole sentences in a text, and give back what is not one yet. Writing waits for none."""
        if not response.speaks:
            for piece in words_of(_whole(text)):
                response.write(piece, self._loop.time())
            return ""
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        end = len(text) if all_of_it else (ends[-1] if ends else 0)
        if end:
            for word in await self._voice.speak(_whole(text[:end]), speed=response.settings.audio.output.speed):
                response.sound(word.text, word.audio, self._loop.time())
            self.settle()
        return text[end:]

    def _begin_to_transcribe(self, item_id: str, audio: bytes) -> None:
        if self._transcriber is not None:
            transcribing = self._transcribe(item_id, audio, self._transcriber)
            self._transcripts[item_id] = task = self._scope.start(transcribing)
            task.add_done_callback(lambda _: self._transcripts.pop(item_id, None))
        elif not self._said_so:
            self._said_so = True
            log.warning(
                "somebody speaks to a realtime model that has no recogniser: its brain is told for how long, "
                "but not what was said; give the model a transcriber, or write to it"
            )

    async def _transcribe(self, item_id: str, audio: bytes, transcriber: Transcriber) -> None:
        try:
            self.engine.transcribed(item_id, _whole(await transcriber.transcribe(audio)))
        except (Exception, asyncio.CancelledError) as error:  # A recogniser is anybody's code.
            if isinstance(error, asyncio.CancelledError) and told_to_stop():
                raise
            self.engine.transcription_failed(item_id, _told(error))
        self.settle()


def _told(error: BaseException) -> str:
    return _whole(f"{type(error).__name__}: {error}")


def _whole(text: str) -> str:
    """The text without halves of characters, as streams may leave behind: no frame could carry them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
