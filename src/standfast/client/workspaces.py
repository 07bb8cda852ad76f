"""The variables and files of sessions on a server, and cells that run in them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from standfast.client.connection import Connection, decode_content, make_path
from standfast.client.event_stream import follow_stream
from standfast.server.types import CellInfo, InterruptInfo, NewVersion
from standfast.workers.wire.messages import NamespaceEntry
from standfast.workspaces.view import StoredFile, VersionInfo


class RemoteWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """The variables and files of a session as of a version, with the methods of a :class:`Workspace`."""

    key: str
    version: int
    checkpoint: str | None = None
    variables: tuple[NamespaceEntry, ...] = ()
    files: tuple[StoredFile, ...] = ()
    unkept: dict[str, str] = {}
    size: int = 0
    pending: tuple[int, ...] = ()
    connection: Connection | None = None
    path: str = ""

    async def read(self, path: str) -> bytes:
        """Return the content of a file of this version, or raise :class:`NotFound`."""
        assert self.connection is not None  # noqa: S101 - set by open_workspace
        params = {"path": path, "at": self.version}
        return cast(bytes, await self.connection.request("GET", f"{self.path}/file", bytes, params=params))

    async def history(self) -> AsyncIterator[VersionInfo]:
        """Iterate over all versions of the workspace, oldest first."""
        assert self.connection is not None  # noqa: S101 - set by open_workspace
        for version in await self.connection.request("GET", f"{self.path}/versions", list[VersionInfo]):
            yield version


async def open_workspace(connection: Connection, session_id: str, at: int | None) -> RemoteWorkspace:
    """Return a workspace as of a version; raise :class:`NotFound` without one."""
    path = make_path("sessions", session_id, "workspace")
    found: RemoteWorkspace = await connection.request("GET", path, RemoteWorkspace, params={"at": at})
    return msgspec.structs.replace(found, connection=connection, path=path)


class RemoteCell:
    """A cell that runs on a server. Dropping it does not affect the cell."""

    def __init__(self, connection: Connection, session_id: str, cell_id: str) -> None:
        self.session_id, self.cell_id = session_id, cell_id
        self._connection, self._path = connection, make_path("sessions", session_id, "workspace", "cells", cell_id)

    async def info(self) -> CellInfo:
        return cast(CellInfo, await self._connection.request("GET", self._path, CellInfo))

    async def events(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield what the cell prints, shows and asks for, until it ends; a lost connection is made again."""
        followed = follow_stream(self._connection, f"{self._path}/events", params={}, after=str(after))
        async with aclosing(followed) as events:  # type: ignore[type-var]
            async for event in events:
                yield decode_content(event.data, dict[str, Any])

    async def wait(self) -> CellInfo:
        """Wait until the cell has ended, and return it with its result."""
        async for _ in self.events():
            pass
        return await self.info()

    async def answer(self, input_id: str, data: str = "", *, eof: bool = False) -> bool:
        """Answer an ``input`` event, whose ``id`` this is; return False if the cell does not wait for it any more."""
        body = {"input_id": input_id, "data": data, "eof": eof}
        return cast(bool, await self._connection.request("POST", f"{self._path}/input", bool, body=body))

    async def interrupt(self) -> InterruptInfo:
        """Stop the cell, keeping the variables if possible."""
        return cast(
            InterruptInfo, await self._connection.request("POST", f"{self._path}/interrupt", InterruptInfo, body={})
        )


class RemotePython:
    """The Python of one session on a server, with the methods of a :class:`SessionPython`."""

    def __init__(self, connection: Connection, session_id: str) -> None:
        self.session_id = session_id
        self._connection, self._path = connection, make_path("sessions", session_id, "workspace")

    async def start(self, code: str, *, timeout: float = 30.0, allow_input: bool = False) -> RemoteCell:
        """Run a cell, and return at once."""
        body = {"code": code, "timeout": timeout, "allow_input": allow_input}
        info: CellInfo = await self._connection.request("POST", f"{self._path}/cells", CellInfo, body=body)
        return RemoteCell(self._connection, self.session_id, info.cell_id)

    async def run(
        self, code: str, *, timeout: float = 30.0, answer: Callable[[str], str | None] | None = None
    ) -> CellInfo:
        """Run a cell to its end. ``answer`` gets the prompts of its input requests; ``None`` ends the input."""
        cell = await self.start(code, timeout=timeout, allow_input=answer is not None)
        async for event in cell.events():
            if event["type"] == "input" and answer is not None:
                line = answer(event["prompt"])
                await cell.answer(event["id"], line or "", eof=line is None)
        return await cell.info()

    async def cells(self) -> list[CellInfo]:
        """Return the cells that run, and the latest that have ended, without long results."""
        return cast(list[CellInfo], await self._connection.request("GET", f"{self._path}/cells", list[CellInfo]))

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Create or replace files, which make one version together."""
        parts = [("file", (path, content)) for path, content in files.items()]
        await self._connection.request("POST", f"{self._path}/files", files=parts)

    async def remove_file(self, path: str) -> None:
        await self._connection.request("DELETE", f"{self._path}/file", params={"path": path})

    async def restart(self) -> None:
        """Replace the worker after the cell under way. Variables and files are as they were saved."""
        await self._connection.request("POST", f"{self._path}/restart", body={})

    async def restore(self, version: int) -> int:
        """Go back to an earlier version; 0 is an empty workspace. Return the number of the version that this makes."""
        made: NewVersion = await self._connection.request(
            "POST", f"{self._path}/restore", NewVersion, body={"version": version}
        )
        return made.version
