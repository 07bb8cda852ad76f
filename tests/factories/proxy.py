"""A proxy that cuts connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class CuttingProxy:
    """Passes connections on to a server, and cuts each as soon as ``is_enough`` says so of what was passed on.

    ``make_limit`` is called for each connection and returns its ``is_enough``.
    """

    def __init__(self, target: int, make_limit: Callable[[], Callable[[bytes], bool]]) -> None:
        self.target, self.make_limit = target, make_limit
        self.cuts = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator["CuttingProxy"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        sending = asyncio.ensure_future(pass_on(reader, back))
        seen, is_enough = b"", self.make_limit()
        try:
            while data := await there.read(100):
                writer.write(data)
                await writer.drain()
                seen += data
                if is_enough(seen):
                    self.cuts += 1
                    return
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            back.transport.abort()
            writer.close()
            await asyncio.wait({sending})


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
