"""Function tools that answer calls with an item type of their own, such as ``shell_call``."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from standfast.agents.tool_arguments import ArgumentsParser, ParsedArguments
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult
from standfast.agents.types import maybe_await

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext


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
