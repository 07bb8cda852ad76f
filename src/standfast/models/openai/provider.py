"""OpenAI's models by name, and which client, key and API they use unless somebody says otherwise."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from standfast.agents.errors import UserError
from standfast.base.errors import Unsupported
from standfast.models.interface import Model, ModelProvider
from standfast.models.openai.errors import load_openai

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEFAULT_MODEL = "gpt-4.1"


@dataclass
class OpenAIDefaults:
    """What providers use that were told nothing."""

    key: str | None = None
    client: "AsyncOpenAI | None" = None
    api: Literal["chat_completions", "responses"] = "responses"


_defaults = OpenAIDefaults()


def set_default_openai_key(key: str, use_for_tracing: bool = True) -> None:
    """The key for every provider that is not given one. Nothing is traced to OpenAI, whatever ``use_for_tracing``."""
    if not isinstance(key, str) or not key:
        raise UserError("an OpenAI key is a string with something in it")
    _defaults.key = key


def get_default_openai_key() -> str | None:
    """The key for whoever was not given one: as it was set, else as the environment has it."""
    return _defaults.key or os.environ.get("OPENAI_API_KEY")


def set_default_openai_client(client: "AsyncOpenAI", use_for_tracing: bool = True) -> None:
    """The client for every provider that is not given one. It stays the caller's: nobody else closes it."""
    _defaults.client = client


def set_default_openai_api(api: Literal["chat_completions", "responses"]) -> None:
    """The API for every provider that is not told which."""
    if api not in ("chat_completions", "responses"):
        raise UserError(f"there are the APIs 'chat_completions' and 'responses', not {api!r}")
    _defaults.api = api


class OpenAIProvider(ModelProvider):
    """Models at OpenAI or at a server like it. A client that the provider made is closed by ``aclose``; others never.

    Nothing is opened or read from the environment before a model is asked for.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        websocket_base_url: str | None = None,
        openai_client: "AsyncOpenAI | None" = None,
        organization: str | None = None,
        project: str | None = None,
        use_responses: bool | None = None,
        use_responses_websocket: bool | None = None,
        strict_feature_validation: bool = False,
        agent_registration: Any = None,
        responses_websocket_options: Any = None,
        buffer_streamed_tool_calls: bool = False,
    ) -> None:
        told = {"api_key": api_key, "base_url": base_url, "organization": organization, "project": project}
        self._options = {name: value for name, value in told.items() if value is not None}
        if openai_client is not None and self._options:
            raise UserError(f"a client of yours has its own settings: leave out {', '.join(self._options)}")
        if use_responses_websocket:
            raise Unsupported("the Responses API over WebSockets is not supported")
        self._agent_registration = agent_registration
        self._injected_client = openai_client
        self._own_client: AsyncOpenAI | None = None
        self._use_responses = use_responses
        self._strict = strict_feature_validation
        self._buffer_calls = buffer_streamed_tool_calls

    @property
    def agent_registration(self) -> Any:
        """What the provider was given under this name, for programs that read it. Nothing is registered anywhere."""
        return self._agent_registration

    def get_model(self, model_name: str | None) -> Model:
        name = model_name or os.environ.get("OPENAI_DEFAULT_MODEL") or DEFAULT_MODEL
        responses = self._use_responses if self._use_responses is not None else _defaults.api == "responses"
        if responses:
            from standfast.models.openai.responses import OpenAIResponsesModel

            return OpenAIResponsesModel(name, self.get_client(), model_is_explicit=model_name is not None)
        from standfast.models.openai.chat import OpenAIChatCompletionsModel

        return OpenAIChatCompletionsModel(
            name,
            self.get_client(),
            strict_feature_validation=self._strict,
            buffer_streamed_tool_calls=self._buffer_calls,
        )

    def get_client(self) -> "AsyncOpenAI":
        """The client that the models use; made at first use, unless there is one to borrow."""
        if self._injected_client is not None:
            return self._injected_client
        if not self._options and _defaults.client is not None:
            return _defaults.client
        if self._own_client is None:
            library = load_openai("a model at OpenAI")
            options = {"api_key": _defaults.key, **self._options} if _defaults.key else self._options
            try:
                self._own_client = library.AsyncOpenAI(**options)
            except library.OpenAIError as error:
                raise UserError(
                    f"there is no usable OpenAI client: {str(error).rstrip('.')}. Set OPENAI_API_KEY, call "
                    "set_default_openai_key(), or give the agent another model (LocalModel needs no key)"
                ) from error
        assert self._own_client is not None  # noqa: S101
        return self._own_client

    async def aclose(self) -> None:
        """Close the client that was made here, if any. A later request makes a new one."""
        made, self._own_client = self._own_client, None
        if made is not None:
            await made.close()
