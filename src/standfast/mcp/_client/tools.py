"""Tools of a server as function tools of an agent."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.agents.agent import AgentBase
from holdfast.agents.context import RunContextWrapper
from holdfast.agents.errors import InvalidDeclaration, MCPToolCancellationError, ModelBehaviorError, UserError
from holdfast.agents.handoffs import as_handoff
from holdfast.agents.strict_schema import to_strict_schema
from holdfast.agents.tools import (
    FunctionTool,
    Tool,
    ToolOrigin,
    ToolOriginType,
    default_tool_error_function,
    explain_tool_error,
)
from holdfast.agents.types import ToolErrorFunction, maybe_await
from holdfast.mcp.naming import build_prefixed_name, sanitize_tool_name
from holdfast.mcp.results import ToolOutput, convert_result
from holdfast.mcp.tool_data import MCPToolMetaContext, build_custom_data_extractor, save_call_result
from holdfast.tracing.inner import maybe_mcp_tools_span

if TYPE_CHECKING:
    from mcp.types import Tool as MCPTool

    from holdfast.mcp.server import MCPServer

_log = logging.getLogger("holdfast.mcp")


class MCPUtil:
    """From a server's tools to function tools. Servers in ``Agent.mcp_servers`` go through here by themselves."""

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
        """The tools of several servers; two of one name are an error."""
        found: dict[str, tuple[MCPServer, Tool]] = {}
        for index, server in enumerate(servers):
            twin = sum(earlier.name == server.name for earlier in servers[:index])
            for tool in await cls.get_function_tools(
                server,
                convert_schemas_to_strict,
                run_context,
                agent,
                failure_error_function,
                include_server_in_tool_names,
                reserved_tool_names=reserved_tool_names,
                server_index=twin,
            ):
                if tool.name in found:
                    raise _build_collision_error(tool.name, found[tool.name][0], server)
                found[tool.name] = (server, tool)
        return [tool for _, tool in found.values()]

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
        """The tools that the server offers this agent now. ``server_index`` counts servers of one name."""
        with maybe_mcp_tools_span(server.name) as span:
            offered = await server.list_tools(run_context, agent)
            if span is not None:
                span.span_data.result = [tool.name for tool in offered]
        taken = _collect_own_names(agent) | (reserved_tool_names or set())
        found: list[Tool] = []
        for tool in offered:
            name = None
            if tool_name_override is not None:
                name = tool_name_override(tool)
            elif include_server_in_tool_names:
                name = build_prefixed_name(server.name, tool.name, server_index=server_index, reserved_names=taken)
            strict = convert_schemas_to_strict
            found.append(cls.to_function_tool(tool, server, strict, agent, failure_error_function, name))
        return found

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
        """One tool. A schema that cannot be strict stays as the server wrote it. A name that the protocol does not
        allow is spelled in characters that models can say.

        A tool that says of itself that it changes nothing, or nothing more when it is called again, is idempotent.
        """
        explain = server.resolve_error_function(failure_error_function)
        schema, strict = _build_schema(tool, strict=convert_schemas_to_strict)
        name = tool_name_override or sanitize_tool_name(tool.name)

        async def on_invoke_tool(context: Any, arguments: str) -> Any:
            try:
                return await cls.invoke_mcp_tool(server, tool, context, arguments, tool_display_name=name)
            except Exception as error:
                if explain is None:
                    raise
                return await explain_tool_error(explain, context, error)

        return FunctionTool(
            name=name,
            description=tool.description or "",
            params_json_schema=schema,
            on_invoke_tool=on_invoke_tool,
            strict_json_schema=strict,
            needs_approval=server.approval_rule.for_tool(tool, agent),
            custom_data_extractor=build_custom_data_extractor(server, tool, name),
            idempotent=is_idempotent(tool),
            failure_error_function=explain,
            origin=ToolOrigin(ToolOriginType.MCP, mcp_server_name=server.name),
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
        """Call the tool with a model's arguments. What ``meta`` has goes before what the resolver says."""
        arguments = _parse_arguments(tool_display_name or tool.name, input_json)
        if server.tool_meta_resolver is not None:
            asked = MCPToolMetaContext(context, server.name, tool.name, dict(arguments))
            found = await maybe_await(server.tool_meta_resolver(asked))
            meta = {**(found or {}), **(meta or {})}
        try:
            result = await server.call_tool(tool.name, arguments, meta or None)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise MCPToolCancellationError(
                f"the MCP server {server.name!r} cancelled the call of {tool.name!r}; it may have had an effect"
            ) from None
        save_call_result(context, arguments, result)
        return convert_result(result, use_structured_content=server.use_structured_content)


def is_idempotent(tool: "MCPTool") -> bool:
    """Whether the server says that calling the tool twice does no harm."""
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _build_collision_error(name: str, first: "MCPServer", second: "MCPServer") -> UserError:
    if first is second:
        return UserError(f"the MCP server {first.name!r} lists the tool {name!r} twice: filter it, or mend the server")
    return UserError(
        f"two MCP servers have a tool {name!r}, the second is {second.name!r}: filter one of them, or set "
        "include_server_in_tool_names"
    )


def _collect_own_names(agent: AgentBase[Any]) -> set[str]:
    handoffs = {as_handoff(target).tool_name for target in getattr(agent, "handoffs", ())}
    return handoffs | {tool.name for tool in agent.tools if isinstance(tool, FunctionTool)}


def _build_schema(tool: "MCPTool", *, strict: bool) -> tuple[dict[str, Any], bool]:
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    if strict:
        try:
            return to_strict_schema(schema, where=f"tool {tool.name}"), True
        except InvalidDeclaration as error:
            _log.info("the schema of the MCP tool %r stays as it is: %s", tool.name, error)
    return schema, False


def _parse_arguments(name: str, input_json: str) -> dict[str, Any]:
    try:
        given = json.loads(input_json) if input_json else {}
    except (ValueError, RecursionError) as error:
        raise ModelBehaviorError(f"the arguments of {name} are no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ModelBehaviorError(f"the arguments of {name} must be a JSON object, not {type(given).__name__}")
    return given
