"""The client for sandboxes on this machine."""

import os
import uuid
from collections.abc import Collection
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from standfast.sandbox.client import BaseSandboxClient, BaseSandboxClientOptions
from standfast.sandbox.dependencies import Dependencies
from standfast.sandbox.local_session import ROOT, UnixLocalSandboxSession, UnixLocalSandboxSessionState
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.session_events import Instrumentation
from standfast.sandbox.sessions import SandboxSession, SandboxSessionState
from standfast.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from standfast.workers.config import SandboxPolicy


class UnixLocalSandboxClientOptions(BaseSandboxClientOptions):
    """Options of local sandboxes. They expose no ports: there is no network in them."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["unix_local"] = "unix_local"
    exposed_ports: tuple[int, ...] = ()

    def __init__(self, exposed_ports: tuple[int, ...] = (), **values: Any) -> None:
        values["exposed_ports"] = exposed_ports
        super().__init__(**values)


class UnixLocalSandboxClient(BaseSandboxClient[UnixLocalSandboxClientOptions | None]):
    """Creates sandboxes on this machine, with real isolation on Linux: see :class:`SandboxPolicy`.

    ``policy`` replaces ``SHELL_POLICY``. Commands get the variables of the manifest, and of the host's only those in
    ``host_environment_allowlist``; ``inherit_host_environment`` passes on all of them.
    """

    backend_id: ClassVar[str] = "unix_local"
    supports_default_options: ClassVar[bool] = True

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        inherit_host_environment: bool = False,
        host_environment_allowlist: Collection[str] | None = None,
        policy: SandboxPolicy | None = None,
    ) -> None:
        self._dependencies, self._policy, self._instrumentation = dependencies, policy, instrumentation
        allowed = host_environment_allowlist if host_environment_allowlist is not None else ()
        names = os.environ if inherit_host_environment and host_environment_allowlist is None else allowed
        self._host_environment = {name: os.environ[name] for name in names if name in os.environ}

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: UnixLocalSandboxClientOptions | None = None,
    ) -> SandboxSession:
        for mount, path in manifest.mount_targets() if manifest is not None else ():
            mount.refuse(path)
        session_id = uuid.uuid4()
        state = UnixLocalSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=(manifest or Manifest()).model_copy(update={"root": ROOT}),
            exposed_ports=options.exposed_ports if options is not None else (),
        )
        return self._open(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        if not isinstance(state, UnixLocalSandboxSessionState):
            raise TypeError(f"expected the state of a local sandbox, got {type(state).__name__}")
        return self._open(state)

    def _open(self, state: UnixLocalSandboxSessionState) -> SandboxSession:
        session = UnixLocalSandboxSession(state=state, policy=self._policy)
        session.host_environment = self._host_environment
        if self._dependencies is not None:
            session.set_dependencies(self._dependencies.clone())
        if self._instrumentation is not None:
            session.instrument(self._instrumentation)
        return session

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await session.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, Any]) -> SandboxSessionState:
        return UnixLocalSandboxSessionState.model_validate(payload)
