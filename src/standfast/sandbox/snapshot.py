"""Snapshots of workspaces: archives that a later session starts from."""

import asyncio
import io
import os
import re
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from standfast.sandbox.dependencies import Dependencies
from standfast.sandbox.errors import SnapshotNotRestorableError, SnapshotPersistError, SnapshotRestoreError

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class SnapshotBase(BaseModel, ABC):
    """Where the workspace of one session is kept."""

    _types: ClassVar[dict[str, type["SnapshotBase"]]] = {}

    type: str
    id: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        SnapshotBase._types[cls.model_fields["type"].default] = cls

    @classmethod
    def parse(cls, payload: object) -> "SnapshotBase":
        """Return the snapshot that the JSON describes."""
        if isinstance(payload, SnapshotBase):
            return payload
        kind = payload.get("type") if isinstance(payload, dict) else None
        if kind not in SnapshotBase._types:
            raise ValueError(f"{kind!r} is not a type of snapshot")
        return SnapshotBase._types[kind].model_validate(payload)

    @abstractmethod
    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        """Keep the archive."""

    @abstractmethod
    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        """Return the archive."""

    @abstractmethod
    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        """Return whether there is an archive."""


class SnapshotSpec(BaseModel, ABC):
    """How the snapshot of a new session is made."""

    type: str

    @abstractmethod
    def build(self, snapshot_id: str) -> SnapshotBase:
        """Return the snapshot of the session with this id."""


class NoopSnapshot(SnapshotBase):
    """Keeps nothing."""

    type: Literal["noop"] = "noop"

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        return

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        raise SnapshotNotRestorableError(snapshot_id=self.id, path=Path("<noop>"))

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        return False


class NoopSnapshotSpec(SnapshotSpec):
    """Keep nothing."""

    type: Literal["noop"] = "noop"

    def build(self, snapshot_id: str) -> SnapshotBase:
        return NoopSnapshot(id=snapshot_id)


class LocalSnapshot(SnapshotBase):
    """A file below ``base_path`` that only its owner can read. It is replaced as a whole."""

    type: Literal["local"] = "local"
    base_path: Path

    @property
    def path(self) -> Path:
        """The file of the snapshot."""
        if not _SAFE_NAME.fullmatch(self.id):
            raise ValueError(f"{self.id!r} cannot be the name of a snapshot")
        return self.base_path / f"{self.id}.tar"

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as problem:
            raise SnapshotPersistError(snapshot_id=self.id, path=self.path, cause=problem) from problem

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        try:
            return await asyncio.to_thread(open, self.path, "rb")
        except FileNotFoundError:
            raise SnapshotNotRestorableError(snapshot_id=self.id, path=self.path) from None
        except OSError as problem:
            raise SnapshotRestoreError(snapshot_id=self.id, path=self.path, cause=problem) from problem

    def _write(self, data: io.IOBase) -> None:
        self.base_path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=self.base_path, prefix=".writing-")
        try:
            with open(descriptor, "wb") as file:
                while chunk := data.read(1 << 20):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        return self.path.is_file()


class LocalSnapshotSpec(SnapshotSpec):
    """Keep workspaces as files below ``base_path``."""

    type: Literal["local"] = "local"
    base_path: Path

    def build(self, snapshot_id: str) -> SnapshotBase:
        return LocalSnapshot(id=snapshot_id, base_path=self.base_path)


class RemoteSnapshot(SnapshotBase):
    """Kept by an object of the program with ``upload``, ``download`` and ``exists``, found in the dependencies."""

    type: Literal["remote"] = "remote"
    client_dependency_key: str

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        await (await self._get_client(dependencies)).upload(self.id, data)

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        restored: io.IOBase = await (await self._get_client(dependencies)).download(self.id)
        return restored

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        return bool(await (await self._get_client(dependencies)).exists(self.id))

    async def _get_client(self, dependencies: Dependencies | None) -> Any:
        found = dependencies or Dependencies()
        return await found.require(self.client_dependency_key, consumer="RemoteSnapshot")


class RemoteSnapshotSpec(SnapshotSpec):
    """Keep workspaces by an object of the program, see :class:`RemoteSnapshot`."""

    type: Literal["remote"] = "remote"
    client_dependency_key: str

    def build(self, snapshot_id: str) -> SnapshotBase:
        return RemoteSnapshot(id=snapshot_id, client_dependency_key=self.client_dependency_key)


def resolve_snapshot(spec: SnapshotBase | SnapshotSpec | None, snapshot_id: str) -> SnapshotBase:
    """Return the snapshot of a session. Without a specification nothing is kept."""
    if isinstance(spec, SnapshotBase):
        return spec
    return NoopSnapshot(id=snapshot_id) if spec is None else spec.build(snapshot_id)
