"""Models behind the Chat Completions API, which almost every server speaks."""

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tool_identity import get_field
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.attribute_items import to_plain
from standfast.models.interface import (
    IncompleteStream,
    Model,
    ModelResponse,
    ModelTracing,
    ResponseFailed,
    TResponseStreamEvent,
    parse_usage,
)
from standfast.models.openai.chat_conversion import (
    ShouldReplayReasoningContent,
    ToolNameResolver,
    items_from_chat_message,
    to_chat_messages,
    to_chat_response_format,
    to_chat_tool_choice,
    to_chat_tools,
    usage_from_chat,
)
from standfast.models.openai.chat_stream import ChatStreamConverter
from standfast.models.openai.errors import configure_client_retries, make_retry_advice
from standfast.models.openai.responses_request import build_client_arguments, omit_none, resolve_parallel_calls
from standfast.models.openai.typed import to_typed_event, to_typed_item
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger("standfast")


class OpenAIChatCompletionsModel(Model):
    """A model behind the Chat Completions API. The client stays its owner's: closing the model does not close it.

    What the API cannot do (conversations at the server, hosted tools' traces, pictures as tool outputs) is left out
    with a warning where possible, or refused with ``strict_feature_validation``.
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
        self._should_replay = should_replay_reasoning_content
        self._strict = strict_feature_validation
        self._buffer_calls = buffer_streamed_tool_calls

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> ModelResponse:
        self._check_unsupported(previous_response_id, conversation_id, prompt)
        request = self.build_request(system_instructions, input, model_settings, tools, output_schema, handoffs)
        client = configure_client_retries(self._client, model_settings, stateful=False)
        answer = await client.chat.completions.create(**request)
        if not get_field(answer, "choices"):
            raise _make_no_choices_error(answer)
        usage = answer.usage
        return ModelResponse(
            output=[
                to_typed_item(item)
                for item in items_from_chat_message(answer.choices[0].message, ToolNameResolver(tools))
            ],
            usage=parse_usage(usage_from_chat(usage)),
            response_id=answer.id,
            request_id=answer._request_id,
            raw_usage=to_plain(usage) if model_settings.preserve_raw_usage and usage is not None else None,
        )

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        self._check_unsupported(previous_response_id, conversation_id, prompt)
        request = self.build_request(system_instructions, input, model_settings, tools, output_schema, handoffs)
        client = configure_client_retries(self._client, model_settings, stateful=False)
        answer = ChatStreamConverter(ToolNameResolver(tools), model=self.model, buffer_calls=self._buffer_calls)
        options = self._build_stream_options(model_settings)
        async with await client.chat.completions.create(**request, **options, stream=True) as chunks:
            async for chunk in chunks:
                for event in answer.feed(chunk):
                    yield to_typed_event(event)
            request_id = chunks.response.headers.get("x-request-id")
        if answer.finish_reason is None:
            raise IncompleteStream("the stream ended before the answer was complete")
        for event in answer.finish():
            last = to_typed_event(event)
            if event["type"] == "response.completed":
                last.response._request_id = request_id
            yield last

    def build_request(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
    ) -> dict[str, Any]:
        """What is sent, as arguments of the client's ``chat.completions.create``."""
        callable_tools = to_chat_tools(tools, handoffs)
        messages = to_chat_messages(
            system_instructions,
            input,
            model=self.model,
            base_url=str(self._client.base_url),
            strict=self._strict,
            should_replay=self._should_replay,
        )
        request = omit_none(
            model=self.model,
            tool_choice=to_chat_tool_choice(settings.tool_choice) if callable_tools else None,
            parallel_tool_calls=resolve_parallel_calls(settings, callable_tools) if callable_tools else None,
            response_format=to_chat_response_format(output_schema),
            reasoning_effort=None if settings.reasoning is None else get_field(settings.reasoning, "effort"),
            logprobs=None if settings.top_logprobs is None else True,
            **{name: getattr(settings, name) for name in _PASSTHROUGH_SETTINGS},
        )
        bulk = omit_none(messages=messages, tools=callable_tools or None)
        # The client insists on an argument of that name; the body goes before it.
        return {"messages": [], **build_client_arguments(request, bulk, settings)}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)

    def _build_stream_options(self, settings: ModelSettings) -> Item:
        """OpenAI counts tokens in streams when asked; other servers may not know the question."""
        wanted = settings.include_usage
        if wanted is None and self._client.base_url.host.endswith("openai.com"):
            wanted = True
        return {} if wanted is None else {"stream_options": {"include_usage": wanted}}

    def _check_unsupported(self, previous_response_id: str | None, conversation_id: str | None, prompt: Any) -> None:
        used = {"previous_response_id": previous_response_id, "conversation_id": conversation_id, "prompt": prompt}
        for name in [name for name, value in used.items() if value is not None]:
            problem = f"the Chat Completions API knows no {name}"
            if self._strict:
                raise UserError(f"{problem}: use the Responses API, or leave it out")
            log.warning("%s: it is ignored", problem)


# Settings that have the same name in the API.
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


def _make_no_choices_error(response: Any) -> Exception:
    """Some servers report failures in an answer that claims success."""
    error = get_field(response, "error")
    if error is None:
        return ModelBehaviorError("the server answered without a choice")
    code = get_field(error, "code")
    message = get_field(error, "message") or error
    return ResponseFailed(f"the server reported: {message}", error_code=None if code is None else str(code))
