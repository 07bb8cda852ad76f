"""Look at a workspace in a store without starting a worker."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.validation import is_integer
from standfast.store.backend import Backend
from standfast.workers.chunks import decode_chunk
from standfast.workers.wire.manifests import Content, WorkspaceManifest
from standfast.workers.wire.messages import NamespaceEntry
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import (
    WorkspaceVersion,
    list_workspaces,
    name_run_workspace,
    name_session_workspace,
)


@dataclass(frozen=True)
class StoredFile:
    """A file of a workspace."""

    path: str
    """The path below the directory of the workspace."""
    size: int
    """Bytes."""
    mode: int = 0o600
    """Permissions."""


@dataclass(frozen=True)
class VersionInfo:
    """A version of a workspace: the run and the call that made it, and its checkpoint if it has one.

    ``parent`` is the version that it was made from: the one before it, unless the conversation was rewound.
    """

    version: int
    """The number of the version."""
    parent: int
    """The version that it was made from."""
    run_id: str
    """The run that made it."""
    call_id: str
    """The call that made it."""
    checkpoint: str | None
    """The id of its checkpoint. None: its cells are run again."""
    size: int
    """Bytes of its checkpoint."""
    created_at: float
    """When it was made, in seconds since 1970."""


@dataclass(frozen=True)
class Workspace:
    """The variables and files of a conversation as of ``version``: names, types and sizes, never values.

    They are those of the latest checkpoint up to that version. ``pending`` are the versions after it, whose cells are
    run again when the workspace is used. ``unkept`` has the reasons for variables and files that could not be saved.
    """

    key: str
    version: int
    checkpoint: str | None = None
    variables: tuple[NamespaceEntry, ...] = ()
    files: tuple[StoredFile, ...] = ()
    unkept: dict[str, str] = field(default_factory=dict)
    size: int = 0
    pending: tuple[int, ...] = ()
    _storage: WorkspaceStorage | None = field(default=None, repr=False, compare=False)
    _manifest: WorkspaceManifest | None = field(default=None, repr=False, compare=False)

    async def read(self, path: str) -> bytes:
        """Return the content of a file of this version, or raise :class:`NotFound`."""
        entries = self._manifest.files if self._manifest else ()
        found = next((one for one in entries if one.path == path and one.kind == "file"), None)
        if found is None or self._storage is None:
            raise NotFound("file", path)
        return await read_content(self._storage, found.content)

    async def history(self) -> AsyncIterator[VersionInfo]:
        """Iterate over all versions of the workspace, oldest first."""
        assert self._storage is not None  # noqa: S101 - set by open_workspace
        for version in await self._storage.read_versions(self.key):
            yield make_version_info(version)


def make_version_info(version: WorkspaceVersion) -> VersionInfo:
    cell = version.cell
    return VersionInfo(
        version.number, cell.parent, cell.run_id, cell.call, version.checkpoint_id, version.size, version.created_at
    )


async def read_content(storage: WorkspaceStorage, content: Content) -> bytes:
    parts = [decode_chunk(digest, await storage.fetch(digest)) for digest in content.chunks]
    return b"".join(parts)


async def find_key(backend: Backend, name: str) -> str:
    """Return the key of the workspace of a session or run; a name that is neither is the key of a workspace."""
    run = await backend.get_run(name)
    key = name_session_workspace(name)
    if run is not None:
        key = name_run_workspace(name) if run.session_id is None else name_session_workspace(run.session_id)
    for found in list_workspaces(key):
        if await backend.get_workspace(found) is not None:
            return found
    return name if run is None else key


async def open_workspace(backend: Backend, key: str, *, at: int | None = None) -> Workspace:
    """Return a workspace as of its version ``at``, by default the latest; raise :class:`NotFound` without one."""
    storage = WorkspaceStorage(backend)
    record = await storage.get(key)
    if record is None:
        raise NotFound("workspace", key)
    if at is not None and (not is_integer(at) or not 1 <= at <= record.version):
        raise InvalidInput(f"unknown version {at!r}: the workspace {key!r} has the versions 1 to {record.version}")
    number = record.version if at is None else at
    line = await storage.read_line(key, number)
    place = next((index for index in reversed(range(len(line))) if line[index].checkpoint_id is not None), None)
    rest = line if place is None else line[place + 1 :]
    pending = tuple(version.number for version in rest if version.cell.code)
    if place is None:
        return Workspace(key, number, pending=pending, _storage=storage)
    saved, manifest = await storage.get_manifest(key, line[place].number)
    return Workspace(
        key,
        number,
        saved.checkpoint_id,
        manifest.variables,
        tuple(StoredFile(one.path, one.content.size, one.mode) for one in manifest.files if one.kind == "file"),
        {**manifest.unkept, **manifest.unkept_files},
        manifest.size,
        pending,
        storage,
        manifest,
    )
