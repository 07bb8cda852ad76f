"""Models behind OpenAI's Responses API, or a server that speaks it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import (
    FINAL_EVENTS,
    IncompleteStream,
    Model,
    ModelResponse,
    ModelTracing,
    TResponseStreamEvent,
    parse_response,
)
from standfast.models.openai.errors import configure_client_retries, make_retry_advice
from standfast.models.openai.responses_request import (
    build_client_arguments,
    build_include,
    build_text_config,
    omit_none,
    prepare_input_items,
    resolve_parallel_calls,
    to_response_tool_choice,
    to_response_tools,
)
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIResponsesModel(Model):
    """A model behind the Responses API. The client stays its owner's: closing the model does not close it.

    ``model_is_explicit`` is false when nobody chose the model: then a prompt that is kept at the provider may.
    """

    provider_name = "openai"

    def __init__(self, model: str, openai_client: "AsyncOpenAI", *, model_is_explicit: bool = True) -> None:
        self.model = model
        self._client = openai_client
        self._model_is_explicit = model_is_explicit

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
        request = self.build_request(
            system_instructions, input, model_settings, tools, output_schema, handoffs,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        client = configure_client_retries(
            self._client, model_settings, stateful=bool(previous_response_id or conversation_id)
        )
        response = await client.responses.create(**request)
        return parse_response(response, keep_raw_usage=bool(model_settings.preserve_raw_usage))

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
        request = self.build_request(
            system_instructions, input, model_settings, tools, output_schema, handoffs,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        client = configure_client_retries(
            self._client, model_settings, stateful=bool(previous_response_id or conversation_id)
        )
        ended = False
        async with await client.responses.create(**request, stream=True) as events:
            async for event in events:
                if event.type in FINAL_EVENTS:
                    ended = True
                    event.response._request_id = events.response.headers.get("x-request-id")
                ended = ended or event.type in ("response.failed", "error")
                yield event
        if not ended:
            raise IncompleteStream("the stream ended before the answer was complete")

    def build_request(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> dict[str, Any]:
        """What is sent, as arguments of the client's ``responses.create``."""
        callable_tools = to_response_tools(tools, handoffs)
        request = omit_none(
            model=self.model if self._model_is_explicit or prompt is None else None,
            instructions=system_instructions,
            tool_choice=to_response_tool_choice(settings.tool_choice, tools),
            parallel_tool_calls=resolve_parallel_calls(settings, callable_tools),
            text=build_text_config(output_schema, settings.verbosity),
            include=build_include(settings, tools),
            previous_response_id=previous_response_id,
            conversation=conversation_id,
            prompt=None if prompt is None else omit_none(**prompt),
            max_output_tokens=settings.max_tokens,
            **{name: getattr(settings, name) for name in _PASSTHROUGH_SETTINGS},
        )
        bulk = omit_none(input=prepare_input_items(input), tools=callable_tools or None)
        return build_client_arguments(request, bulk, settings)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)


# Settings that have the same name in the API.
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
