"""A function tool whose arguments are a pydantic model."""

from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from standfast.agents.context import ToolContext
from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tools import FunctionTool, default_tool_error_function
from standfast.agents.types import NeedsApproval
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.types import User
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope


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
