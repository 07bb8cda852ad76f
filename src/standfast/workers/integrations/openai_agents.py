"""A sandbox for ``SandboxAgent`` of openai-agents: shells whose commands and files are inside a worker's sandbox."""

import io
import uuid
from pathlib import Path
from typing import Any, Literal

from agents.sandbox import ExecTimeoutError, ExecTransportError, Manifest
from agents.sandbox.errors import WorkspaceReadNotFoundError
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult

from standfast.base.errors import Closed, Unsupported
from standfast.workers.config import SessionConfig
from standfast.workers.errors import WorkerDied, WorkerError
from standfast.workers.shell import WorkerShell

BACKEND = "standfast"


class WorkerSandboxOptions(BaseSandboxClientOptions):
    """The options of a sandbox, which has no fields: the client has the configuration of its workers."""

    type: Literal["standfast"] = "standfast"


class WorkerSandboxState(SandboxSessionState):
    """What is saved of a sandbox. Its files are in its snapshot."""

    type: Literal["standfast"] = "standfast"


class WorkerSandboxSession(BaseSandboxSession):
    """One sandbox: a shell, whose directory is the root of the manifest."""

    state: WorkerSandboxState

    def __init__(self, shell: WorkerShell, state: WorkerSandboxState) -> None:
        self.shell, self.state = shell, state

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        try:
            output = await self.shell.run([str(part) for part in command], timeout=timeout)
        except (WorkerError, WorkerDied, Closed) as problem:
            raise ExecTransportError(command=command, cause=problem) from problem
        if output.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=output.stdout.encode(), stderr=output.stderr.encode(), exit_code=output.exit_code)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        _require_own_user(user)
        target = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self.shell.read(str(target)))
        except FileNotFoundError as problem:
            raise WorkspaceReadNotFoundError(path=path, cause=problem) from problem

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        _require_own_user(user)
        target = await self._validate_path_access(path, for_write=True)
        content = data.read()
        await self.shell.write(str(target), content.encode() if isinstance(content, str) else bytes(content))

    async def running(self) -> bool:
        return self.shell.session.is_alive

    async def persist_workspace(self) -> io.IOBase:
        """Return the files as a tar archive."""
        archive = f"{self.shell.temporary_directory}/{uuid.uuid4().hex}.tar"
        skipped = [f"--exclude=./{path}" for path in sorted(map(str, self._persist_workspace_skip_relpaths()))]
        await self._run_tar("-cf", archive, *skipped, "-C", self.state.manifest.root, ".")
        try:
            return io.BytesIO(await self.shell.read(archive))
        finally:
            await self.shell.remove(archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar archive into the directory. It is unpacked inside the sandbox, and cannot reach out of it."""
        archive = f"{self.shell.temporary_directory}/{uuid.uuid4().hex}.tar"
        await self.shell.write(archive, data.read())
        try:
            await self._run_tar("-xf", archive, "-C", self.state.manifest.root)
        finally:
            await self.shell.remove(archive)

    async def _run_tar(self, *arguments: str) -> None:
        output = await self.shell.run(["tar", *arguments])
        if output.exit_code:
            raise WorkerError(f"tar failed in the sandbox: {output.stderr.strip()[:500]}")

    async def _shutdown_backend(self) -> None:
        await self.shell.close()


class WorkerSandboxClient(BaseSandboxClient[WorkerSandboxOptions]):
    """``RunConfig(sandbox=SandboxRunConfig(client=WorkerSandboxClient()))``

    Commands run without network and see programs of ``/usr`` and the files of their sandbox only. A manifest may not
    mount anything or name users. Output that is not UTF-8 is replaced.
    """

    backend_id = BACKEND
    supports_default_options = True

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config = config

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: WorkerSandboxOptions | None = None,
    ) -> SandboxSession:
        session_id = uuid.uuid4()
        state = WorkerSandboxState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            exposed_ports=(),
        )
        return await self._open(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        inner = session._inner
        if isinstance(inner, WorkerSandboxSession):
            await inner.shell.close()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Open a new sandbox for a saved state; its files come from the snapshot."""
        if not isinstance(state, WorkerSandboxState):
            raise Unsupported(f"a {type(state).__name__} is not the state of a sandbox of standfast")
        return await self._open(state.model_copy(update={"workspace_root_ready": False}))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return WorkerSandboxState.model_validate(payload)

    async def _open(self, state: WorkerSandboxState) -> SandboxSession:
        shell = WorkerShell(self.config)
        await shell.start()
        manifest = state.manifest.model_copy(update={"root": shell.directory})
        return self._wrap_session(WorkerSandboxSession(shell, state.model_copy(update={"manifest": manifest})))


def _require_own_user(user: object) -> None:
    if user is not None:
        raise Unsupported("a sandbox of standfast has one user: leave user out")
