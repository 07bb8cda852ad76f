"""The base of capabilities: what a sandbox agent gets in addition to its own tools and instructions."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from standfast.agents.context import ToolContext
from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tools import FunctionTool, Tool, default_tool_error_function
from standfast.agents.types import NeedsApproval
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
        """Let the capability act in this session."""
        self.session = session

    def bind_run_as(self, user: User | None) -> None:
        """Let the capability act as this user."""
        self.run_as = user

    def bind_workspace_scope(self, scope: SandboxWorkspaceScope) -> None:
        """Limit the capability to a part of the workspace."""
        self.workspace_scope = scope

    def require_session(self) -> BaseSandboxSession:
        """Return the session; raise before it is bound."""
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
        """Return the input of the model as it is sent."""
        return context


class SandboxTool(FunctionTool):
    """A tool of a workspace. Subclasses have ``tool_name``, ``tool_description``, ``args_model`` and ``run``."""

    tool_name: ClassVar[str]
    tool_description: ClassVar[str]
    args_model: ClassVar[type[BaseModel]]

    def __init__(
        self,
        *,
        session: BaseSandboxSession,
        user: str | User | None = None,
        needs_approval: NeedsApproval = False,
        workspace_scope: SandboxWorkspaceScope | None = None,
    ) -> None:
        self.session, self.user = session, user
        self.workspace_scope = workspace_scope or SandboxWorkspaceScope()
        super().__init__(
            name=self.tool_name,
            description=self.tool_description,
            params_json_schema=self.args_model.model_json_schema(),
            on_invoke_tool=self._invoke,
            strict_json_schema=False,
            needs_approval=needs_approval,
            failure_error_function=default_tool_error_function,
        )

    async def _invoke(self, context: ToolContext[Any], arguments: str) -> Any:
        try:
            parsed = self.args_model.model_validate_json(arguments or "{}")
        except ValidationError as problem:
            raise ModelBehaviorError(f"the arguments of {self.name} are invalid: {problem}") from problem
        return await self.run(parsed)

    async def run(self, args: Any) -> Any:
        raise NotImplementedError
