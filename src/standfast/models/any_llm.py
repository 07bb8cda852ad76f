"""Models of many providers through the any-llm library."""

from collections.abc import AsyncIterator
from typing import Any, Literal

from standfast.agents.errors import UserError
from standfast.agents.model_settings import get_default_model
from standfast.base.errors import MissingExtra
from standfast.base.items import Item
from standfast.models.chat_adapter import ChatAdapterModel
from standfast.models.interface import Model, ModelProvider, ModelResponse, TResponseStreamEvent, parse_response
from standfast.models.openai.responses import build_response_arguments
from standfast.models.request import ModelRequest

DEFAULT_MODEL = f"openai/{get_default_model()}"


class AnyLLMModel(ChatAdapterModel):
    """A model through any-llm, named ``provider/model``; a name without a provider is one of OpenAI.

    ``api`` chooses between the two kinds of requests; by default the Responses API is used if the provider has it.
    Without ``api_key`` any-llm reads the key of the provider from the environment. Needs the extra ``any-llm``.
    """

    provider_name = "any-llm"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["responses", "chat_completions"] | None = None,
    ) -> None:
        if api not in (None, "responses", "chat_completions"):
            raise UserError(f"api must be 'responses' or 'chat_completions', got {api!r}")
        self.model = model
        self._provider, self.request_model = model.split("/", 1) if "/" in model else ("openai", model)
        self.base_url, self.api_key, self.api = base_url, api_key, api
        self._library: Any = None

    async def complete(self, request: ModelRequest, arguments: Item) -> Any:
        settings = request.model_settings
        arguments = {"stream": False, "reasoning_effort": None, **arguments}
        if settings.extra_body is not None:
            arguments["extra_body"] = settings.extra_body
        return await self._load().acompletion(**arguments)

    async def respond(self, request: ModelRequest) -> ModelResponse:
        if not self._uses_responses():
            return await super().respond(request)
        response = await self._load().aresponses(**self._build_responses_request(request), stream=False)
        return parse_response(response, keep_raw_usage=bool(request.model_settings.preserve_raw_usage))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        if self._uses_responses():
            events = await self._load().aresponses(**self._build_responses_request(request), stream=True)
        else:
            events = super().stream(request)
        async for event in events:
            yield event

    async def close(self) -> None:
        """Close the client of the provider, if it can be closed. A later request makes a new one."""
        library, self._library = self._library, None
        close = getattr(getattr(library, "client", None), "close", None)
        if close is not None:
            await close()

    def _uses_responses(self) -> bool:
        if self.api is not None:
            return self.api == "responses"
        return bool(getattr(self._load(), "SUPPORTS_RESPONSES", False))

    def _build_responses_request(self, request: ModelRequest) -> Item:
        arguments = build_response_arguments(request, self.request_model)
        body = arguments.pop("extra_body")
        return {"input_data": body.pop("input"), **body, **arguments}

    def _load(self) -> Any:
        """Return the provider of any-llm."""
        if self._library is None:
            try:
                from any_llm import AnyLLM
            except ImportError as error:
                raise MissingExtra("any-llm", f"the model {self.model!r}") from error
            self._library = AnyLLM.create(self._provider, api_key=self.api_key, api_base=self.base_url)
        return self._library


class AnyLLMProvider(ModelProvider):
    """Makes an :class:`AnyLLMModel` of each name, with the same key, address and API."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Literal["responses", "chat_completions"] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"api_key": api_key, "base_url": base_url, "api": api}

    def get_model(self, model_name: str | None) -> Model:
        return AnyLLMModel(model_name or DEFAULT_MODEL, **self._options)
