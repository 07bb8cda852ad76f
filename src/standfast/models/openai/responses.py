"""Models that use OpenAI's Responses API, at OpenAI or at a compatible server."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from standfast.models.interface import (
    FAILURE_EVENTS,
    FINAL_EVENTS,
    IncompleteStream,
    ModelResponse,
    TResponseStreamEvent,
    parse_response,
)
from standfast.models.openai.client import configure_client_retries, make_retry_advice
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
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIResponsesModel(RequestModel):
    """A model that uses the Responses API. The client belongs to the caller: the model does not close it.

    ``model_is_explicit`` is false for a default model; a prompt stored at the provider may then choose the model.
    """

    provider_name = "openai"

    def __init__(self, model: str, openai_client: "AsyncOpenAI", *, model_is_explicit: bool = True) -> None:
        self.model = model
        self._client = openai_client
        self._model_is_explicit = model_is_explicit

    async def respond(self, request: ModelRequest) -> ModelResponse:
        response = await self._configure_client(request).responses.create(**self.build_request(request))
        return parse_response(response, keep_raw_usage=bool(request.model_settings.preserve_raw_usage))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        client, arguments = self._configure_client(request), self.build_request(request)
        ended = False
        async with await client.responses.create(**arguments, stream=True) as events:
            async for event in events:
                if event.type in FINAL_EVENTS:
                    ended = True
                    event.response._request_id = events.response.headers.get("x-request-id")
                ended = ended or event.type in FAILURE_EVENTS
                yield event
        if not ended:
            raise IncompleteStream("the stream ended before the response was complete")

    def build_request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments for the client's ``responses.create``."""
        settings, prompt = request.model_settings, request.prompt
        callable_tools = to_response_tools(request.tools, request.handoffs)
        arguments = omit_none(
            model=self.model if self._model_is_explicit or prompt is None else None,
            instructions=request.system_instructions,
            tool_choice=to_response_tool_choice(settings.tool_choice, request.tools),
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
        return build_client_arguments(arguments, raw_body, settings)

    def _configure_client(self, request: ModelRequest) -> "AsyncOpenAI":
        return configure_client_retries(self._client, request.model_settings, stateful=request.is_stateful)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)


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
