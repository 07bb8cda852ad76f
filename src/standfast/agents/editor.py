"""The apply_patch tool: the model asks to create, change and delete files, which the program's editor does."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypedDict

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.local_tool import declare_tool, make_local_function
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult, ToolCaller
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext

log = get_logger("standfast.tools")

ApplyPatchOperationType: TypeAlias = Literal["create_file", "update_file", "delete_file"]


@dataclass
class ApplyPatchOperation:
    """One change of a file. ``diff`` is for :func:`apply_diff`; deleting needs none."""

    type: ApplyPatchOperationType
    path: str
    diff: str | None = None
    ctx_wrapper: "RunContextWrapper[Any] | None" = None
    move_to: str | None = None

    @classmethod
    def parse(
        cls, operation: Mapping[str, Any], context: "RunContextWrapper[Any] | None" = None
    ) -> "ApplyPatchOperation":
        """Return the change in the ``operation`` of a call."""
        kind, path, diff = operation.get("type"), operation.get("path"), operation.get("diff")
        if kind not in ("create_file", "update_file", "delete_file") or not isinstance(path, str) or not path:
            raise ModelBehaviorError(f"an apply_patch call must name an operation and a path, got {kind!r} {path!r}")
        if kind != "delete_file" and not isinstance(diff, str):
            raise ModelBehaviorError(f"the operation {kind} needs a diff")
        return cls(kind, path, diff, context, operation.get("move_to"))


@dataclass
class ApplyPatchResult:
    """What an editor did; without a status it was done."""

    status: Literal["completed", "failed"] | None = None
    output: str | None = None


@runtime_checkable
class ApplyPatchEditor(Protocol):
    """Changes files for the model. It decides which paths are allowed."""

    def create_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]: ...

    def update_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]: ...

    def delete_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]: ...


class ApplyPatchOnApprovalFunctionResult(TypedDict):
    approve: bool
    reason: NotRequired[str]


@dataclass
class ApplyPatchToolCustomDataContext:
    """The argument of the ``custom_data_extractor`` of an apply_patch tool."""

    run_context: "RunContextWrapper[Any]"
    tool: "ApplyPatchTool"
    operations: list[ApplyPatchOperation]
    output: str
    status: Literal["completed", "failed"]
    raw_item: Mapping[str, Any]


ApplyPatchApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", ApplyPatchOperation, str], MaybeAwaitable[bool]
]
ApplyPatchOnApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", Any], MaybeAwaitable[ApplyPatchOnApprovalFunctionResult]
]
ApplyPatchToolCustomDataExtractor: TypeAlias = Callable[
    [ApplyPatchToolCustomDataContext], MaybeAwaitable[Mapping[str, Any] | None]
]


@dataclass
class ApplyPatchTool(LocalTool):
    """Lets the model change files through ``editor``. An exception of the editor is a failed change."""

    editor: ApplyPatchEditor
    name: str = "apply_patch"
    needs_approval: bool | ApplyPatchApprovalFunction = False
    on_approval: ApplyPatchOnApprovalFunction | None = None
    custom_data_extractor: ApplyPatchToolCustomDataExtractor | None = field(default=None, kw_only=True)
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)

    call_type: ClassVar[str] = "apply_patch_call"

    @property
    def type(self) -> str:
        return "apply_patch"

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        return declare_tool(self, "apply_patch")

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(
            self, self._invoke, needs_approval=self.needs_approval, parse_request=ApplyPatchOperation.parse
        )

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        operation = ApplyPatchOperation.parse(json.loads(arguments), context)
        status: Literal["completed", "failed"] = "completed"
        try:
            result = await maybe_await(getattr(self.editor, operation.type)(operation))
        except Exception as error:
            log.exception("the editor of the tool %r failed", self.name)
            result = ApplyPatchResult("failed", str(error))
        if isinstance(result, ApplyPatchResult):
            status, output = result.status or "completed", result.output or ""
        else:
            output = "" if result is None else str(result)
        item: dict[str, Any] = {"type": "apply_patch_call_output", "status": status}
        if output:
            item["output"] = output
        if self.custom_data_extractor is None:
            return LocalToolResult(output, item)
        raw_item = {**item, "call_id": context.tool_call_id}
        data = ApplyPatchToolCustomDataContext(context, self, [operation], output, status, raw_item)
        return LocalToolResult(output, item, await maybe_await(self.custom_data_extractor(data)))
