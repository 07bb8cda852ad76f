"""Requests to the Responses API, made of plain dicts: tools, output format, settings and items."""

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

# Ids that were made up here because a provider gave none. No server knows them.
LOCAL_ID_PREFIX = "local_"
_PLACEHOLDER_IDS = ("__fake_id__", "scripted-message")
# What the API reports and does not take back.
_OUTPUT_ONLY_FIELDS = frozenset(["created_by", "provider_data"])

_HOSTED_CHOICES = frozenset(
    ["file_search", "web_search", "web_search_preview", "code_interpreter", "image_generation", "computer", "mcp"]
)


def prepare_input_items(items: str | Iterable[Item]) -> list[Item]:
    """The conversation as the API takes it: without ids that its server never gave.

    Reasoning goes with its id. A reasoning item is nothing to the server but a reference to its own.
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
    """Everything the model may call. Tools of one namespace go together, where the first of them stood."""
    found: list[Item] = []
    namespaces: dict[str, Item] = {}
    deferred = False
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            found.append(_convert_hosted_tool(tool))
            continue
        deferred = deferred or tool.defer_loading
        if tool.namespace is None:
            found.append(_convert_function_tool(tool))
            continue
        if tool.namespace not in namespaces:
            group: Item = {
                "type": "namespace",
                "name": tool.namespace,
                "description": tool.namespace_description,
                "tools": [],
            }
            namespaces[tool.namespace] = group
            found.append(group)
        namespaces[tool.namespace]["tools"].append(_convert_function_tool(tool))
    found += [
        {
            "type": "function",
            "name": way.tool_name,
            "description": way.tool_description,
            "parameters": way.input_json_schema,
            "strict": way.strict_json_schema,
        }
        for way in handoffs
    ]
    # Deferred tools are found by searching; without a search nobody would ever find them.
    return [*found, {"type": "tool_search"}] if deferred else found


def _convert_function_tool(tool: FunctionTool) -> Item:
    found: Item = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.params_json_schema,
        "strict": tool.strict_json_schema,
    }
    if tool.defer_loading:
        found["defer_loading"] = True
    if tool.allowed_callers is not None:
        found["allowed_callers"] = tool.allowed_callers
    if tool.output_json_schema is not None:
        found["output_schema"] = tool.output_json_schema
    return found


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
    raise UserError(f"the Responses API has no tool like {tool!r}")


def to_response_tool_choice(choice: Any, tools: Iterable[Tool]) -> Any | None:
    """What the model has to call, as the API takes it. A function of that name comes before a hosted tool."""
    if choice is None or choice in ("auto", "required", "none"):
        return choice
    if isinstance(choice, MCPToolChoice):
        return {"type": "mcp", "server_label": choice.server_label, "name": choice.name}
    functions = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
    if choice in _HOSTED_CHOICES and choice not in functions:
        return {"type": choice}
    return {"type": "function", "name": choice}


def build_text_config(schema: AgentOutputSchemaBase | None, verbosity: str | None) -> Item | None:
    """The shape that the answer must have, and how wordy it may be."""
    found: Item = {}
    if schema is not None and not schema.is_plain_text():
        found["format"] = {
            "type": "json_schema",
            "name": "final_output",
            "schema": schema.json_schema(),
            "strict": schema.is_strict_json_schema(),
        }
    if verbosity is not None:
        found["verbosity"] = verbosity
    return found or None


def build_include(settings: ModelSettings, tools: Iterable[Tool]) -> list[str] | None:
    """What the answer is to contain beyond the usual."""
    found = list(settings.response_include or [])
    if any(isinstance(tool, FileSearchTool) and tool.include_search_results for tool in tools):
        found.append("file_search_call.results")
    if settings.top_logprobs is not None:
        found.append("message.output_text.logprobs")
    return list(dict.fromkeys(found)) or None


def resolve_parallel_calls(settings: ModelSettings, tools: list[Item]) -> bool | None:
    """The API refuses to be asked for parallel calls when there is nothing to call."""
    return None if settings.parallel_tool_calls and not tools else settings.parallel_tool_calls


def omit_none(**parts: Any) -> Item:
    """Those parts that are not ``None``: the API distinguishes absent from null."""
    simple = (str, bool, int, float, list)
    return {
        name: part if isinstance(part, simple) else to_plain(part) for name, part in parts.items() if part is not None
    }


def build_client_arguments(request: Item, raw_body: Item, settings: ModelSettings) -> Item:
    """The client's arguments for a request, with the user's own additions; what is said in two places is refused.

    ``bulk`` goes by the raw body. The client looks through every part of its arguments for names to translate, which
    takes it milliseconds per item of a conversation, and all of ours has the API's own names already.
    """
    extra = settings.extra_args or {}
    both = sorted(extra.keys() & (request.keys() | raw_body.keys()))
    if both:
        raise UserError(f"extra_args sets what the request has already: {', '.join(both)}")
    found = {**request, **extra}
    for name in ("extra_headers", "extra_query"):
        if getattr(settings, name) is not None:
            found[name] = dict(getattr(settings, name))
    body = settings.extra_body
    if body is None or isinstance(body, Mapping):
        return {**found, "extra_body": {**raw_body, **(body or {})}}
    return {**found, **raw_body, "extra_body": body}
