"""Fork-servers shared by reference: one per interpreter, preload list and policy, while someone uses it."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.workers.config import SessionConfig
from holdfast.workers.forkserver import ForkServer, best_server

Key = tuple[Any, ...]


class _Shared:
    """One server and the task that owns it."""

    def __init__(self, config: SessionConfig) -> None:
        loop = asyncio.get_running_loop()
        self.users = 0
        self.server: asyncio.Future[ForkServer] = loop.create_future()
        self._enough = asyncio.Event()
        self._owner = loop.create_task(self._own(config), name="fork-server")

    async def _own(self, config: SessionConfig) -> None:
        try:
            async with best_server(config) as server:
                self.server.set_result(server)
                await self._enough.wait()
        except Exception as problem:  # noqa: BLE001 - carried to whoever waits for the server
            if not self.server.done():
                self.server.set_exception(problem)
                self.server.exception()

    @property
    def usable(self) -> bool:
        if self._enough.is_set():
            return False
        if not self.server.done():
            return True
        return self.server.exception() is None and self.server.result().alive

    async def close(self) -> None:
        self._enough.set()
        if not self.server.done():
            self._owner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._owner)


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, _Shared]] = weakref.WeakKeyDictionary()


def _key(config: SessionConfig) -> Key:
    return (config.python, config.preload, config.import_path, config.sandbox, config.workdir)


@asynccontextmanager
async def fork_server(config: SessionConfig) -> AsyncIterator[ForkServer]:
    """Hold the fork-server for this configuration; it starts with its first user and ends with its last.

    Hold it around several sessions and each of them starts in milliseconds. In spawn mode every holder
    gets a server of its own.
    """
    if config.mode == "spawn":
        async with best_server(config) as own:
            yield own
        return
    table = _by_loop.setdefault(asyncio.get_running_loop(), {})
    key = _key(config)
    shared = table.get(key)
    if shared is None or not shared.usable:
        shared = table[key] = _Shared(config)
    shared.users += 1
    try:
        yield await asyncio.shield(shared.server)
    finally:
        shared.users -= 1
        if shared.users == 0:
            if table.get(key) is shared:
                del table[key]
            await shared.close()
