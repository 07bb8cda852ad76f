"""Fork-servers shared by reference: one per interpreter, preload list and policy, while someone uses it."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.workers.config import SessionConfig
from holdfast.workers.forkserver import ForkServer, open_best_server

ServerKey = tuple[Any, ...]


class _SharedServer:
    """One server and the task that owns it."""

    def __init__(self, config: SessionConfig) -> None:
        loop = asyncio.get_running_loop()
        self.user_count = 0
        self.server: asyncio.Future[ForkServer] = loop.create_future()
        self._close_requested = asyncio.Event()
        self._owner_task = loop.create_task(self._run(config), name="fork-server")

    async def _run(self, config: SessionConfig) -> None:
        try:
            async with open_best_server(config) as server:
                self.server.set_result(server)
                await self._close_requested.wait()
        except Exception as problem:  # noqa: BLE001 - carried to whoever waits for the server
            if not self.server.done():
                self.server.set_exception(problem)
                self.server.exception()

    @property
    def is_usable(self) -> bool:
        if self._close_requested.is_set():
            return False
        if not self.server.done():
            return True
        return self.server.exception() is None and self.server.result().is_alive

    async def close(self) -> None:
        self._close_requested.set()
        if not self.server.done():
            self._owner_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._owner_task)


_servers_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ServerKey, _SharedServer]] = (
    weakref.WeakKeyDictionary()
)


def _make_key(config: SessionConfig) -> ServerKey:
    return (config.python, config.preload, config.import_path, config.sandbox, config.workdir)


@asynccontextmanager
async def fork_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """Hold the fork-server for this configuration; it starts with its first user and ends with its last.

    Hold it around several sessions and each of them starts in milliseconds. In spawn mode every holder
    gets a server of its own.
    """
    if config.mode == "spawn":
        async with open_best_server(config) as own:
            yield own
        return
    table = _servers_by_loop.setdefault(asyncio.get_running_loop(), {})
    key = _make_key(config)
    shared = table.get(key)
    if shared is None or not shared.is_usable:
        shared = table[key] = _SharedServer(config)
    shared.user_count += 1
    try:
        yield await asyncio.shield(shared.server)
    finally:
        shared.user_count -= 1
        if shared.user_count == 0:
            if table.get(key) is shared:
                del table[key]
            await shared.close()
