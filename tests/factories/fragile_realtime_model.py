"""A realtime model whose connection breaks when a test says so."""

import asyncio

from standfast.realtime import LocalRealtimeModel
from standfast.realtime.openai.transport import TransportClosed


class Fragile:
    """A link that breaks when it is told to."""

    def __init__(self, link):
        self._link = link
        self._broken = asyncio.Event()

    def snap(self):
        self._broken.set()

    async def send(self, frame):
        if self._broken.is_set():
            raise TransportClosed(1006, "snapped", ConnectionError("snapped"))
        await self._link.send(frame)

    async def receive(self):
        reading, snapping = asyncio.ensure_future(self._link.receive()), asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait({reading, snapping}, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.is_set():
                raise TransportClosed(1006, "snapped", ConnectionError("snapped"))
            return await reading
        finally:
            reading.cancel()
            snapping.cancel()

    async def close(self):
        await self._link.close()


class FragileModel(LocalRealtimeModel):
    link = None

    async def open_transport(self, options):
        self.link = Fragile(await super().open_transport(options))
        return self.link
