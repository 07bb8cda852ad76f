"""Function tools that answer calls with an item type of their own, such as ``shell_call``, and custom tools.

For a custom tool the model writes free text, or text of a grammar, in place of JSON arguments.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypeAlias

from typing_extensions import TypedDict

from standfast.agents.tool_arguments import ArgumentsParser, ParsedArguments
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult, ToolCaller
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext

log = get_logger("standfast.tools")


def make_local_function(
    tool: LocalTool,
    invoke: "Callable[[ToolContext[Any], str], Awaitable[LocalToolResult]]",
    *,
    needs_approval: Any = False,
    parse_request: Callable[[dict[str, Any]], Any] | None = None,
) -> FunctionTool:
    """Return the function tool for a local tool.

    ``parse_request`` makes the object that the program's ``needs_approval`` function gets from the arguments.
    """

    async def check_request(context: "RunContextWrapper[Any]", arguments: dict[str, Any], call_id: str) -> bool:
        request = arguments if parse_request is None else parse_request(arguments)
        return bool(await maybe_await(needs_approval(context, request, call_id)))

    def parse(text: str, written: dict[str, Any]) -> ParsedArguments:
        return ParsedArguments(text, written, written)

    return FunctionTool(
        name=tool.name,
        description=getattr(tool, "description", None) or "",
        params_json_schema={"type": "object"},
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=check_request if callable(needs_approval) else bool(needs_approval),
        arguments_parser=ArgumentsParser(parse, frozenset()),
        local_tool=tool,
    )


def declare_tool(tool: Any, kind: str, **fields: Any) -> dict[str, Any]:
    """Return the declaration of a tool for the Responses API; fields that are ``None`` are left out."""
    declaration = {"type": kind, **fields, "allowed_callers": tool.allowed_callers}
    return {name: value for name, value in declaration.items() if value is not None}


def make_rejection_item(call_type: str, call_id: str, message: str) -> dict[str, Any]:
    """Return the output of a call that is not made."""
    item: dict[str, Any] = {"type": f"{call_type}_output", "call_id": call_id, "output": message}
    if call_type == "shell_call":
        ending = {"type": "exit", "exit_code": 1}
        return {**item, "output": [{"stdout": "", "stderr": message, "outcome": ending}]}
    return {**item, "status": "failed"} if call_type == "apply_patch_call" else item


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
