"""Sandbox sessions: a live workspace in which commands run and files change."""

import asyncio
import io
import tarfile
import tempfile
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, SerializeAsAny, field_validator

from standfast.sandbox.archives import read_members, write_members
from standfast.sandbox.config import SandboxArchiveLimits
from standfast.sandbox.dependencies import Dependencies
from standfast.sandbox.errors import (
    ExposedPortUnavailableError,
    InvalidCompressionSchemeError,
    InvalidManifestPathError,
    WorkspaceArchiveWriteError,
    WorkspaceWriteTypeError,
)
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.manifest_entries import ArchiveMember, SourceRules
from standfast.sandbox.session_events import Instrumentation, Observed, OpName, observe
from standfast.sandbox.snapshot import NoopSnapshot, SnapshotBase
from standfast.sandbox.types import (
    ExecResult,
    ExposedPortEndpoint,
    FileEntry,
    MaterializationResult,
    MaterializedFile,
    PatchFormat,
    PatchOperations,
    PtyExecUpdate,
    User,
)
from standfast.sandbox.workspace_paths import resolve_workspace_path, to_relative_path

_ARCHIVE_ERRORS = (tarfile.TarError, zlib.error, ValueError, OSError, KeyError, EOFError)


class SandboxSessionState(BaseModel):
    """What a client needs to resume a session: plain data, without secrets of this process."""

    _types: ClassVar[dict[str, type["SandboxSessionState"]]] = {}

    type: str
    session_id: uuid.UUID = Field(default_factory=uuid.uuid4)
    snapshot: SerializeAsAny[SnapshotBase]
    manifest: Manifest
    exposed_ports: tuple[int, ...] = ()
    snapshot_fingerprint: str | None = None
    snapshot_fingerprint_version: str | None = None
    workspace_root_ready: bool = False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        SandboxSessionState._types[cls.model_fields["type"].default] = cls

    @field_validator("snapshot", mode="before")
    @classmethod
    def _parse_snapshot(cls, snapshot: object) -> object:
        return SnapshotBase.parse(snapshot)

    @classmethod
    def parse(cls, payload: object) -> "SandboxSessionState":
        """Return the state of its type from plain data."""
        if isinstance(payload, SandboxSessionState):
            return payload
        kind = payload.get("type") if isinstance(payload, dict) else None
        if kind not in SandboxSessionState._types:
            raise ValueError(f"{kind!r} is not a type of sandbox session")
        return SandboxSessionState._types[kind].model_validate(payload)


