"""Conversion of a server's tools into function tools with stable names, and of their results into tool outputs."""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import AgentsException, MCPToolCancellationError, ModelBehaviorError, UserError
from standfast.agents.handoffs import as_handoff
from standfast.agents.tool_outputs import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from standfast.agents.tools import (
    FunctionTool,
    FunctionToolCustomDataContext,
    FunctionToolCustomDataExtractor,
    Tool,
    ToolOrigin,
    ToolOriginType,
    default_tool_error_function,
    explain_tool_error,
)
from standfast.agents.types import MaybeAwaitable, ToolErrorFunction, maybe_await
from standfast.base.errors import StandfastError
from standfast.mcp._client.schemas import build_schema
from standfast.mcp._client.tool_names import (
    build_prefixed_name,
    count_same_names,
    join_name,
    remove_credentials,
    sanitize_tool_name,
)
from standfast.tracing.create import maybe_mcp_tools_span

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as MCPTool

    from standfast.mcp.interface import MCPServer


ToolOutputPart: TypeAlias = ToolOutputText | ToolOutputImage | ToolOutputFileContent
ToolOutput: TypeAlias = str | dict[str, Any] | list[dict[str, Any]]

DEFAULT_MAX_OUTPUT_CHARS = 1_000_000
MAX_OUTPUT_PARTS = 1000


def convert_result(
    result: "CallToolResult", *, use_structured_content: bool, max_chars: int = DEFAULT_MAX_OUTPUT_CHARS
) -> ToolOutput:
    """Convert the content of a result into the output of a function tool: a part as a dict, or a list of parts.

    Structured content becomes a text, with ``use_structured_content`` or if there is no other content. The output is
    cut by :func:`cut_texts`.
    """
    structured = result.structured_content
    if structured and not result.is_error and (use_structured_content or not result.content):
        return cut_texts([ToolOutputText(text=json.dumps(structured, ensure_ascii=False))], max_chars)[0].text  # type: ignore[union-attr]
    parts = cut_texts([_convert_block(block) for block in result.content], max_chars)
    plain = [part.model_dump(exclude_none=True) for part in parts]
    return plain[0] if len(plain) == 1 else plain


def cut_texts(parts: list[ToolOutputPart], max_chars: int) -> list[ToolOutputPart]:
    """Return at most ``MAX_OUTPUT_PARTS`` with ``max_chars`` of text in all. The last part tells what was cut."""
    total = sum(len(part.text) for part in parts if isinstance(part, ToolOutputText))
    if total <= max_chars and len(parts) <= MAX_OUTPUT_PARTS:
        return parts
    kept, available = list[ToolOutputPart](), max_chars
    for part in parts[:MAX_OUTPUT_PARTS]:
        if isinstance(part, ToolOutputText) and len(part.text) > available:
            note = f"[cut after {max_chars} characters: the output has {total}]"
            return [*kept, ToolOutputText(text=f"{part.text[:available]}\n{note}")]
        available -= len(part.text) if isinstance(part, ToolOutputText) else 0
        kept.append(part)
    if len(kept) < len(parts):
        kept.append(ToolOutputText(text=f"[cut after {MAX_OUTPUT_PARTS} parts: the output has {len(parts)}]"))
    return kept


def _convert_block(block: Any) -> ToolOutputPart:
    match block.type:
        case "text":
            return ToolOutputText(text=block.text)
        case "image":
            return ToolOutputImage(image_url=_build_data_url(block.mime_type, block.data))
        case "audio":
            name = f"audio.{block.mime_type.partition('/')[2].removeprefix('x-') or 'bin'}"
            return ToolOutputFileContent(file_data=_build_data_url(block.mime_type, block.data), filename=name)
        case "resource":
            return _convert_resource(block.resource)
        case "resource_link":
            description = f": {block.description}" if block.description else ""
            return ToolOutputText(text=f"[resource {block.name} at {block.uri}{description}]")
    return ToolOutputText(text=block.model_dump_json(by_alias=True, exclude_none=True))


def _convert_resource(resource: Any) -> ToolOutputPart:
    text = getattr(resource, "text", None)
    if text is not None:
        return ToolOutputText(text=text)
    mime_type = resource.mime_type or "application/octet-stream"
    if mime_type.startswith("image/"):
        return ToolOutputImage(image_url=_build_data_url(mime_type, resource.blob))
    name = str(resource.uri).rstrip("/").rpartition("/")[2] or "resource"
    return ToolOutputFileContent(file_data=_build_data_url(mime_type, resource.blob), filename=name)


