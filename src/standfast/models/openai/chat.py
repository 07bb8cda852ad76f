"""Models that use the Chat Completions API, which most servers support."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.model_settings import ModelSettings
from standfast.agents.tool_identity import get_field
from standfast.base.items import Item
from standfast.base.log import get_logger
from standfast.models.interface import (
    COMPLETED_EVENT,
    IncompleteStream,
    ModelResponse,
    ResponseFailed,
    TResponseStreamEvent,
    parse_usage,
    to_plain,
)
from standfast.models.openai.chat_conversion import (
    ShouldReplayReasoningContent,
    to_chat_messages,
    to_chat_response_format,
    to_chat_tool_choice,
    to_chat_tools,
)
from standfast.models.openai.chat_output import ToolNameResolver, items_from_choice, usage_from_chat
from standfast.models.openai.chat_stream import ChatStreamConverter
from standfast.models.openai.client import (
    build_client_arguments,
    configure_client_retries,
    get_request_id,
    hide_api_key,
    is_library_client,
    make_retry_advice,
    omit_none,
    open_stream,
    resolve_parallel_calls,
    to_typed_event,
    to_typed_item,
)
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = get_logger("standfast")

# Settings with the same name in the API.
_PASSTHROUGH_SETTINGS = (
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
    "metadata",
    "store",
    "verbosity",
    "top_logprobs",
    "prompt_cache_retention",
    "prompt_cache_options",
)


class OpenAIChatCompletionsModel(RequestModel):
    """A model that uses the Chat Completions API. The client belongs to the caller: the model does not close it.

    Features that the API does not have (conversations at the server, items of hosted tools, images as tool outputs)
    are left out, with a warning where possible; with ``strict_feature_validation`` they raise :class:`UserError`.
    """

    provider_name = "openai"

    def __init__(
        self,
        model: str,
        openai_client: "AsyncOpenAI",
        should_replay_reasoning_content: ShouldReplayReasoningContent | None = None,
        strict_feature_validation: bool = False,
        buffer_streamed_tool_calls: bool = False,
    ) -> None:
        self.model = model
        self._client = openai_client
        self.should_replay_reasoning_content = should_replay_reasoning_content
        self._strict = strict_feature_validation
        self._buffer_calls = buffer_streamed_tool_calls

    async def respond(self, request: ModelRequest) -> ModelResponse:
        settings = request.model_settings
        client, arguments = (
            configure_client_retries(self._client, settings, stateful=False),
            self.build_request(request),
        )
        with hide_api_key(client):
            completion = await client.chat.completions.create(**arguments)
            return parse_completion(completion, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        settings = request.model_settings
        client, arguments = (
            configure_client_retries(self._client, settings, stateful=False),
            self.build_request(request),
        )
        converter = ChatStreamConverter(
            ToolNameResolver(request.tools), model=self.model, buffer_calls=self._buffer_calls
        )
        options = self._build_stream_options(settings)
        with hide_api_key(client):
            async with open_stream(await client.chat.completions.create(**arguments, **options, stream=True)) as chunks:
                async for chunk in chunks:
                    for event in converter.feed(chunk):
                        yield to_typed_event(event)
                request_id = get_request_id(chunks)
        if converter.finish_reason is None:
            raise IncompleteStream("the stream ended before the response was complete")
        for event in converter.finish():
            last = to_typed_event(event)
            if event["type"] == COMPLETED_EVENT:
                last.response._request_id = request_id
            yield last

    def build_request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments for the client's ``chat.completions.create``."""
        check_chat_features(request, strict=self._strict)
        settings = request.model_settings
        messages = to_chat_messages(
            request.system_instructions,
            request.input,
            model=self.model,
            base_url=str(getattr(self._client, "base_url", "")).rstrip("/"),
            strict=self._strict,
            should_replay=self.should_replay_reasoning_content,
        )
        arguments = build_chat_arguments(request, self.model)
        raw_body = omit_none(messages=messages, tools=arguments.pop("tools", None))
        # The client requires the argument ``messages``; the raw body overrides it.
        as_body = is_library_client(self._client)
        return {"messages": [], **build_client_arguments(arguments, raw_body, settings, as_body=as_body)}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)

    def _build_stream_options(self, settings: ModelSettings) -> Item:
        """Return the option for usage in streams. By default only OpenAI is sent it: other servers may reject it."""
        include_usage = settings.include_usage
        if (
            include_usage is None
            and is_library_client(self._client)
            and self._client.base_url.host.endswith("openai.com")
        ):
            include_usage = True
        return {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}


def build_chat_arguments(request: ModelRequest, model: str) -> Item:
    """Return the arguments of a request without its messages and its ``extra_*`` settings."""
    settings = request.model_settings
    callable_tools = to_chat_tools(request.tools, request.handoffs)
    return omit_none(
        model=model,
        tools=callable_tools or None,
        tool_choice=to_chat_tool_choice(settings.tool_choice) if callable_tools else None,
        parallel_tool_calls=resolve_parallel_calls(settings, callable_tools),
        response_format=to_chat_response_format(request.output_schema),
        reasoning_effort=None if settings.reasoning is None else get_field(settings.reasoning, "effort"),
        logprobs=None if settings.top_logprobs is None else True,
        **{name: getattr(settings, name) for name in _PASSTHROUGH_SETTINGS},
    )


def check_chat_features(request: ModelRequest, *, strict: bool) -> None:
    """Warn of parts of a request that the API does not have, or raise :class:`UserError` with ``strict``."""
    for name in ("previous_response_id", "conversation_id", "prompt"):
        if getattr(request, name) is None:
            continue
        problem = f"the Chat Completions API has no {name}"
        if strict:
            raise UserError(f"{problem}: use the Responses API, or leave it out")
        log.warning("%s; it is ignored", problem)


def parse_completion(completion: Any, request: ModelRequest) -> ModelResponse:
    """Return a completion as a response."""
    if not get_field(completion, "choices"):
        raise _make_no_choices_error(completion)
    usage = get_field(completion, "usage")
    items = items_from_choice(completion.choices[0], ToolNameResolver(request.tools))
    keep_raw = request.model_settings.preserve_raw_usage and usage is not None
    return ModelResponse(
        output=[to_typed_item(item) for item in items],
        usage=parse_usage(usage_from_chat(usage)),
        response_id=get_field(completion, "id"),
        request_id=getattr(completion, "_request_id", None),
        raw_usage=to_plain(usage) if keep_raw else None,
    )


def _make_no_choices_error(response: Any) -> Exception:
    """Return the error for a response without choices. Some servers report failures with a success status."""
    error = get_field(response, "error")
    if error is None:
        return ModelBehaviorError("the response of the server has no choices")
    code = get_field(error, "code")
    message = get_field(error, "message") or error
    return ResponseFailed(f"the server reported an error: {message}", error_code=None if code is None else str(code))
