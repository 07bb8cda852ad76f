"""Clients and listeners of the realtime protocol, and audio that sounds like speech to an energy detector."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from standfast.realtime import RealtimeModelListener
from standfast.realtime.local.audio import make_silence
from standfast.realtime.local.speech import ToneTTS
from standfast.testing import RealtimeServer

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
READ_TIMEOUT = 60.0


class RawClient:
    """Sends and reads JSON frames without any code of the client under test."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict] = []

    async def send(self, event_type: str, **fields) -> None:
        await self.socket.send(json.dumps({"type": event_type, **fields}))

    async def read(self) -> dict:
        frame = json.loads(await asyncio.wait_for(self.socket.recv(), READ_TIMEOUT))
        self.frames.append(frame)
        return frame

    async def read_until(self, event_type: str) -> dict:
        while True:
            frame = await self.read()
            if frame["type"] == event_type:
                return frame

    async def read_types_until(self, event_type: str) -> list[str]:
        """Return the types of the frames up to one of this type, with repetitions counted once."""
        types: list[str] = []
        while not types or types[-1] != event_type:
            name = (await self.read())["type"]
            if not types or types[-1] != name:
                types.append(name)
        return types

    async def send_speech(self, pcm: bytes) -> None:
        for start in range(0, len(pcm), 4800):
            audio = base64.b64encode(pcm[start : start + 4800]).decode()
            await self.send("input_audio_buffer.append", audio=audio)


@asynccontextmanager
async def open_raw_client(server, *, model: str = "m", **options) -> AsyncIterator[RawClient]:
    async with connect(f"{server.url}?model={model}", compression=None, max_size=None, proxy=None, **options) as socket:
        yield RawClient(socket)


class ModelEventRecorder(RealtimeModelListener):
    """A listener that keeps the events of a model."""

    raw_server_events = False

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._event_added = asyncio.Event()

    async def on_event(self, event: Any) -> None:
        self.events.append(event)
        self._event_added.set()

    def of_type(self, event_type: str) -> list[Any]:
        return [event for event in self.events if event.type == event_type]

    async def wait_for(self, event_type: str, count: int = 1) -> Any:
        async with asyncio.timeout(READ_TIMEOUT):
            while len(self.of_type(event_type)) < count:
                self._event_added.clear()
                await self._event_added.wait()
        return self.of_type(event_type)[count - 1]


def make_config(server: RealtimeServer, **options: Any) -> Any:
    """Return a model config for a connection to a test server."""
    return {"url": f"{server.url}?model=m", "api_key": "k", **options}


async def make_speech(text: str = "This is somebody speaking.", *, pause_ms: int = 800) -> bytes:
    """Return tones with a pause after them."""
    words = await ToneTTS().synthesize(text)
    return make_silence(300) + b"".join(word.audio for word in words) + make_silence(pause_ms)
