"""Conversion of tools, handoffs and the choice between them to the format of OpenAI's Responses API."""

from collections.abc import Iterable
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ProgrammaticToolCallingTool,
    ToolSearchTool,
    WebSearchTool,
)
from standfast.agents.model_settings import MCPToolChoice
from standfast.agents.tools import FunctionTool, LocalTool, Tool
from standfast.base.items import Item
from standfast.models.interface import to_plain
from standfast.models.openai.client import omit_none

_COMPUTER_CHOICES = frozenset(["computer", "computer_use", "computer_use_preview"])
_LOCAL_CHOICES = frozenset(["apply_patch", "shell"])
_HOSTED_CHOICES = frozenset(
    [
        "code_interpreter",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "programmatic_tool_calling",
        "web_search",
        "web_search_preview",
    ]
)


def to_response_tools(
    tools: Iterable[Tool], handoffs: Iterable[Handoff[Any, Any]], *, model: str | None = None
) -> list[Item]:
    """Return the tools and handoffs in the format of the API. Tools of one namespace are grouped at the first one."""
    converted: list[Item] = []
    namespaces: dict[str, Item] = {}
    unsearchable = False
    for tool in tools:
        if isinstance(tool, LocalTool):
            converted.append(tool.to_declaration(model))
            continue
        if not isinstance(tool, FunctionTool):
            converted.append(_convert_hosted_tool(tool))
            continue
        unsearchable = unsearchable or tool.defer_loading
        if tool.namespace is None:
            converted.append(_convert_function_tool(tool))
            continue
        if tool.namespace not in namespaces:
            group: Item = {
                "type": "namespace",
                "name": tool.namespace,
                "description": tool.namespace_description,
                "tools": [],
            }
            namespaces[tool.namespace] = group
            converted.append(group)
        namespaces[tool.namespace]["tools"].append(_convert_function_tool(tool))
    converted += [
        {
            "type": "function",
            "name": each.tool_name,
            "description": each.tool_description,
            "parameters": each.input_json_schema,
            "strict": each.strict_json_schema,
        }
        for each in handoffs
    ]
    # The model finds deferred tools only by searching for them.
    if unsearchable and not any(each["type"] == "tool_search" for each in converted):
        converted.append({"type": "tool_search"})
    return converted


def _convert_function_tool(tool: FunctionTool) -> Item:
    function: Item = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.params_json_schema,
        "strict": tool.strict_json_schema,
    }
    if tool.defer_loading:
        function["defer_loading"] = True
    if tool.allowed_callers is not None:
        function["allowed_callers"] = tool.allowed_callers
    if tool.output_json_schema is not None:
        function["output_schema"] = tool.output_json_schema
    return function


def _convert_hosted_tool(tool: Any) -> Item:
    match tool:
        case WebSearchTool():
            return {"type": "web_search", "filters": tool.filters, "user_location": tool.user_location} | omit_none(
                search_context_size=tool.search_context_size,
                external_web_access=tool.external_web_access,
                search_content_types=tool.search_content_types,
                image_settings=tool.image_settings,
            )
        case FileSearchTool():
            return omit_none(
                type="file_search",
                vector_store_ids=tool.vector_store_ids,
                max_num_results=tool.max_num_results,
                ranking_options=tool.ranking_options,
                filters=tool.filters,
            )
        case ToolSearchTool():
            return omit_none(
                type="tool_search",
                description=tool.description,
                execution=tool.execution,
                parameters=tool.parameters,
            )
        case ProgrammaticToolCallingTool():
            return {"type": "programmatic_tool_calling"}
        case CodeInterpreterTool() | HostedMCPTool() | ImageGenerationTool():
            config: Item = to_plain(tool.tool_config)
            return config
    raise UserError(f"the Responses API does not support the tool {tool!r}")


def to_response_tool_choice(choice: Any, tools: Iterable[Tool], *, model: str | None = None) -> Any | None:
    """Return the tool choice in the format of the API. A function takes precedence over a hosted tool of that name."""
    if choice is None or choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, MCPToolChoice):
        return {"type": "mcp", "server_label": choice.server_label, "name": choice.name}
    tools = list(tools)
    functions = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
    if choice not in functions:
        for tool in tools:
            declared = tool.to_declaration(model)["type"] if isinstance(tool, LocalTool) else None
            if (declared == choice and choice in _LOCAL_CHOICES) or (
                choice in _COMPUTER_CHOICES and declared in _COMPUTER_CHOICES
            ):
                return {"type": declared}
        if choice == "tool_search" and any(isinstance(tool, ToolSearchTool) for tool in tools):
            raise UserError("tool_choice cannot be the tool search: use 'auto' or 'required'")
        if choice in _HOSTED_CHOICES:
            return {"type": choice}
    return {"type": "function", "name": choice}
