"""The base of models behind libraries that speak the format of the Chat Completions API with many providers."""

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from standfast.agents.errors import UserError
from standfast.base.items import Item
from standfast.models.interface import IncompleteStream, ModelResponse, TResponseStreamEvent
from standfast.models.openai.chat import build_chat_arguments, check_chat_features, parse_completion
from standfast.models.openai.chat_conversion import ShouldReplayReasoningContent, to_chat_messages
from standfast.models.openai.chat_output import ToolNameResolver
from standfast.models.openai.chat_stream import ChatStreamConverter
from standfast.models.openai.client import make_retry_advice, to_typed_event
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.retry import ModelRetryAdvice, ModelRetryAdviceRequest


class ChatAdapterModel(RequestModel):
    """A model whose requests and responses have the format of the Chat Completions API; ``request_model`` is its name.

    Signed reasoning and signatures of calls are kept in ``provider_data`` of their items and sent back with them.
    """

    model: str
    request_model: str
    base_url: str | None = None
    should_replay_reasoning_content: ShouldReplayReasoningContent | None = None

    @abstractmethod
    async def complete(self, request: ModelRequest, arguments: Item) -> Any:
        """Return the completion, or with ``stream=True`` an iterator of its chunks."""

    async def respond(self, request: ModelRequest) -> ModelResponse:
        return parse_completion(await self.complete(request, self.build_request(request)), request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        converter = ChatStreamConverter(ToolNameResolver(request.tools), model=self.model)
        arguments = {**self.build_request(request), "stream": True}
        if request.model_settings.include_usage is not None:
            arguments["stream_options"] = {"include_usage": request.model_settings.include_usage}
        async for chunk in await self.complete(request, arguments):
            for event in converter.feed(chunk):
                yield to_typed_event(event)
        if converter.finish_reason is None:
            raise IncompleteStream("the stream ended before the response was complete")
        for event in converter.finish():
            yield to_typed_event(event)

    def build_request(self, request: ModelRequest) -> Item:
        """Return the arguments of a completion. ``extra_args`` and a mapping as ``extra_body`` are part of them."""
        check_chat_features(request, strict=False)
        settings = request.model_settings
        arguments = build_chat_arguments(request, self.request_model)
        arguments["messages"] = to_chat_messages(
            request.system_instructions,
            request.input,
            model=self.model,
            base_url=self.base_url,
            should_replay=self.should_replay_reasoning_content,
            replay_provider_data=True,
        )
        if repeated := sorted(arguments.keys() & (settings.extra_args or {}).keys()):
            raise UserError(f"extra_args repeats arguments of the request: {', '.join(repeated)}")
        for name in ("extra_headers", "extra_query"):
            if getattr(settings, name) is not None:
                arguments[name] = dict(getattr(settings, name))
        return {**arguments, **(settings.extra_args or {})}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return make_retry_advice(request)
