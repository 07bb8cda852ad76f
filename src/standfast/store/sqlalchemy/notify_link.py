"""The link of a PostgreSQL store: LISTEN and NOTIFY on a connection of its own.

Never inside a commit of the store: transactions that notify wait for each other when they commit. Everyone who can
connect to a database can listen to its channels, so their names are made with a secret that is stored in the tables:
who cannot read these cannot read the messages.
"""

import asyncio
import base64
import hashlib
import secrets
from collections import deque
from contextlib import suppress
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from standfast.base.log import get_logger
from standfast.base.time import Backoff
from standfast.store.links import MAX_PENDING_BYTES, LinkListener, LinkUnavailable

_CHUNK = 5700
"""Bytes in one notification: its payload must be shorter than 8000 bytes, also in base64 and with its header."""
_MAX_BATCH = 128
_BATCH_DELAY = 0.005
_HEARTBEAT = 15.0
_TIMEOUT = 10.0
_ECHO_TIMEOUT = 5.0
_SEND = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n(channel, payload)"
_ALL = ""
_log = get_logger(__name__)


def make_secret() -> str:
    return secrets.token_hex(16)


class NotifyLink:
    """A link through notifications of PostgreSQL. It reconnects by itself."""

    def __init__(self, engine: AsyncEngine, secret: str, name: str, listener: LinkListener) -> None:
        self._engine, self._secret, self._name, self._listener = engine, secret, name, listener
        self._connection: AsyncConnection | None = None
        self._driver: Any = None
        self._queue: deque[tuple[str, str]] = deque()
        self._queued_bytes = self._count = 0
        self._wakeup = asyncio.Event()
        self._echoed = asyncio.Event()
        self._parts: dict[str, tuple[str, list[str]]] = {}
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, engine: AsyncEngine, secret: str, name: str, listener: LinkListener) -> "NotifyLink":
        if engine.dialect.driver != "asyncpg":
            raise LinkUnavailable(f"notifications need the driver asyncpg, not {engine.dialect.driver}")
        link = cls(engine, secret, name, listener)
        await link._connect()
        link._task = asyncio.get_running_loop().create_task(link._stay_connected(), name="standfast link")
        return link

    def send(self, to: str, data: bytes) -> None:
        if self._driver is None or self._queued_bytes > MAX_PENDING_BYTES:
            return
        self._count += 1
        channel, parts = self._make_channel(to), range(0, len(data) or 1, _CHUNK)
        for number, start in enumerate(parts, start=1):
            text = base64.b64encode(data[start : start + _CHUNK]).decode()
            self._queue.append((channel, f"{self._name} {self._count} {number} {len(parts)} {text}"))
            self._queued_bytes += len(text)
        self._wakeup.set()

    def broadcast(self, data: bytes) -> None:
        self.send(_ALL, data)

    def _make_channel(self, name: str) -> str:
        return "standfast_" + hashlib.sha256(f"{self._secret} {name}".encode()).hexdigest()[:32]

    # --- the connection -------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Connect and listen. A pooler that gives each transaction another connection is found out by an echo."""
        # Detached from the pool, with everything that the engine does to connect: certificates, tokens, events.
        connection = await self._engine.connect()
        try:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await connection.run_sync(lambda sync: sync.detach())
            await driver.execute("SET synchronous_commit = off", timeout=_TIMEOUT)  # a notification needs no disk
            self._echoed.clear()
            driver.add_termination_listener(self._note_termination)
            for name in (self._name, _ALL):
                await driver.add_listener(self._make_channel(name), self._receive)
            await driver.execute(_SEND, [self._make_channel(self._name)], [f"{self._name} 0 1 1 "], timeout=_TIMEOUT)
            try:
                async with asyncio.timeout(_ECHO_TIMEOUT):
                    await self._echoed.wait()
            except TimeoutError:
                raise LinkUnavailable("notifications do not arrive; is there a pooler in between?") from None
        except BaseException:
            await _close_quietly(connection)
            raise
        self._connection, self._driver = connection, driver

    async def _stay_connected(self) -> None:
        """Send what is queued, and connect again after the connection was lost."""
        backoff = Backoff(initial=0.05, maximum=5.0)
        while not self._closing:
            try:
                await self._send_queued()
            except Exception as problem:  # noqa: BLE001 - the driver raises many kinds; the connection is replaced
                _log.info("the link to other runtimes was interrupted: %s", type(problem).__name__)
            if self._closing:
                return
            await self._disconnect()
            self._queue.clear()
            self._queued_bytes = 0
            self._parts.clear()
            while self._driver is None:
                await asyncio.sleep(backoff.next_delay())
                with suppress(Exception):  # drivers raise many kinds, and the pool may hold more broken connections
                    await self._connect()
            backoff.reset()
            self._listener.note_loss(None)

    async def _send_queued(self) -> None:
        while not (self._closing and not self._queue):
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._wakeup.wait()
            self._wakeup.clear()
            if self._driver.is_closed():
                raise ConnectionError
            if not self._queue and not self._closing:
                await self._driver.execute("SELECT 1", timeout=_TIMEOUT)
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH))]
                self._queued_bytes -= sum(len(payload) for _, payload in batch)
                await self._driver.execute(_SEND, *map(list, zip(*batch, strict=True)), timeout=_TIMEOUT)
                if not self._closing:
                    await asyncio.sleep(_BATCH_DELAY)
            self._queued_bytes = 0

    def _note_termination(self, _: Any) -> None:
        self._wakeup.set()

    async def _disconnect(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            await _close_quietly(connection)

    async def close(self) -> None:
        self._closing = True
        self._wakeup.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=1.0)
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._disconnect()

    # --- receiving ------------------------------------------------------------------------------

    def _receive(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        try:
            sender, count, number, parts, text = str(payload).split(" ", 4)
        except ValueError:
            return
        if sender == self._name:
            self._echoed.set()
            return
        if number == "1":
            self._parts[sender] = count, []
        found = self._parts.get(sender)
        if found is None or found[0] != count or len(found[1]) + 1 != int(number):
            self._parts.pop(sender, None)  # a part was lost, and with it the message
            return
        found[1].append(text)
        if number == parts:
            del self._parts[sender]
            self._listener.receive(sender, b"".join(base64.b64decode(part) for part in found[1]))


async def _close_quietly(connection: AsyncConnection) -> None:
    """Close a detached connection, which may be broken."""
    with suppress(Exception):
        async with asyncio.timeout(1.0):
            await connection.close()
