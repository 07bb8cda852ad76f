"""A proxy between a client and PostgreSQL that counts round trips and can cut the connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy

Trigger = Callable[[bytes], bool]


class RequestAfter:
    """True for the request that contains ``marker``, or for a given number of requests after it."""

    def __init__(self, marker: bytes, requests: int) -> None:
        self.marker = marker
        self.remaining = requests
        self.marker_seen = False

    def __call__(self, data: bytes) -> bool:
        if not self.marker_seen:
            self.marker_seen = self.marker in data
        elif self.remaining:
            self.remaining -= 1
        return self.marker_seen and not self.remaining


class Wiretap:
    """A proxy on a loopback port. ``turns`` counts the round trips, ``said`` are the bytes of the client."""

    def __init__(self, url: str) -> None:
        self.url = sqlalchemy.make_url(url)
        self.round_trips = 0
        self.request_bytes = b""
        self.cut_at: Trigger | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def start(cls, url: str) -> AsyncIterator["Wiretap"]:
        tap = cls(url)
        server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
        tap.port = server.sockets[0].getsockname()[1]
        try:
            yield tap
        finally:
            server.close()
            for task in tap.tasks:
                task.cancel()
            await asyncio.gather(*tap.tasks, return_exceptions=True)

    port: int

    @property
    def engine_kwargs(self) -> dict[str, Any]:
        return {"connect_args": {"ssl": False}}

    @property
    def proxy_url(self) -> str:
        tapped = self.url.set(host="127.0.0.1", port=self.port, query={})
        return tapped.render_as_string(hide_password=False)

    def reset(self) -> None:
        """Reset ``turns`` and ``said``."""
        self.round_trips, self.request_bytes = 0, b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            server_reader, server_writer = await self.connect()
            with contextlib.closing(server_writer), contextlib.closing(writer):
                await self.relay(reader, writer, server_reader, server_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(task)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        directory = self.url.query.get("host")
        if isinstance(directory, str):
            return await asyncio.open_unix_connection(f"{directory}/.s.PGSQL.{self.url.port or 5432}")
        return await asyncio.open_connection(self.url.host, self.url.port or 5432)

    async def relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        cut = asyncio.Event()
        awaits_answer = False

        async def forward_requests() -> None:
            nonlocal awaits_answer
            while data := await reader.read(65536):
                if not awaits_answer:
                    self.round_trips += 1
                awaits_answer = True
                self.request_bytes += data
                if self.cut_at is not None and self.cut_at(data):
                    self.cut_at = None
                    cut.set()
                server_writer.write(data)

        async def forward_answers() -> None:
            nonlocal awaits_answer
            while data := await server_reader.read(65536):
                if cut.is_set():
                    return  # The server executed the request, but the client never gets the answer.
                awaits_answer = False
                writer.write(data)

        tasks = [asyncio.create_task(forward_requests()), asyncio.create_task(forward_answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
