"""Sandbox clients: they create, resume and delete sessions of one kind."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from standfast.sandbox.manifest import Manifest
from standfast.sandbox.sessions import SandboxSession, SandboxSessionState
from standfast.sandbox.snapshot import SnapshotBase, SnapshotSpec


class BaseSandboxClientOptions(BaseModel):
    """Options of a client for new sessions."""

    type: str


ClientOptionsT = TypeVar("ClientOptionsT")


class BaseSandboxClient(ABC, Generic[ClientOptionsT]):
    """Creates sessions of one kind. ``backend_id`` names the kind in saved runs."""

    backend_id: ClassVar[str]
    supports_default_options: ClassVar[bool] = False

    @abstractmethod
    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ClientOptionsT,
    ) -> SandboxSession:
        """Return a new session, which is not started."""

    @abstractmethod
    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session that continues from its snapshot, not started."""

    @abstractmethod
    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Release what is left of a session that was closed."""

    @abstractmethod
    def deserialize_session_state(self, payload: dict[str, Any]) -> SandboxSessionState:
        """Return the state from what :meth:`serialize_session_state` made of it."""

    def describe_session(self, session: SandboxSession) -> dict[str, Any]:
        """Return what a saved run has of its session: the kind of sandbox and the state."""
        return {"backend_id": self.backend_id, "session_state": self.serialize_session_state(session.state)}

    def serialize_session_state(self, state: SandboxSessionState) -> dict[str, Any]:
        """Return the state as plain data. Ephemeral environment variables are left out."""
        kept = {name: entry for name, entry in state.manifest.environment.normalized().items() if not entry.ephemeral}
        environment = state.manifest.environment.model_copy(update={"value": kept})
        manifest = state.manifest.model_copy(update={"environment": environment})
        return state.model_copy(update={"manifest": manifest}).model_dump(mode="json")
