"""Models behind OpenAI's Responses API, or a server that speaks it."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from holdfast.agents.handoffs import Handoff
from holdfast.agents.model_settings import ModelSettings
from holdfast.agents.output import AgentOutputSchemaBase
from holdfast.agents.tools import Tool
from holdfast.base.items import Item
from holdfast.models.contract import (
    ENDINGS,
    Model,
    ModelResponse,
    ModelTracing,
    StreamCut,
    TResponseStreamEvent,
    response_in,
)
from holdfast.models.openai_errors import advice_on, quiet
from holdfast.models.openai_items import (
    arguments,
    given,
    includes,
    input_items,
    parallel_calls,
    response_tools,
    text_format,
    tool_choice,
)
from holdfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

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
        self._explicit = model_is_explicit

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
        request = self.request(
            system_instructions, input, model_settings, tools, output_schema, handoffs,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        client = quiet(self._client, model_settings, stateful=bool(previous_response_id or conversation_id))
        response = await client.responses.create(**request)
        return response_in(response, keep_raw_usage=bool(model_settings.preserve_raw_usage))

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
        request = self.request(
            system_instructions, input, model_settings, tools, output_schema, handoffs,
            previous_response_id, conversation_id, prompt,
        )  # fmt: skip
        client = quiet(self._client, model_settings, stateful=bool(previous_response_id or conversation_id))
        ended = False
        async with await client.responses.create(**request, stream=True) as events:
            async for event in events:
                if event.type in ENDINGS:
                    ended = True
                    event.response._request_id = events.response.headers.get("x-request-id")
                ended = ended or event.type in ("response.failed", "error")
                yield event
        if not ended:
            raise StreamCut("the stream ended before the answer was complete")

    def request(
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
        callable_tools = response_tools(tools, handoffs)
        request = given(
            model=self.model if self._explicit or prompt is None else None,
            instructions=system_instructions,
            tool_choice=tool_choice(settings.tool_choice, tools),
            parallel_tool_calls=parallel_calls(settings, callable_tools),
            text=text_format(output_schema, settings.verbosity),
            include=includes(settings, tools),
            previous_response_id=previous_response_id,
            conversation=conversation_id,
            prompt=None if prompt is None else given(**prompt),
            max_output_tokens=settings.max_tokens,
            **{name: getattr(settings, name) for name in _SETTINGS},
        )
        bulk = given(input=input_items(input), tools=callable_tools or None)
        return arguments(request, bulk, settings)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return advice_on(request)


# Settings that have the same name in the API.
_SETTINGS = (
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
