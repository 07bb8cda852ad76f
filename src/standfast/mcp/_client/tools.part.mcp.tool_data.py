"""What goes along with a call and what is taken from its answer, for the program and not for the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from holdfast.agents.context import RunContextWrapper
from holdfast.agents.tools import FunctionToolCustomDataContext, FunctionToolCustomDataExtractor
from holdfast.agents.types import MaybeAwaitable, maybe_await
from holdfast.mcp.results import ToolOutput

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as MCPTool

    from holdfast.mcp.server import MCPServer


@dataclass
class MCPToolMetaContext:
    """The call for which a ``tool_meta_resolver`` is asked for metadata."""

    run_context: RunContextWrapper[Any]
    server_name: str
    tool_name: str
    arguments: dict[str, Any] | None


@dataclass
class MCPToolCustomDataContext:
    """The answered call from which a ``custom_data_extractor`` may take what the program, not the model, is to see."""

    run_context: RunContextWrapper[Any]
    server_name: str
    tool_name: str
    tool_display_name: str
    arguments: Mapping[str, Any]
    result_meta: Mapping[str, Any] | None
    structured_content: Mapping[str, Any] | None
    is_error: bool | None
    tool_output: ToolOutput


MCPToolMetaResolver: TypeAlias = Callable[[MCPToolMetaContext], MaybeAwaitable[dict[str, Any] | None]]
MCPToolCustomDataExtractor: TypeAlias = Callable[[MCPToolCustomDataContext], MaybeAwaitable[Mapping[str, Any] | None]]

# What servers answered, for as long as the contexts of the calls live: extractors come after the model's output.
_call_results: "WeakKeyDictionary[RunContextWrapper[Any], tuple[dict[str, Any], CallToolResult]]" = WeakKeyDictionary()


def save_call_result(context: RunContextWrapper[Any], arguments: dict[str, Any], result: "CallToolResult") -> None:
    """Keep an answer for the extractor."""
    _call_results[context] = (arguments, result)


def build_custom_data_extractor(
    server: "MCPServer", tool: "MCPTool", name: str
) -> FunctionToolCustomDataExtractor | None:
    """The server's ``custom_data_extractor`` for calls of one tool, as function tools want it."""
    extract = server.custom_data_extractor
    if extract is None:
        return None

    async def custom_data(call: FunctionToolCustomDataContext) -> Mapping[str, Any] | None:
        answer = _call_results.get(call.tool_context)
        if answer is None:  # a guardrail answered, or the call failed
            return None
        arguments, result = answer
        return await maybe_await(
            extract(
                MCPToolCustomDataContext(
                    run_context=call.tool_context,
                    server_name=server.name,
                    tool_name=tool.name,
                    tool_display_name=name,
                    arguments=arguments,
                    result_meta=dict(result.meta) if result.meta else None,
                    structured_content=result.structured_content,
                    is_error=result.is_error,
                    tool_output=call.output,
                )
            )
        )

    return custom_data
