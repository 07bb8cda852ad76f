"""Custom tools: the model writes free text, or text of a grammar, in place of JSON arguments."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypeAlias

from typing_extensions import TypedDict

from standfast.agents.local_tool import declare_tool, make_local_function
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult, ToolCaller
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext

log = get_logger("standfast.tools")


class CustomToolOnApprovalFunctionResult(TypedDict):
    approve: bool
    reason: NotRequired[str]


@dataclass
class CustomToolCustomDataContext:
    """The argument of the ``custom_data_extractor`` of a custom tool."""

    tool_context: "ToolContext[Any]"
    tool: "CustomTool"
    input: str
    output: str
    raw_item: Mapping[str, Any]


CustomToolExecutor: TypeAlias = Callable[["ToolContext[Any]", str], MaybeAwaitable[Any]]
CustomToolApprovalFunction: TypeAlias = Callable[["RunContextWrapper[Any]", str, str], MaybeAwaitable[bool]]
CustomToolOnApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", Any], MaybeAwaitable[CustomToolOnApprovalFunctionResult]
]
CustomToolCustomDataExtractor: TypeAlias = Callable[
    [CustomToolCustomDataContext], MaybeAwaitable[Mapping[str, Any] | None]
]


@dataclass
class CustomTool(LocalTool):
    """A tool that gets text as the model wrote it; ``format`` restricts it to a grammar.

    The output is converted to a string. The message of an exception is the output, too.
    """

    name: str
    description: str
    on_invoke_tool: CustomToolExecutor
    format: object | None = None
    needs_approval: bool | CustomToolApprovalFunction = False
    on_approval: CustomToolOnApprovalFunction | None = None
    defer_loading: bool = False
    custom_data_extractor: CustomToolCustomDataExtractor | None = field(default=None, kw_only=True)
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)

    call_type: ClassVar[str] = "custom_tool_call"

    @property
    def type(self) -> str:
        """The type of the tool in requests to a model."""
        return "custom"

    @property
    def tool_config(self) -> dict[str, Any]:
        """The declaration for the model."""
        options = {"format": self.format, "defer_loading": self.defer_loading or None}
        return declare_tool(self, "custom", name=self.name, description=self.description, **options)

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        return self.tool_config

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(
            self, self._invoke, needs_approval=self.needs_approval, parse_request=lambda arguments: arguments["input"]
        )

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        text: str = json.loads(arguments)["input"]
        context.tool_arguments = text
        try:
            output = str(await maybe_await(self.on_invoke_tool(context, text)))
        except Exception as error:
            log.exception("the custom tool %r failed", self.name)
            output = str(error)
        item = {"type": "custom_tool_call_output", "output": output}
        if self.custom_data_extractor is None:
            return LocalToolResult(output, item)
        raw_item = {**item, "call_id": context.tool_call_id}
        data = CustomToolCustomDataContext(context, self, text, output, raw_item)
        return LocalToolResult(output, item, await maybe_await(self.custom_data_extractor(data)))
