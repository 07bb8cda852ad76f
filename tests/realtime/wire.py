"""A bare websocket client: what it reads and writes is the protocol itself."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.asyncio.client import ClientConnection, connect

from standfast.realtime.local.audio import make_silence
from standfast.realtime.local.tts import ToneTTS

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}


class Wire:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict] = []

    async def send(self, kind: str, **parts) -> None:
        await self.socket.send(json.dumps({"type": kind, **parts}))

    async def read(self) -> dict:
        frame = json.loads(await asyncio.wait_for(self.socket.recv(), 5))
        self.frames.append(frame)
        return frame

    async def until(self, kind: str) -> dict:
        while True:
            frame = await self.read()
            if frame["type"] == kind:
                return frame

    async def types_until(self, kind: str) -> list[str]:
        """The types of what comes, one after the other, deltas in a row counted once."""
        found: list[str] = []
        while not found or found[-1] != kind:
            name = (await self.read())["type"]
            if not found or found[-1] != name:
                found.append(name)
        return found

    async def speak(self, pcm: bytes) -> None:
        for start in range(0, len(pcm), 4800):
            audio = base64.b64encode(pcm[start : start + 4800]).decode()
            await self.send("input_audio_buffer.append", audio=audio)


@asynccontextmanager
async def wired(server, *, model: str = "m", **options) -> AsyncIterator[Wire]:
    async with connect(f"{server.url}?model={model}", compression=None, max_size=None, proxy=None, **options) as socket:
        yield Wire(socket)


async def speech(text: str = "This is somebody speaking.", *, pause_ms: int = 800) -> bytes:
    """Humming that sounds like speech to an energy detector, with a pause behind it."""
    words = await ToneTTS().synthesize(text)
    return make_silence(300) + b"".join(word.audio for word in words) + make_silence(pause_ms)
