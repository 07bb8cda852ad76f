"""The names of Docker sandboxes, which this package does not implement, for programs that can run without them."""

from typing import Any, ClassVar, Literal, NoReturn

from pydantic import Field

from standfast.sandbox.client import BaseSandboxClient, BaseSandboxClientOptions
from standfast.sandbox.dependencies import Dependencies
from standfast.sandbox.errors import ConfigurationError
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.session_events import Instrumentation
from standfast.sandbox.sessions import SandboxSession, SandboxSessionState
from standfast.sandbox.snapshot import SnapshotBase, SnapshotSpec


class DockerSandboxClientOptions(BaseSandboxClientOptions):
    """Options of containers."""

    type: Literal["docker"] = "docker"
    image: str
    exposed_ports: tuple[int, ...] = ()
    network_mode: Literal["none"] | None = None
    labels: dict[str, str] = Field(default_factory=dict)

    def __init__(
        self,
        image: str,
        exposed_ports: tuple[int, ...] = (),
        *,
        type: Literal["docker"] = "docker",
        network_mode: Literal["none"] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        values: dict[str, Any] = {"image": image, "exposed_ports": exposed_ports, "network_mode": network_mode}
        values["labels"] = labels or {}
        super().__init__(type=type, **values)


class DockerSandboxSessionState(SandboxSessionState):
    """The state of a container, as openai-agents saves it."""

    type: Literal["docker"] = "docker"
    image: str
    container_id: str
    network_mode: Literal["none"] | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class DockerSandboxClient(BaseSandboxClient[DockerSandboxClientOptions]):
    """A client that can be constructed, and whose methods raise :class:`ConfigurationError`.

    Use :class:`UnixLocalSandboxClient`: its sandboxes are isolated by the kernel as containers are.
    """

    backend_id: ClassVar[str] = "docker"

    def __init__(
        self,
        docker_client: Any,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        removal_service: Any = None,
    ) -> None:
        self.docker_client = docker_client

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: DockerSandboxClientOptions,
    ) -> SandboxSession:
        _refuse()

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        _refuse()

    async def delete(self, session: SandboxSession) -> SandboxSession:
        _refuse()

    def deserialize_session_state(self, payload: dict[str, Any]) -> SandboxSessionState:
        return DockerSandboxSessionState.model_validate(payload)


def _refuse() -> NoReturn:
    raise ConfigurationError(
        "standfast has no Docker sandboxes; use UnixLocalSandboxClient(), which isolates commands with namespaces, "
        "Landlock and seccomp, or openai-agents for a container",
        op="start",
        context={"backend": "docker"},
    )
