"""A listener between a client and PostgreSQL: it counts what is said and can cut the line."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy

Trigger = Callable[[bytes], bool]


class RequestAfter:
    """The request with these bytes in it, or so many after it."""

    def __init__(self, marker: bytes, requests: int) -> None:
        self.marker = marker
        self.left = requests
        self.met = False

    def __call__(self, data: bytes) -> bool:
        if not self.met:
            self.met = self.marker in data
        elif self.left:
            self.left -= 1
        return self.met and not self.left


class Wiretap:
    """A proxy on a port of this machine. ``turns`` counts the requests that waited for an answer."""

    def __init__(self, url: str) -> None:
        self.url = sqlalchemy.make_url(url)
        self.turns = 0
        self.said = b""
        self.cut_at: Trigger | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def on(cls, url: str) -> AsyncIterator["Wiretap"]:
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
    def tapped_url(self) -> str:
        tapped = self.url.set(host="127.0.0.1", port=self.port, query={})
        return tapped.render_as_string(hide_password=False)

    def listen(self) -> None:
        """Forget what was heard so far."""
        self.turns, self.said = 0, b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            there, back = await self.connect()
            with contextlib.closing(back), contextlib.closing(writer):
                await self.relay(reader, writer, there, back)
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
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        cut = asyncio.Event()
        line = {"asked": False}

        async def forth() -> None:
            while data := await reader.read(65536):
                if not line["asked"]:
                    self.turns += 1
                line["asked"] = True
                self.said += data
                if self.cut_at is not None and self.cut_at(data):
                    self.cut_at = None
                    cut.set()
                back.write(data)

        async def answer() -> None:
            while data := await there.read(65536):
                if cut.is_set():
                    return  # it was done over there, and nobody here will hear of it
                line["asked"] = False
                writer.write(data)

        both = [asyncio.create_task(forth()), asyncio.create_task(answer())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
