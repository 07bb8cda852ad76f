"""Models behind the Chat Completions API, which almost every server speaks."""

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from holdfast.agents.errors import ModelBehaviorError, UserError
from holdfast.agents.handoffs import Handoff
from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.output import AgentOutputSchemaBase
from holdfast.agents.tool_refs import part_of
from holdfast.agents.tools import Tool
from holdfast.base.items import Item
from holdfast.models.contract import (
    Model,
    ModelResponse,
    ModelTracing,
    ResponseFailed,
    StreamCut,
    TResponseStreamEvent,
    usage_in,
)
from holdfast.models.openai_chat_items import (
    Names,
    ShouldReplayReasoningContent,
    chat_choice,
    chat_format,
    chat_messages,
    chat_tools,
    chat_usage,
    output_items,
)
from holdfast.models.openai_chat_stream import ChatStream
from holdfast.models.openai_errors import advice_on, quiet
from holdfast.models.openai_items import arguments, given, parallel_calls
from holdfast.models.openai_typed import typed_event, typed_item
from holdfast.models.raw import bare
from holdfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger("holdfast")


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
        self._check(previous_response_id, conversation_id, prompt)
        request = self.request(system_instructions, input, model_settings, tools, output_schema, handoffs)
        client = quiet(self._client, model_settings, stateful=False)
        answer = await client.chat.completions.create(**request)
        if not part_of(answer, "choices"):
            raise _no_choices(answer)
        usage = answer.usage
        return ModelResponse(
            output=[typed_item(item) for item in output_items(answer.choices[0].message, Names(tools))],
            usage=usage_in(chat_usage(usage)),
            response_id=answer.id,
            request_id=answer._request_id,
            raw_usage=bare(usage) if model_settings.preserve_raw_usage and usage is not None else None,
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
        self._check(previous_response_id, conversation_id, prompt)
        request = self.request(system_instructions, input, model_settings, tools, output_schema, handoffs)
        client = quiet(self._client, model_settings, stateful=False)
        answer = ChatStream(Names(tools), model=self.model, buffer_calls=self._buffer_calls)
        options = self._stream_options(model_settings)
        async with await client.chat.completions.create(**request, **options, stream=True) as chunks:
            async for chunk in chunks:
                for event in answer.feed(chunk):
                    yield typed_event(event)
            request_id = chunks.response.headers.get("x-request-id")
        if answer.finish_reason is None:
            raise StreamCut("the stream ended before the answer was complete")
        for event in answer.end():
            last = typed_event(event)
            if event["type"] == "response.completed":
                last.response._request_id = request_id
            yield last

    def request(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
    ) -> dict[str, Any]:
        """What is sent, as arguments of the client's ``chat.completions.create``."""
        callable_tools = chat_tools(tools, handoffs)
        messages = chat_messages(
            system_instructions,
            input,
            model=self.model,
            base_url=str(self._client.base_url),
            strict=self._strict,
            should_replay=self._should_replay,
        )
        request = given(
            model=self.model,
            tool_choice=chat_choice(settings.tool_choice) if callable_tools else None,
            parallel_tool_calls=parallel_calls(settings, callable_tools) if callable_tools else None,
            response_format=chat_format(output_schema),
            reasoning_effort=None if settings.reasoning is None else part_of(settings.reasoning, "effort"),
            logprobs=None if settings.top_logprobs is None else True,
            **{name: getattr(settings, name) for name in _SETTINGS},
        )
        bulk = given(messages=messages, tools=callable_tools or None)
        # The client insists on an argument of that name; the body goes before it.
        return {"messages": [], **arguments(request, bulk, settings)}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return advice_on(request)

    def _stream_options(self, settings: ModelSettings) -> Item:
        """OpenAI counts tokens in streams when asked; other servers may not know the question."""
        wanted = settings.include_usage
        if wanted is None and self._client.base_url.host.endswith("openai.com"):
            wanted = True
        return {} if wanted is None else {"stream_options": {"include_usage": wanted}}

    def _check(self, previous_response_id: str | None, conversation_id: str | None, prompt: Any) -> None:
        used = {"previous_response_id": previous_response_id, "conversation_id": conversation_id, "prompt": prompt}
        for name in [name for name, value in used.items() if value is not None]:
            problem = f"the Chat Completions API knows no {name}"
            if self._strict:
                raise UserError(f"{problem}: use the Responses API, or leave it out")
            log.warning("%s: it is ignored", problem)


# Settings that have the same name in the API.
_SETTINGS = (
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


def _no_choices(answer: Any) -> Exception:
    """Some servers report failures in an answer that claims success."""
    error = part_of(answer, "error")
    if error is None:
        return ModelBehaviorError("the server answered without a choice")
    code = part_of(error, "code")
    message = part_of(error, "message") or error
    return ResponseFailed(f"the server reported: {message}", error_code=None if code is None else str(code))