def _build_data_url(mime_type: str, encoded: str) -> str:
    return f"data:{mime_type};base64,{encoded}"


@dataclass
class MCPToolMetaContext:
    """The argument of a ``tool_meta_resolver``: the call whose metadata it returns."""

    run_context: RunContextWrapper[Any]
    server_name: str
    tool_name: str
    arguments: dict[str, Any] | None


@dataclass
class MCPToolCustomDataContext:
    """The argument of a ``custom_data_extractor``: a completed call, from which it extracts data for the program."""

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

# Results by the context of the call, because extractors are called after the output was converted.
_call_results: "WeakKeyDictionary[RunContextWrapper[Any], tuple[dict[str, Any], CallToolResult]]" = WeakKeyDictionary()


def save_call_result(context: RunContextWrapper[Any], arguments: dict[str, Any], result: "CallToolResult") -> None:
    """Store the result of a call for the ``custom_data_extractor``."""
    _call_results[context] = (arguments, result)


def build_custom_data_extractor(
    server: "MCPServer", tool: "MCPTool", name: str
) -> FunctionToolCustomDataExtractor | None:
    """Adapt the server's ``custom_data_extractor`` to function tools. Return None if the server has none."""
    extract = server.custom_data_extractor
    if extract is None:
        return None

    async def custom_data(call: FunctionToolCustomDataContext) -> Mapping[str, Any] | None:
        saved = _call_results.get(call.tool_context)
        if saved is None:  # a guardrail replaced the output, or the call failed
            return None
        arguments, result = saved
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


