"""A language model inside the program's own machine: no key, and no network once it is installed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import Model, ModelProvider, ModelResponse, ModelTracing, TResponseStreamEvent
from standfast.models.local.server import LocalServer, ServerAddress
from standfast.models.local.tool_calls import build_forced_call
from standfast.models.openai.chat import OpenAIChatCompletionsModel
from standfast.models.openai.errors import load_openai, make_retry_advice
from standfast.models.openai.typed import to_typed_event
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from standfast.models.stream_events import ResponseEventBuilder, make_response_events, usage_to_dict

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class LocalModel(Model):
    """A GGUF model, loaded at the first request and kept until ``close``.

    Without a path it is SmolLM2-135M, which is small enough for any machine and not clever. ``max_tokens`` bounds
    answers that do not bound themselves; settings go before it. The model may be used from several event loops, one
    after the other. A ``tool_choice`` that demands a call is always fulfilled: the server keeps the model to it.
    """

    provider_name = "llama.cpp"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        context_size: int = 2048,
        threads: int | None = None,
        parallel: int = 1,
        max_tokens: int | None = 512,
    ) -> None:
        self.server = LocalServer(path, context_size=context_size, threads=threads, parallel=parallel)
        self._max_tokens = max_tokens
        self._client: AsyncOpenAI | None = None
        self._client_key: tuple[asyncio.AbstractEventLoop, ServerAddress] | None = None

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> ModelResponse:
        chat, settings = await self._get_chat_model(), self._apply_defaults(model_settings)
        call = build_forced_call(settings.tool_choice, tools, handoffs)
        if call is None:
            return await chat.get_response(
                system_instructions, input, settings, tools, output_schema, handoffs, tracing,
                previous_response_id, conversation_id, prompt,
            )  # fmt: skip
        answer = await chat.get_response(
            call.build_instructions(system_instructions),
            input,
            replace(settings, tool_choice=None),
            [],
            call,
            [],
            tracing,
        )
        return replace(answer, output=[call.parse_call(answer, tools)])

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        prompt: Any | None = None,
    ) -> AsyncIterator[TResponseStreamEvent]:
        ids: dict[str, Any] = {
            "previous_response_id": previous_response_id,
            "conversation_id": conversation_id,
            "prompt": prompt,
        }
        given = (system_instructions, input, model_settings, tools, output_schema, handoffs, tracing)
        if build_forced_call(model_settings.tool_choice, tools, handoffs) is not None:
            # A call is of use when it is complete, and not before.
            answer = await self.get_response(*given, **ids)
            log = ResponseEventBuilder(answer.response_id, model="local")
            for event in make_response_events(log, answer.items, usage=usage_to_dict(answer.usage)):
                yield to_typed_event(event)
            return
        chat = await self._get_chat_model()
        settings = self._apply_defaults(model_settings)
        events = chat.stream_response(
            system_instructions, input, settings, tools, output_schema, handoffs, tracing, **ids
        )
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)

    async def close(self) -> None:
        """End the model's process. A later request loads it again."""
        client, used_by = self._client, self._client_key
        self._client = self._client_key = None
        try:
            if client is not None and used_by is not None and used_by[0] is asyncio.get_running_loop():
                await client.close()
        finally:
            await self.server.close()

    async def _get_chat_model(self) -> OpenAIChatCompletionsModel:
        user = (asyncio.get_running_loop(), await self.server.start())
        if self._client is None or self._client_key != user:
            library = load_openai("a local model")
            address = user[1]
            # Connections belong to the loop that opened them: none is kept, so that none is left when a loop ends.
            self._client = library.AsyncOpenAI(
                base_url=address.base_url,
                api_key=address.api_key,
                max_retries=0,
                default_headers={"Connection": "close"},
            )
            self._client_key = user
        return OpenAIChatCompletionsModel("local", self._client)

    def _apply_defaults(self, settings: ModelSettings) -> ModelSettings:
        most = self._max_tokens if settings.max_tokens is None else settings.max_tokens
        counted = True if settings.include_usage is None else settings.include_usage
        return replace(settings, max_tokens=most, include_usage=counted)


class LocalModelProvider(ModelProvider):
    """Local models by the paths of their files. ``aclose`` ends all of them."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._models: dict[str | None, LocalModel] = {}

    def get_model(self, model_name: str | None) -> LocalModel:
        if model_name not in self._models:
            self._models[model_name] = LocalModel(model_name, **self._options)
        return self._models[model_name]

    async def aclose(self) -> None:
        models, self._models = self._models, {}
        await asyncio.gather(*(model.close() for model in models.values()))
