import asyncio
import threading
from collections.abc import Iterator

import pytest

from standfast.testing import RealtimeServer


@pytest.fixture
def server_elsewhere() -> Iterator[RealtimeServer]:
    """A server in a thread of its own: it outlives a loop, and its tasks are not taken for those of what is tested."""
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
