"""Sandboxed workspaces for agents of pydantic-ai: shells whose commands and files are inside a worker's sandbox."""

import asyncio
import math
import posixpath
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from standfast.base.errors import Closed
from standfast.base.ids import new_id
from standfast.lifecycle.scope import run_to_end
from standfast.workers.config import SessionConfig
from standfast.workers.errors import WorkerDied
from standfast.workers.shell import PathStatus, WorkerShell

_PROVIDER = "standfast"
T = TypeVar("T")


class SandboxWorkspaces:
    """Owns the environments of this process: ``Workspace(workspaces.backend())`` or ``agent.run(..., workspace=...)``.

    An environment lives until ``destroy`` or until this object is closed, even if the runs that used it end before
    that. References from other processes are not valid here.
    """

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config = config
        self.shells: dict[str, WorkerShell] = {}

    async def __aenter__(self) -> "SandboxWorkspaces":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(shell.close() for shell in self.shells.values()))
        self.shells.clear()

    def backend(self, ref: WorkspaceRef | None = None) -> "SandboxWorkspace":
        """Return a backend for a new environment, which its first operation creates, or for the one of ``ref``."""
        return SandboxWorkspace(self, ref)

    async def destroy(self, ref: WorkspaceRef) -> None:
        """End an environment with its processes and files. Commands that run in it raise WorkspaceUnavailableError."""
        shell = self.shells.pop(ref.id, None)
        if shell is not None:
            await shell.close()


class SandboxWorkspace:
    """A ``WorkspaceBackend`` with commands, files and ``realpath``. See :class:`SandboxWorkspaces`."""

    def __init__(self, owner: SandboxWorkspaces, ref: WorkspaceRef | None) -> None:
        self._owner, self._ref = owner, ref
        self._lock = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        shell = await self._get_shell()
        return await self._guard(shell.resolve(shell.directory))

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if isinstance(command, str) != shell:
            raise TypeError("pass a string with shell=True, or a sequence of arguments without it")
        if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
            raise ValueError("timeout must be a positive finite number or None")
        output = await self._guard((await self._get_shell()).run(command, environment=env, timeout=timeout))
        if output.timed_out:
            text = f"the command took more than {timeout} s"
            raise WorkspaceTimeoutError(text, stdout=output.stdout, stderr=output.stderr)
        if not output.is_complete:
            limit = self._owner.config.output_limit if self._owner.config else SessionConfig().output_limit
            text = f"the command printed more than {limit} bytes"
            raise WorkspaceOutputLimitError(text, limit=limit or 0, stdout=output.stdout, stderr=output.stderr)
        return CommandResult(exit_code=output.exit_code, stdout=output.stdout, stderr=output.stderr)

    async def read_bytes(self, path: str) -> bytes:
        return await self._guard((await self._get_shell()).read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._guard((await self._get_shell()).write(path, data))

    async def stat(self, path: str) -> FileEntry:
        return _make_entry(await self._guard((await self._get_shell()).status(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        return [_make_entry(status) for status in await self._guard((await self._get_shell()).list_directory(path))]

    async def make_dir(self, path: str) -> None:
        await self._guard((await self._get_shell()).make_directory(path))

    async def remove(self, path: str) -> None:
        await self._guard((await self._get_shell()).remove(path))

    async def exists(self, path: str) -> bool:
        return await self._guard((await self._get_shell()).exists(path))

    async def realpath(self, path: str) -> str:
        return await self._guard((await self._get_shell()).resolve(path))

    async def _get_shell(self) -> WorkerShell:
        async with self._lock:
            if self._ref is None:
                # To its end, also when the caller is cancelled: what was created must have its reference.
                await run_to_end(self._create(), grace=None)
        assert self._ref is not None  # noqa: S101
        shell = self._owner.shells.get(self._ref.id) if self._ref.provider == _PROVIDER else None
        if shell is None or not shell.session.is_alive:
            raise WorkspaceUnavailableError(f"the environment {self._ref.id!r} does not exist or has ended")
        return shell

    async def _create(self) -> None:
        shell = WorkerShell(self._owner.config)
        await shell.start()
        ref = WorkspaceRef(provider=_PROVIDER, id=new_id("workspace"))
        self._owner.shells[ref.id] = shell
        self._ref = ref

    async def _guard(self, operation: Coroutine[Any, Any, T]) -> T:
        try:
            return await operation
        except (WorkerDied, Closed) as problem:
            raise WorkspaceUnavailableError(f"the environment has ended: {problem}") from problem


def _make_entry(status: PathStatus) -> FileEntry:
    name = posixpath.basename(status.path.rstrip("/"))
    return FileEntry(name=name, path=status.path, is_dir=status.is_directory, size=status.size)
