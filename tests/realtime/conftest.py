import asyncio
import threading
from collections.abc import Iterator

import pytest

from standfast.testing import RealtimeServer


@pytest.fixture
def server_elsewhere() -> Iterator[RealtimeServer]:
    """A server in its own thread: it outlives an event loop, and its tasks are not seen by the leak check."""
    started, stop = threading.Event(), threading.Event()
    server = RealtimeServer()

    async def serve() -> None:
        async with server:
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    yield server
    stop.set()
    thread.join()
