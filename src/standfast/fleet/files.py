"""The files of a session on another machine."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from standfast.fleet._node import requests as r
from standfast.workers.files import FileEntries, Files

if TYPE_CHECKING:
    from standfast.fleet.session import RemoteWorkerSession


class RemoteFiles(Files):
    """Write, read, list and remove files by their path relative to the session's directory, on its node."""

    def __init__(self, session: "RemoteWorkerSession") -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()

    async def write(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else data
        await self._session.call("write_file", r.FileRequest(path, content), type(None))

    async def read(self, path: str, *, limit: int = 256 << 20) -> bytes:
        return await self._session.call("read_file", r.FileRequest(path, limit=limit), bytes)

    async def list(self, path: str = ".") -> FileEntries:
        return await self._session.call("list_files", r.FileRequest(path), FileEntries)

    async def remove(self, path: str) -> None:
        await self._session.call("remove_file", r.FileRequest(path), type(None))

    def write_entries(self, entries: Iterable[tuple[str, int, bytes | None]]) -> dict[str, str]:
        """Write files with their modes. Called in a thread, as that of a local session is."""
        work = self._session.call("write_files", r.WriteFiles(list(entries)), dict[str, str])
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
