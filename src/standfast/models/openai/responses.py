"""Models that use OpenAI's Responses API, and the conversion of items, tools and settings to its format.

The client of the ``openai`` package parses the server-sent events of a streamed response.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from standfast.agents.hosted_tools import FileSearchTool, WebSearchTool
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import (
    FAILURE_EVENTS,
    FINAL_EVENTS,
    IncompleteStream,
    ModelResponse,
    TResponseStreamEvent,
    make_incomplete_error,
    parse_response,
    to_input_item,
)
from standfast.models.openai.client import (
    LOCAL_ID_PREFIX,
    build_client_arguments,
    configure_client_retries,
    get_api_key,
    get_request_id,
    hide_api_key,
    is_library_client,
    make_retry_advice,
    mask,
    omit_none,
    open_stream,
    resolve_parallel_calls,
)
from standfast.models.openai.response_tools import to_response_tool_choice, to_response_tools
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_PLACEHOLDER_IDS = ("__fake_id__", "scripted-message")
# Fields that the API returns but does not accept as input.
_OUTPUT_ONLY_FIELDS = frozenset(["created_by", "provider_data"])

# Settings with the same name in the API.
_PASSTHROUGH_SETTINGS = (
    "temperature",
    "top_p",
    "truncation",
    "reasoning",
    "metadata",
    "store",
    "top_logprobs",
    "prompt_cache_retention",
    "prompt_cache_options",
    "context_management",
)


class OpenAIResponsesModel(RequestModel):
    """A model that uses the Responses API. The client belongs to the caller: the model does not close it.

    ``model_is_explicit`` is false for a default model; a prompt stored at the provider may then choose the model.
    """

    provider_name = "openai"
    answers_with_responses = True
    """Its spans are those of responses."""

    def __init__(self, model: str, openai_client: "AsyncOpenAI", *, model_is_explicit: bool = True) -> None:
        self.model = model
        self._client = openai_client
        self._model_is_explicit = model_is_explicit

    async def respond(self, request: ModelRequest) -> ModelResponse:
        with hide_api_key(self._client):
            response = await self._configure_client(request).responses.create(**self.build_request(request))
            if getattr(response, "status", None) == "incomplete":
                raise make_incomplete_error(response)
            return parse_response(response, keep_raw_usage=bool(request.model_settings.preserve_raw_usage))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        client, arguments = self._configure_client(request), self.build_request(request)
        ended = False
        with hide_api_key(client):
            async with open_stream(await client.responses.create(**arguments, stream=True)) as events:
                async for event in events:
                    if event.type in FINAL_EVENTS:
                        ended = True
                        event.response._request_id = get_request_id(events)
                    if event.type in FAILURE_EVENTS:
                        ended = True
                        _mask_failure(event, get_api_key(client))
                    yield event
        if not ended:
            raise IncompleteStream("the stream ended before the response was complete")

    def build_request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments for the client's ``responses.create``."""
        model = self.model if self._model_is_explicit or request.prompt is None else None
        return build_response_arguments(request, model, as_body=is_library_client(self._client))

    def _configure_client(self, request: ModelRequest) -> "AsyncOpenAI":
        return configure_client_retries(self._client, request.model_settings, stateful=request.is_stateful)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)


def build_response_arguments(request: ModelRequest, model: str | None, *, as_body: bool = True) -> dict[str, Any]:
    """Return a request as arguments of ``responses.create``; ``as_body`` puts its items and tools in ``extra_body``."""
    settings, prompt = request.model_settings, request.prompt
    callable_tools = to_response_tools(request.tools, request.handoffs, model=model)
    arguments = omit_none(
        model=model,
        instructions=request.system_instructions,
        tool_choice=to_response_tool_choice(settings.tool_choice, request.tools, model=model),
        parallel_tool_calls=resolve_parallel_calls(settings, callable_tools),
        text=build_text_config(request.output_schema, settings.verbosity),
        include=build_include(settings, request.tools),
        previous_response_id=request.previous_response_id,
        conversation=request.conversation_id,
        prompt=None if prompt is None else omit_none(**prompt),
        max_output_tokens=settings.max_tokens,
        **{name: getattr(settings, name) for name in _PASSTHROUGH_SETTINGS},
    )
    raw_body = omit_none(input=prepare_input_items(request.input), tools=callable_tools or None)
    return build_client_arguments(arguments, raw_body, settings, as_body=as_body)


def _mask_failure(event: Any, api_key: str) -> None:
    errors: list[Any] = [event, getattr(getattr(event, "response", None), "error", None)]
    for error in errors:
        if isinstance(getattr(error, "message", None), str):
            error.message = mask(error.message, api_key)


def prepare_input_items(items: str | Iterable[Item]) -> list[Item]:
    """Return the conversation as input of the API, without ids that its server did not assign.

    Reasoning items with such an id are dropped: the server accepts only references to its own reasoning.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return [
        item if _is_acceptable(item) else _strip_item(item)
        for item in map(to_input_item, items)
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


def build_include(settings: ModelSettings, tools: Sequence[Tool]) -> list[str] | None:
    """Return the names of the additional data that the response should include; ``None`` without any."""
    include: list[str] = []
    if any(isinstance(tool, FileSearchTool) and tool.include_search_results for tool in tools):
        include.append("file_search_call.results")
    if any(isinstance(tool, WebSearchTool) and "image" in (tool.search_content_types or ()) for tool in tools):
        include.append("web_search_call.results")
    include += settings.response_include or []
    if settings.top_logprobs is not None:
        include.append("message.output_text.logprobs")
    return list(dict.fromkeys(include)) or None