class BaseSandboxSession(ABC):
    """One workspace, from ``start`` to ``aclose``. ``async with`` does both.

    File operations take paths relative to the root of the workspace, or absolute ones below it or a granted path.
    """

    state: SandboxSessionState
    events: Observed | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in OBSERVED_OPERATIONS:
            if name in vars(cls):
                setattr(cls, name, observe(name, vars(cls)[name]))

    def __init__(self) -> None:
        self._hooks: list[Callable[[], Awaitable[None]]] = []
        self._skipped_paths: set[PurePosixPath] = set()
        self._dependencies: Dependencies | None = None
        self._close_lock = asyncio.Lock()
        self._closed = False

    # --- what a kind of sandbox implements --------------------------------------------------------

    @abstractmethod
    async def _launch(self) -> None:
        """Start the sandbox with an empty workspace."""

    @abstractmethod
    async def running(self) -> bool:
        """Return whether commands can be run."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End the sandbox. The workspace is lost unless ``stop`` has kept it."""

    @abstractmethod
    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command to its end. With ``shell``, the words are one command line for a login shell.

        :class:`ExecTimeoutError` if it does not end in time; its processes are killed then.
        """

    @abstractmethod
    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return the content of a file."""

    @abstractmethod
    async def _write_bytes(self, path: PurePosixPath, data: bytes) -> None: ...

    @abstractmethod
    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """Return the entries of a directory."""

    @abstractmethod
    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Create a directory."""

    @abstractmethod
    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        """Move a file or a directory."""

    @abstractmethod
    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Remove a file or, with ``recursive``, a directory."""

    @abstractmethod
    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar archive, without ephemeral entries."""

    @abstractmethod
    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Extract a tar archive into the workspace. Members that leave it are refused."""

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the sandbox: restore its snapshot if there is one, otherwise apply the manifest."""
        if await self.running():
            return
        self.state.manifest.validated_entries()
        try:
            await self._launch()
            await self._fill()
        except BaseException:
            await self.shutdown()
            raise
        self.state.workspace_root_ready = True

    async def _fill(self) -> None:
        snapshot = self.state.snapshot
        if await snapshot.restorable(dependencies=self.dependencies):
            archive = await snapshot.restore(dependencies=self.dependencies)
            try:
                await self.hydrate_workspace(archive)
            finally:
                archive.close()
            await self.apply_manifest(only_ephemeral=True)
        else:
            await self.apply_manifest()

    async def stop(self) -> None:
        """Keep the workspace in the snapshot, if there is one. The sandbox keeps running."""
        if not isinstance(self.state.snapshot, NoopSnapshot) and await self.running():
            with_archive = await self.persist_workspace()
            try:
                await self.state.snapshot.persist(with_archive, dependencies=self.dependencies)
            finally:
                with_archive.close()

    async def aclose(self) -> None:
        """Run the hooks, keep the workspace, and end the sandbox. Does nothing the second time."""
        async with self._close_lock:
            if self._closed:
                return
            try:
                await self.run_pre_stop_hooks()
                await self.stop()
            finally:
                self._closed = True
                await self.shutdown()
                if self._dependencies is not None:
                    await self._dependencies.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def instrument(self, instrumentation: Instrumentation) -> None:
        """Give the sinks events of what is done with the session."""
        self.events = Observed(self.state.session_id, instrumentation)
        instrumentation.bind(self)

    def register_pre_stop_hook(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Call ``hook`` once before the sandbox ends."""
        self._hooks.append(hook)

    async def run_pre_stop_hooks(self) -> None:
        """Call what was registered for the end of the session, each once."""
        while self._hooks:
            await self._hooks.pop(0)()

    # --- dependencies -----------------------------------------------------------------------------

    @property
    def dependencies(self) -> Dependencies:
        """The values that entries and capabilities of this session share."""
        if self._dependencies is None:
            self._dependencies = Dependencies()
        return self._dependencies

    def set_dependencies(self, dependencies: Dependencies | None) -> None:
        """Replace the values that entries and capabilities share."""
        self._dependencies = dependencies

    # --- files ------------------------------------------------------------------------------------

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Create or replace a file, and create its missing parent directories."""
        self.check_user(user)
        content = data.read() if hasattr(data, "read") else data
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes | bytearray | memoryview):
            raise WorkspaceWriteTypeError(path=path, actual_type=type(data).__name__)
        await self._write_bytes(self.to_workspace_path(path), bytes(content))

    async def read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        """Return the content of a file, or raise ValueError if it has more than ``max_bytes``."""
        content: bytes = (await self.read(path)).read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"{path} has more than {max_bytes} bytes")
        return content

    async def apply_patch(
        self, operations: PatchOperations, *, patch_format: PatchFormat | Literal["v4a"] = "v4a"
    ) -> str:
        """Create, change and delete files, one operation after the other.

        :class:`ApplyPatchError`, :class:`ApplyPatchFileNotFoundError` or :class:`ApplyPatchDecodeError` if one of them
        cannot be applied; those before it were.
        """
        from standfast.sandbox.capabilities.apply_patch import apply_operations

        return await apply_operations(self, operations, None if patch_format == "v4a" else patch_format)

    async def same_file(
        self, left: Path | str, right: Path | str, *, follow_symlinks: bool = True, user: str | User | None = None
    ) -> bool:
        """Return whether two paths are the same file."""
        self.check_user(user)
        return self.normalize_path(left) == self.normalize_path(right)

    def normalize_path(self, path: Path | str, *, for_write: bool = False) -> Path:
        """Return the absolute path inside the sandbox, or raise :class:`InvalidManifestPathError`."""
        grants = [grant for grant in self.state.manifest.extra_path_grants if not (for_write and grant.read_only)]
        pure = PurePosixPath(Path(path).as_posix())
        if pure.is_absolute() and ".." not in pure.parts and any(pure.is_relative_to(grant.path) for grant in grants):
            return Path(pure)
        return resolve_workspace_path(self.state.manifest.root, path, allow_absolute_within_root=True)

    def to_workspace_path(self, path: Path | str) -> PurePosixPath:
        """Return a path relative to the root of the workspace."""
        absolute = self.normalize_path(path, for_write=True)
        return to_relative_path(absolute.relative_to(self.state.manifest.root))

    def check_user(self, user: str | User | None) -> None:
        """Refuse an account that this kind of sandbox does not have."""
        return

    # --- manifests and archives -------------------------------------------------------------------

    async def apply_manifest(self, *, only_ephemeral: bool = False) -> MaterializationResult:
        """Create the entries of the manifest, or only the ephemeral ones, in one step."""
        manifest = self.state.manifest
        rules = SourceRules(Path.cwd(), manifest.extra_path_grants)

        def collect() -> list[ArchiveMember]:
            return [
                member
                for name, entry in manifest.validated_entries().items()
                if entry.ephemeral or not only_ephemeral
                for member in entry.iter_members(to_relative_path(name), rules)
            ]

        return MaterializationResult(await self.create_members(await asyncio.to_thread(collect)))

    async def create_members(self, members: Iterable[ArchiveMember]) -> list[MaterializedFile]:
        """Create files and directories in the workspace, all in one archive."""
        with tempfile.TemporaryFile() as archive:
            paths = await asyncio.to_thread(write_members, archive, members)
            if paths:
                archive.seek(0)
                await self.hydrate_workspace(archive)
        return [MaterializedFile(str(PurePosixPath(self.state.manifest.root) / path)) for path in paths]

    async def extract(
        self,
        path: Path | str,
        data: io.IOBase,
        *,
        compression_scheme: Literal["tar", "zip"] | None = None,
        archive_limits: SandboxArchiveLimits | None = None,
    ) -> None:
        """Store a tar or zip archive at a path of the workspace, and extract it into the directory of that path."""
        target, content, limits = self.to_workspace_path(path), data.read(), archive_limits or SandboxArchiveLimits()
        try:
            members = await asyncio.to_thread(read_members, content, compression_scheme, target, limits)
            if members is None:
                raise InvalidCompressionSchemeError(path=Path(path), scheme=compression_scheme)
            await self.create_members(members)
        except (*_ARCHIVE_ERRORS, InvalidManifestPathError) as problem:
            raise WorkspaceArchiveWriteError(path=Path(path), message=str(problem), cause=problem) from problem

    def register_persist_workspace_skip_path(self, path: Path | str) -> Path:
        """Leave a path of the workspace out of snapshots."""
        relative = self.to_workspace_path(path)
        self._skipped_paths.add(relative)
        return Path(relative)

    def get_skipped_paths(self) -> list[str]:
        """Return the paths that a snapshot leaves out."""
        ephemeral = {path.as_posix() for path in self.state.manifest.ephemeral_persistence_paths(None)}
        return sorted(ephemeral | {str(path) for path in self._skipped_paths})

    # --- running commands ----------------------------------------------------------------------

    def supports_pty(self) -> bool:
        """Return whether commands can keep running between calls, with or without a terminal."""
        return False

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command and return its output up to ``yield_time_s`` seconds; it may continue afterwards."""
        raise NotImplementedError(f"{type(self).__name__} does not keep commands running")

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Write to a command that is running, and return its further output."""
        raise NotImplementedError(f"{type(self).__name__} does not keep commands running")

    async def pty_terminate_all(self) -> None:
        """End every command that is running."""
        return

    async def resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        """Return where a port of the sandbox is reachable, or raise :class:`ExposedPortUnavailableError`."""
        raise ExposedPortUnavailableError(
            port=port, exposed_ports=self.state.exposed_ports, reason="this sandbox exposes no ports"
        )

    def describe(self) -> str:
        """Return the content of the workspace as text for a model."""
        return self.state.manifest.describe(depth=None)


OBSERVED_OPERATIONS: tuple[OpName, ...] = ("start", "stop", "exec", "read", "write", "shutdown", "running")
for _name in ("start", "stop", "write"):
    setattr(BaseSandboxSession, _name, observe(_name, vars(BaseSandboxSession)[_name]))

SandboxSession = BaseSandboxSession
