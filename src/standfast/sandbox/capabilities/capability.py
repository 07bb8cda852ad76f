"""The base of capabilities: what a sandbox agent gets beside its own tools and instructions."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.sandbox.errors import ConfigurationError
from standfast.sandbox.manifest import Manifest
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.types import User
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope


class Capability(BaseModel):
    """Tools, instructions and settings that belong to a workspace.

    A run clones the capabilities of its agents and binds the clones to its session, so that one agent can work in
    several workspaces at once.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    type: str
    session: BaseSandboxSession | None = Field(default=None, exclude=True, repr=False)
    run_as: User | None = Field(default=None, exclude=True)
    workspace_scope: SandboxWorkspaceScope = Field(default_factory=SandboxWorkspaceScope, exclude=True)

    def clone(self) -> Self:
        """Return a copy that is not bound to a session."""
        return self.model_copy(update={"session": None})

    def bind(self, session: BaseSandboxSession) -> None:
        self.session = session

    def bind_run_as(self, user: User | None) -> None:
        self.run_as = user

    def bind_workspace_scope(self, scope: SandboxWorkspaceScope) -> None:
        self.workspace_scope = scope

    def require_session(self) -> BaseSandboxSession:
        if self.session is None:
            raise ConfigurationError(f"the capability {self.type!r} is not bound to a session")
        return self.session

    def required_capability_types(self) -> set[str]:
        """Return the types of the capabilities that this one needs beside it."""
        return set()

    def process_manifest(self, manifest: Manifest) -> Manifest:
        """Return the manifest with what this capability adds to new workspaces."""
        return manifest

    async def instructions(self, manifest: Manifest) -> str | None:
        """Return text for the model, or None."""
        return None

    def tools(self) -> list[Tool]:
        """Return the tools, bound to the session."""
        return []

    def sampling_params(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        """Return further arguments for requests to the model."""
        return {}

    def process_context(self, context: list[Item]) -> list[Item]:
        """Return the input of the model as it shall be sent."""
        return context