class MCPUtil:
    """Converts tools of MCP servers into function tools. Agents use it for the servers in ``Agent.mcp_servers``."""

    @classmethod
    async def get_all_function_tools(
        cls,
        servers: "list[MCPServer]",
        convert_schemas_to_strict: bool,
        run_context: RunContextWrapper[Any],
        agent: AgentBase[Any],
        failure_error_function: ToolErrorFunction | None = default_tool_error_function,
        include_server_in_tool_names: bool = False,
        reserved_tool_names: set[str] | None = None,
    ) -> list[Tool]:
        """Return the tools of several servers. Raises :class:`UserError` if two tools have the same name."""
        tools: dict[str, tuple[MCPServer, Tool]] = {}
        for index, server in enumerate(servers):
            server_index = count_same_names(server, servers[:index])
            for tool in await cls.get_function_tools(
                server,
                convert_schemas_to_strict,
                run_context,
                agent,
                failure_error_function,
                include_server_in_tool_names,
                reserved_tool_names=reserved_tool_names,
                server_index=server_index,
            ):
                if tool.name in tools:
                    raise _build_collision_error(tool.name, tools[tool.name][0], server)
                tools[tool.name] = (server, tool)
        return [tool for _, tool in tools.values()]

    @classmethod
    async def get_function_tools(
        cls,
        server: "MCPServer",
        convert_schemas_to_strict: bool,
        run_context: RunContextWrapper[Any],
        agent: AgentBase[Any],
        failure_error_function: ToolErrorFunction | None = default_tool_error_function,
        include_server_in_tool_names: bool = False,
        tool_name_override: "Callable[[MCPTool], str] | None" = None,
        reserved_tool_names: set[str] | None = None,
        server_index: int = 0,
    ) -> list[Tool]:
        """Return the tools that the server currently offers to the agent.

        ``server_index`` is the number of preceding servers with the same name.
        """
        with maybe_mcp_tools_span(server.name) as span:
            tools = await server.list_tools(run_context, agent)
            if span is not None:
                span.span_data.result = [tool.name for tool in tools]
        counts = Counter(join_name(server.name, tool.name) for tool in tools)
        ambiguous = {name for name, count in counts.items() if count > 1}
        reserved = _collect_own_names(agent) | (reserved_tool_names or set()) | ambiguous
        function_tools: list[Tool] = []
        for tool in tools:
            name = None
            if tool_name_override is not None:
                name = tool_name_override(tool)
            elif include_server_in_tool_names:
                name = build_prefixed_name(server.name, tool.name, server_index=server_index, reserved_names=reserved)
            strict = convert_schemas_to_strict
            function_tool = cls.to_function_tool(tool, server, strict, agent, failure_error_function, name)
            # Servers may have the same name; the one that was asked for must be the one that is called.
            function_tool.recipient = json.dumps(["mcp", remove_credentials(server.name), server_index, tool.name])
            function_tools.append(function_tool)
        return function_tools

    @classmethod
    def to_function_tool(
        cls,
        tool: "MCPTool",
        server: "MCPServer",
        convert_schemas_to_strict: bool,
        agent: AgentBase[Any] | None = None,
        failure_error_function: ToolErrorFunction | None = default_tool_error_function,
        tool_name_override: str | None = None,
    ) -> FunctionTool:
        """Convert one tool.

        A schema that cannot be made strict is used as it is. A name that MCP does not allow is replaced by a similar
        one. A tool is idempotent if the server declares it read-only or idempotent.
        """
        error_function = server.resolve_error_function(failure_error_function)
        schema, strict = build_schema(tool, strict=convert_schemas_to_strict)
        name = tool_name_override or sanitize_tool_name(tool.name)
        title = tool.title or (None if tool.annotations is None else tool.annotations.title)

        async def on_invoke_tool(context: Any, arguments: str) -> Any:
            try:
                return await cls.invoke_mcp_tool(server, tool, context, arguments, tool_display_name=name)
            except Exception as error:
                if error_function is None:
                    raise
                return await explain_tool_error(error_function, context, error)

        return FunctionTool(
            name=name,
            description=tool.description or title or "",
            title=title,
            params_json_schema=schema,
            on_invoke_tool=on_invoke_tool,
            strict_json_schema=strict,
            needs_approval=server.approval_rule.for_tool(tool, agent),
            tool_input_guardrails=server.tool_input_guardrails,
            tool_output_guardrails=server.tool_output_guardrails,
            mcp_annotations=tool.annotations,
            custom_data_extractor=build_custom_data_extractor(server, tool, name),
            idempotent=is_idempotent(tool),
            failure_error_function=error_function,
            origin=ToolOrigin(ToolOriginType.MCP, mcp_server_name=remove_credentials(server.name)),
        )

    @classmethod
    async def invoke_mcp_tool(
        cls,
        server: "MCPServer",
        tool: "MCPTool",
        context: RunContextWrapper[Any],
        input_json: str,
        *,
        meta: dict[str, Any] | None = None,
        tool_display_name: str | None = None,
    ) -> ToolOutput:
        """Call the tool with the arguments of a model.

        ``meta`` takes precedence over the metadata that the server listed, and that over the ``tool_meta_resolver``.
        """
        meta = {**(tool.meta or {}), **(meta or {})} if server.tool_meta_resolver is None else meta
        arguments = _parse_arguments(tool_display_name or tool.name, input_json)
        if server.tool_meta_resolver is not None:
            meta_context = MCPToolMetaContext(context, server.name, tool.name, dict(arguments))
            resolved = await maybe_await(server.tool_meta_resolver(meta_context))
            meta = {**(resolved or {}), **(tool.meta or {}), **(meta or {})}
        name, task = remove_credentials(server.name), asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()
        try:
            result = await server.call_tool(tool.name, arguments, copy.deepcopy(meta) or None)
        except asyncio.CancelledError:
            if task is None or task.cancelling() > cancelling:
                raise
            raise MCPToolCancellationError(
                f"the MCP server {name!r} cancelled the call of {tool.name!r}; the call may have had an effect"
            ) from None
        except Exception as error:
            from mcp import MCPError

            if isinstance(error, AgentsException | StandfastError | MCPError):
                raise
            raise AgentsException(f"Error invoking MCP tool {tool.name} on server {name!r}: {error}") from error
        save_call_result(context, arguments, result)
        return convert_result(
            result, use_structured_content=server.use_structured_content, max_chars=server.max_output_chars
        )


def is_idempotent(tool: "MCPTool") -> bool:
    """Return True if the server declares the tool read-only or idempotent."""
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _build_collision_error(name: str, first: "MCPServer", second: "MCPServer") -> UserError:
    if first is second:
        return UserError(
            f"the MCP server {first.name!r} lists the tool {name!r} twice: "
            "exclude it with a tool_filter, or fix the server"
        )
    return UserError(
        f"the MCP servers {first.name!r} and {second.name!r} both have a tool {name!r}: "
        "exclude one of them with a tool_filter, or set include_server_in_tool_names"
    )


def _collect_own_names(agent: AgentBase[Any]) -> set[str]:
    handoffs = {as_handoff(target).tool_name for target in getattr(agent, "handoffs", ())}
    return handoffs | {tool.name for tool in agent.tools if isinstance(tool, FunctionTool)}


def _parse_arguments(name: str, input_json: str) -> dict[str, Any]:
    try:
        arguments = json.loads(input_json) if input_json else {}
    except (ValueError, RecursionError) as error:
        raise ModelBehaviorError(f"the arguments of {name} are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ModelBehaviorError(f"the arguments of {name} must be a JSON object, got {type(arguments).__name__}")
    return arguments
