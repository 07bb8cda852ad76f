"""Runs an engine in an event loop: sets its timer, and executes its actions with a responder, TTS and transcriber."""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from standfast.base.log import get_logger
from standfast.lifecycle.scope import Scope, is_cancelling
from standfast.realtime.local.actions import (
    Action,
    CancelGeneration,
    CloseConnection,
    Frame,
    GenerateResponse,
    TranscribeAudio,
)
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.responder import CallTool, Responder, Say, build_responder_request
from standfast.realtime.local.responses import EngineResponse
from standfast.realtime.local.speech import TextToSpeech, Transcriber, split_words

log = get_logger("standfast.realtime")

_SENTENCE_END = re.compile(r"[.!?…:;]\s+|\n")


class EngineRunner:
    """Runs one engine: passes it the client's frames, sends its frames and closes the connection at the end.

    Its tasks belong to ``scope`` and end with it. After :meth:`stop`, the timer does not fire again.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        scope: Scope,
        responder: Responder,
        tts: TextToSpeech,
        transcriber: Transcriber | None,
        send: Callable[[Frame], None],
        close_connection: Callable[[int, str], None],
    ) -> None:
        self.engine = engine
        self._scope, self._responder, self._tts, self._transcriber = scope, responder, tts, transcriber
        self._send, self._close_connection = send, close_connection
        self._loop = asyncio.get_running_loop()
        self._response_tasks: dict[str, asyncio.Task[None]] = {}
        self._transcription_tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = self._flushing = self._warned_no_transcriber = False

    def start(self) -> None:
        """Send the first frames of the session."""
        self.flush()

    def receive(self, data: str | bytes | Mapping[str, Any]) -> None:
        """Handle a frame of the client."""
        self.engine.receive(data, self._loop.time())
        self.flush()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Send the engine's frames and execute its actions; to be called after any change of the engine."""
        self.engine.process_ended_responses(self._loop.time())
        if self._flushing:  # The outer call sends these too, in order.
            return
        self._flushing = True
        try:
            while outgoing := self.engine.drain_outbox():
                for action in outgoing:
                    self._execute(action)
        finally:
            self._flushing = False
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self.engine.deadline
        if self._timer is not None:
            if deadline == self._timer.when():
                return
            self._timer.cancel()
        self._timer = None if deadline is None or self._stopped else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # A timer may fire slightly early, and what is due must be sent nevertheless.
        self.engine.advance(max(self._loop.time(), self.engine.deadline or 0.0))
        self.flush()

    def _execute(self, action: Frame | Action) -> None:
        if self._stopped:
            return
        match action:
            case dict():
                self._send(action)
            case GenerateResponse(response_id):
                self._response_tasks[response_id] = task = self._scope.start(self._generate_response(response_id))
                task.add_done_callback(lambda _: self._response_tasks.pop(response_id, None))
            case CancelGeneration(response_id):
                if response_id in self._response_tasks:
                    self._response_tasks.pop(response_id).cancel()
            case TranscribeAudio(item_id, audio):
                self._start_transcription(item_id, audio)
            case CloseConnection(code, reason):
                self._close_connection(code, reason)

    async def _generate_response(self, response_id: str) -> None:
        if self._transcription_tasks:
            await asyncio.wait(set(self._transcription_tasks.values()))
        response = self.engine.get_response(response_id)
        if response is None:
            return
        try:
            await self._stream_response(response)
        except (Exception, asyncio.CancelledError) as error:  # The responder is code of the user.
            if isinstance(error, asyncio.CancelledError) and is_cancelling():
                raise
            log.warning("the responder of a realtime model failed", exc_info=error)
            response.fail(str(getattr(error, "code", "") or "server_error"), _describe_error(error))
        else:
            response.finish(self._loop.time())
        self.flush()

    async def _stream_response(self, response: EngineResponse) -> None:
        tools = msgspec.to_builtins(response.settings.tools)
        buffer = ""
        async with aclosing(self._responder.respond(build_responder_request(response, tools))) as parts:
            async for part in parts:
                match part:
                    case Say(text):
                        buffer = await self._output_text(response, buffer + text)
                    case CallTool(name, _, call_id):
                        await self._output_text(response, buffer, final=True)
                        buffer = ""
                        response.add_call(
                            _replace_surrogates(name),
                            _replace_surrogates(part.arguments_json),
                            self._loop.time(),
                            call_id=call_id,
                        )
                self.flush()
        await self._output_text(response, buffer, final=True)

    async def _output_text(self, response: EngineResponse, text: str, *, final: bool = False) -> str:
        """Speak the complete sentences of a text and return the rest. Written output does not wait for sentences."""
        if not response.has_audio_output:
            for piece in split_words(_replace_surrogates(text)):
                response.add_text(piece, self._loop.time())
            return ""
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        end = len(text) if final else (ends[-1] if ends else 0)
        if end:
            for word in await self._tts.synthesize(
                _replace_surrogates(text[:end]), speed=response.settings.audio.output.speed
            ):
                response.add_word(word.text, word.audio, self._loop.time())
            self.flush()
        return text[end:]

    def _start_transcription(self, item_id: str, audio: bytes) -> None:
        if self._transcriber is not None:
            transcription = self._transcribe(item_id, audio, self._transcriber)
            self._transcription_tasks[item_id] = task = self._scope.start(transcription)
            task.add_done_callback(lambda _: self._transcription_tasks.pop(item_id, None))
        elif not self._warned_no_transcriber:
            self._warned_no_transcriber = True
            log.warning(
                "a realtime model without a transcriber received speech: its responder learns the duration, but not "
                "the words; pass transcriber= to the model, or send text"
            )

    async def _transcribe(self, item_id: str, audio: bytes, transcriber: Transcriber) -> None:
        try:
            self.engine.add_transcript(item_id, _replace_surrogates(await transcriber.transcribe(audio)))
        except (Exception, asyncio.CancelledError) as error:  # The transcriber is code of the user.
            if isinstance(error, asyncio.CancelledError) and is_cancelling():
                raise
            self.engine.report_transcription_failure(item_id, _describe_error(error))
        self.flush()


def _describe_error(error: BaseException) -> str:
    return _replace_surrogates(f"{type(error).__name__}: {error}")


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which a split stream may contain and which JSON frames cannot carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
