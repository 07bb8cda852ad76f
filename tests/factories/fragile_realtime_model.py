"""A local realtime model whose connection a test can break."""

import asyncio

from standfast.realtime import LocalRealtimeModel
from standfast.realtime.openai.transport import TransportClosed


class FragileTransport:
    """A transport that fails after :meth:`snap`."""

    def __init__(self, transport):
        self._transport = transport
        self._broken = asyncio.Event()

    def snap(self):
        self._broken.set()

    async def send(self, frame):
        if self._broken.is_set():
            raise TransportClosed(1006, "snapped", ConnectionError("snapped"))
        await self._transport.send(frame)

    async def receive(self):
        reading, snapping = asyncio.ensure_future(self._transport.receive()), asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait({reading, snapping}, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.is_set():
                raise TransportClosed(1006, "snapped", ConnectionError("snapped"))
            return await reading
        finally:
            reading.cancel()
            snapping.cancel()

    async def close(self):
        await self._transport.close()


class FragileModel(LocalRealtimeModel):
    link = None

    async def open_transport(self, options):
        self.link = FragileTransport(await super().open_transport(options))
        return self.link
