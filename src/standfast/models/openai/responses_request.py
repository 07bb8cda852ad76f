"""The parts of a request to the Responses API: items, tools, output format and settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.hosted_tools import CodeInterpreterTool, FileSearchTool, HostedMCPTool, WebSearchTool
from standfast.agents.model_settings import MCPToolChoice, ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import FunctionTool, Tool
from standfast.base.items import Item
from standfast.models.attribute_items import to_plain

# The prefix of ids that were generated here because the provider gave none.
LOCAL_ID_PREFIX = "local_"
_PLACEHOLDER_IDS = ("__fake_id__", "scripted-message")
# Fields that the API returns but does not accept as input.
_OUTPUT_ONLY_FIELDS = frozenset(["created_by", "provider_data"])

_HOSTED_CHOICES = frozenset(
    ["file_search", "web_search", "web_search_preview", "code_interpreter", "image_generation", "computer", "mcp"]
)


def prepare_input_items(items: str | Iterable[Item]) -> list[Item]:
    """Return the conversation as input of the API, without ids that its server did not assign.

    Reasoning items with such an id are dropped: the server accepts only references to its own reasoning.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return [
        item if _is_acceptable(item) else _strip_item(item)
        for item in items
        if item.get("type") != "reasoning" or not _is_local_id(item.get("id"))
    ]


def _is_acceptable(item: Item) -> bool:
    return not _is_local_id(item.get("id")) and _OUTPUT_ONLY_FIELDS.isdisjoint(item)


def _strip_item(item: Item) -> Item:
    return {
        name: part
        for name, part in item.items()
        if name not in _OUTPUT_ONLY_FIELDS and not (name == "id" and _is_local_id(part))
    }


def _is_local_id(item_id: Any) -> bool:
    return isinstance(item_id, str) and (item_id.startswith(LOCAL_ID_PREFIX) or item_id in _PLACEHOLDER_IDS)


def to_response_tools(tools: Iterable[Tool], handoffs: Iterable[Handoff[Any, Any]]) -> list[Item]:
    """Return the tools and handoffs in the format of the API. Tools of one namespace are grouped at the first one."""
    converted: list[Item] = []
    namespaces: dict[str, Item] = {}
    deferred = False
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            converted.append(_convert_hosted_tool(tool))
            continue
        deferred = deferred or tool.defer_loading
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
    return [*converted, {"type": "tool_search"}] if deferred else converted


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
            return omit_none(
                type="web_search",
                filters=tool.filters,
                user_location=tool.user_location,
                search_context_size=tool.search_context_size,
                external_web_access=tool.external_web_access,
            )
        case FileSearchTool():
            return omit_none(
                type="file_search",
                vector_store_ids=tool.vector_store_ids,
                max_num_results=tool.max_num_results,
                ranking_options=tool.ranking_options,
                filters=tool.filters,
            )
        case CodeInterpreterTool() | HostedMCPTool():
            config: Item = to_plain(tool.tool_config)
            return config
    raise UserError(f"the Responses API does not support the tool {tool!r}")


def to_response_tool_choice(choice: Any, tools: Iterable[Tool]) -> Any | None:
    """Return the tool choice in the format of the API. A function takes precedence over a hosted tool of that name."""
    if choice is None or choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, MCPToolChoice):
        return {"type": "mcp", "server_label": choice.server_label, "name": choice.name}
    functions = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
    if choice in _HOSTED_CHOICES and choice not in functions:
        return {"type": choice}
    return {"type": "function", "name": choice}


def build_text_config(schema: AgentOutputSchemaBase | None, verbosity: str | None) -> Item | None:
    """Return the output format and the verbosity; ``None`` if neither is set."""
    config: Item = {}
    if schema is not None and not schema.is_plain_text():
        config["format"] = {
            "type": "json_schema",
            "name": "final_output",
            "schema": schema.json_schema(),
            "strict": schema.is_strict_json_schema(),
        }
    if verbosity is not None:
        config["verbosity"] = verbosity
    return config or None


def build_include(settings: ModelSettings, tools: Iterable[Tool]) -> list[str] | None:
    """Return the names of the additional data that the response should include; ``None`` without any."""
    include = list(settings.response_include or [])
    if any(isinstance(tool, FileSearchTool) and tool.include_search_results for tool in tools):
        include.append("file_search_call.results")
    if settings.top_logprobs is not None:
        include.append("message.output_text.logprobs")
    return list(dict.fromkeys(include)) or None


def resolve_parallel_calls(settings: ModelSettings, tools: list[Item]) -> bool | None:
    """Return the setting, or ``None`` for ``True`` without tools, which the API rejects."""
    return None if settings.parallel_tool_calls and not tools else settings.parallel_tool_calls


def omit_none(**parts: Any) -> Item:
    """Return the parts that are not ``None``: the API distinguishes absent from null."""
    simple = (str, bool, int, float, list)
    return {
        name: part if isinstance(part, simple) else to_plain(part) for name, part in parts.items() if part is not None
    }


def build_client_arguments(request: Item, raw_body: Item, settings: ModelSettings) -> Item:
    """Return the client's arguments for a request, including the user's ``extra_*`` settings.

    ``raw_body`` is sent as ``extra_body``, which the client does not transform. It searches all other arguments for
    names to translate, which takes milliseconds for each item, and the items already have the names of the API.
    Raises :class:`UserError` if ``extra_args`` repeats an argument.
    """
    extra = settings.extra_args or {}
    repeated = sorted(extra.keys() & (request.keys() | raw_body.keys()))
    if repeated:
        raise UserError(f"extra_args repeats arguments of the request: {', '.join(repeated)}")
    arguments = {**request, **extra}
    for name in ("extra_headers", "extra_query"):
        if getattr(settings, name) is not None:
            arguments[name] = dict(getattr(settings, name))
    body = settings.extra_body
    if body is None or isinstance(body, Mapping):
        return {**arguments, "extra_body": {**raw_body, **(body or {})}}
    return {**arguments, **raw_body, "extra_body": body}
