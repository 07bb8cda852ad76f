"""A language model on the local machine, which needs no key and no network once it is installed."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from standfast.agents.errors import ModelBehaviorError, UserError
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import ModelProvider, ModelResponse, TResponseStreamEvent
from standfast.models.local.server import LocalServer, ServerAddress
from standfast.models.openai.chat import OpenAIChatCompletionsModel
from standfast.models.openai.chat_conversion import to_chat_tools
from standfast.models.openai.chat_output import ToolNameResolver, make_local_id
from standfast.models.openai.client import load_openai, make_retry_advice, to_typed_event, to_typed_item
from standfast.models.request import ModelRequest, RequestModel, closing_stream
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from standfast.models.stream_events import ResponseEventBuilder, make_response_events, usage_to_dict

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class LocalModel(RequestModel):
    """A GGUF model, loaded at the first request and kept until ``close``.

    Without a path it is SmolLM2-135M, which runs on any machine but has very limited abilities. ``max_tokens`` limits
    responses unless the model settings do. The model may be used from several event loops, one after the other. A
    ``tool_choice`` that requires a call is always satisfied, because the server enforces a grammar.
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

    async def respond(self, request: ModelRequest) -> ModelResponse:
        chat, request = await self._get_chat_model(), self._apply_defaults(request)
        call = build_forced_call(request)
        if call is None:
            return await chat.respond(request)
        response = await chat.respond(
            ModelRequest(
                request.input,
                call.build_instructions(request.system_instructions),
                replace(request.model_settings, tool_choice=None),
                output_schema=call,
                tracing=request.tracing,
            )
        )
        return replace(response, output=[call.parse_call(response, request.tools)])

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        if build_forced_call(request) is not None:
            # A forced call is generated as text and known only when it is complete.
            response = await self.respond(request)
            builder = ResponseEventBuilder(response.response_id, model="local")
            for event in make_response_events(builder, response.items, usage=usage_to_dict(response.usage)):
                yield to_typed_event(event)
            return
        chat = await self._get_chat_model()
        async with closing_stream(chat.stream(self._apply_defaults(request))) as events:
            async for event in events:
                yield event

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)

    async def close(self) -> None:
        """Stop the server process. A later request starts it again."""
        client, key = self._client, self._client_key
        self._client = self._client_key = None
        try:
            if client is not None and key is not None and key[0] is asyncio.get_running_loop():
                await client.close()
        finally:
            await self.server.close()

    async def _get_chat_model(self) -> OpenAIChatCompletionsModel:
        address = await self.server.start()
        key = (asyncio.get_running_loop(), address)
        if self._client is None or self._client_key != key:
            library = load_openai("a local model")
            # Connections belong to the event loop that opened them; none is kept open beyond a request.
            self._client = library.AsyncOpenAI(
                base_url=address.base_url,
                api_key=address.api_key,
                max_retries=0,
                default_headers={"Connection": "close"},
            )
            self._client_key = key
        return OpenAIChatCompletionsModel("local", self._client)

    def _apply_defaults(self, request: ModelRequest) -> ModelRequest:
        settings = request.model_settings
        max_tokens = self._max_tokens if settings.max_tokens is None else settings.max_tokens
        include_usage = True if settings.include_usage is None else settings.include_usage
        return replace(request, model_settings=replace(settings, max_tokens=max_tokens, include_usage=include_usage))


class LocalModelProvider(ModelProvider):
    """Local models by file path. ``aclose`` stops all of them."""

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


class ForcedCallSchema(AgentOutputSchemaBase):
    """The output schema for a call of one of the given functions.

    The server enforces it with a grammar, so that even a small model makes the call that ``tool_choice`` requires.
    """

    def __init__(self, functions: list[Item]) -> None:
        self.functions = functions

    def is_plain_text(self) -> bool:
        return False

    def is_strict_json_schema(self) -> bool:
        return True

    def name(self) -> str:
        return "call"

    def json_schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
                for function in self.functions
            ]
        }

    def validate_json(self, json_str: str) -> Any:
        try:
            call = json.loads(json_str)
            return call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        except (ValueError, KeyError, TypeError):
            raise ModelBehaviorError(
                f"the call of the local model is truncated; increase max_tokens: {json_str!r}"
            ) from None

    def build_instructions(self, base_instructions: str | None) -> str:
        """Return the instructions with a list of the functions, which replaces the tools of the request."""
        fields = ("name", "description", "parameters")
        listed = "\n".join(
            json.dumps({name: function[name] for name in fields}, ensure_ascii=False) for function in self.functions
        )
        return "\n\n".join(
            filter(None, [base_instructions, f"Answer with a call of one of these functions:\n{listed}"])
        )

    def parse_call(self, response: ModelResponse, tools: Iterable[Tool]) -> Any:
        """Return the call in the text of the response."""
        text = "".join(part.get("text", "") for item in response.items for part in item.get("content") or [])
        name, arguments = self.validate_json(text)
        call = ToolNameResolver(tools).make_call_item(
            item_id=make_local_id("fc"), call_id=make_local_id("call"), name=name, arguments=arguments
        )
        return to_typed_item(call)


def build_forced_call(request: ModelRequest) -> ForcedCallSchema | None:
    """Return the schema of the call that ``tool_choice`` requires; ``None`` if it requires none."""
    choice = request.model_settings.tool_choice
    if choice is None or choice in ("auto", "none"):
        return None
    functions = [entry["function"] for entry in to_chat_tools(request.tools, request.handoffs)]
    allowed = [function for function in functions if choice in ("required", function["name"])]
    if not allowed:
        names = ", ".join(function["name"] for function in functions) or "none"
        raise UserError(f"tool_choice requires {choice!r}, which is not among the available tools: {names}")
    return ForcedCallSchema(allowed)
