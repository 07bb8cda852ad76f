"""Models of many providers through the litellm library."""

from typing import Any

from standfast.agents.model_settings import get_default_model
from standfast.base.errors import MissingExtra
from standfast.base.items import Item
from standfast.models.chat_adapter import ChatAdapterModel
from standfast.models.interface import Model, ModelProvider
from standfast.models.openai.chat_conversion import ShouldReplayReasoningContent
from standfast.models.request import ModelRequest

DEFAULT_MODEL = "gpt-4.1"


class LitellmModel(ChatAdapterModel):
    """A model through litellm, named as there, for example ``anthropic/claude-sonnet-4-5``.

    Needs the extra ``litellm``. Without ``api_key`` litellm reads the key of the provider from the environment.
    Usage in streams is reported with ``ModelSettings(include_usage=True)``.
    """

    provider_name = "litellm"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        should_replay_reasoning_content: ShouldReplayReasoningContent | None = None,
    ) -> None:
        self.model = self.request_model = model
        self.base_url, self.api_key = base_url, api_key
        self.should_replay_reasoning_content = should_replay_reasoning_content

    async def complete(self, request: ModelRequest, arguments: Item) -> Any:
        try:
            import litellm
        except ImportError as error:
            raise MissingExtra("litellm", f"the model {self.model!r}") from error
        settings = request.model_settings
        if settings.extra_body is not None:
            arguments["extra_body"] = settings.extra_body
        if settings.retry is not None:
            arguments |= {"num_retries": 0, "max_retries": 0}  # standfast decides on retries
        return await litellm.acompletion(**arguments, api_key=self.api_key, base_url=self.base_url)


class LitellmProvider(ModelProvider):
    """Makes a :class:`LitellmModel` of each name. litellm reads keys and addresses from the environment."""

    def get_model(self, model_name: str | None) -> Model:
        return LitellmModel(model_name or get_default_model())
