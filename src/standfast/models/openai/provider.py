"""The provider of OpenAI models, and the process-wide defaults for client, key and API."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from standfast.agents.errors import UserError
from standfast.agents.model_settings import DEFAULT_MODEL as DEFAULT_MODEL
from standfast.agents.model_settings import get_default_model
from standfast.base.errors import InvalidInput
from standfast.base.network import create_openai_client
from standfast.models.interface import Model, ModelProvider
from standfast.models.openai.agent_registration import OpenAIAgentRegistrationConfig, parse_agent_registration
from standfast.models.openai.client import load_openai

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from standfast.models.openai.responses_websocket import OpenAIResponsesWebSocketOptions, OpenAIResponsesWSModel


@dataclass
class OpenAIDefaults:
    """The defaults for providers without their own settings."""

    key: str | None = None
    client: "AsyncOpenAI | None" = None
    api: Literal["chat_completions", "responses"] = "responses"
    transport: Literal["http", "websocket"] = "http"


_defaults = OpenAIDefaults()


def set_default_openai_key(key: str, use_for_tracing: bool = True) -> None:
    """Set the key for providers that have none. ``use_for_tracing`` is ignored: nothing is traced to OpenAI."""
    if not isinstance(key, str) or not key:
        raise UserError("an OpenAI key must be a non-empty string")
    _defaults.key = key


def get_default_openai_key() -> str | None:
    """Return the default key: the one that was set, else ``OPENAI_API_KEY``."""
    return _defaults.key or os.environ.get("OPENAI_API_KEY")


def set_default_openai_client(client: "AsyncOpenAI", use_for_tracing: bool = True) -> None:
    """Set the client for providers that have none. It belongs to the caller and is never closed by standfast."""
    _defaults.client = client


def set_default_openai_api(api: Literal["chat_completions", "responses"]) -> None:
    """Set the API for providers without ``use_responses``."""
    if api not in ("chat_completions", "responses"):
        raise UserError(f"the API must be 'chat_completions' or 'responses', got {api!r}")
    _defaults.api = api


def set_default_openai_responses_transport(transport: Literal["http", "websocket"]) -> None:
    """Set how providers without ``use_responses_websocket`` send requests of the Responses API."""
    if transport not in ("http", "websocket"):
        raise InvalidInput(f"the transport must be 'http' or 'websocket', got {transport!r}")
    _defaults.transport = transport


def _make_client_error(library: Any, text: str) -> UserError:
    """Return an error that programs can catch as one of the ``openai`` package, too."""
    kind: type[UserError] = type("MissingCredentials", (UserError, library.OpenAIError), {})
    return kind(text)


class OpenAIProvider(ModelProvider):
    """Models at OpenAI or at a compatible server.

    With ``use_responses_websocket`` the Responses API is used over WebSockets: at ``websocket_base_url``, else
    ``OPENAI_WEBSOCKET_BASE_URL``, else the base URL. The models of a provider keep their connections for the next
    request until ``aclose``. ``aclose`` closes the client only if the provider created it. Nothing is opened or read
    from the environment before the first ``get_model``.
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
        agent_registration: OpenAIAgentRegistrationConfig | dict[str, Any] | None = None,
        responses_websocket_options: "OpenAIResponsesWebSocketOptions | None" = None,
        buffer_streamed_tool_calls: bool = False,
    ) -> None:
        options = {
            "api_key": api_key,
            "base_url": base_url,
            "websocket_base_url": websocket_base_url,
            "organization": organization,
            "project": project,
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        if openai_client is not None and self._options:
            raise UserError(f"openai_client has its own settings: leave out {', '.join(self._options)}")
        self._agent_registration = parse_agent_registration(agent_registration)
        self._injected_client = openai_client
        self._own_client: AsyncOpenAI | None = None
        self._use_responses, self._use_websocket = use_responses, use_responses_websocket
        self._websocket_options = responses_websocket_options
        self._websocket_models: dict[tuple[str, bool], OpenAIResponsesWSModel] = {}
        self._strict = strict_feature_validation
        self._buffer_calls = buffer_streamed_tool_calls

    @property
    def agent_registration(self) -> OpenAIAgentRegistrationConfig | None:
        """The registration whose harness id the traces of runs with this provider get."""
        return self._agent_registration

    def get_model(self, model_name: str | None) -> Model:
        name = model_name or get_default_model()
        responses = self._use_responses if self._use_responses is not None else _defaults.api == "responses"
        websocket = self._use_websocket if self._use_websocket is not None else _defaults.transport == "websocket"
        if responses and websocket:
            return self._get_websocket_model(name, model_name is not None)
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

    def _get_websocket_model(self, name: str, explicit: bool) -> Model:
        """Return the same model for the same name, because it has the connections."""
        from standfast.models.openai.responses_websocket import OpenAIResponsesWSModel

        if (name, explicit) not in self._websocket_models:
            self._websocket_models[name, explicit] = OpenAIResponsesWSModel(
                name, self.get_client(), model_is_explicit=explicit, websocket_options=self._websocket_options
            )
        return self._websocket_models[name, explicit]

    def get_client(self) -> "AsyncOpenAI":
        """Return the client of the models: the caller's, the default one, or one created on first use."""
        if self._injected_client is not None:
            return self._injected_client
        if not self._options and _defaults.client is not None:
            return _defaults.client
        if self._own_client is None:
            library = load_openai("a model at OpenAI")
            options = {"api_key": _defaults.key, **self._options} if _defaults.key else dict(self._options)
            if websocket_base_url := os.environ.get("OPENAI_WEBSOCKET_BASE_URL"):
                options.setdefault("websocket_base_url", websocket_base_url)
            try:
                self._own_client = create_openai_client(library, **options)
            except library.OpenAIError as error:
                has_key = options.get("api_key") or os.environ.get("OPENAI_API_KEY")
                cause = str(error).rstrip(".") if has_key else "no API key is set"
                raise _make_client_error(
                    library,
                    f"there is no usable OpenAI client: {cause}. Set OPENAI_API_KEY, call "
                    "set_default_openai_key(), or give the agent another model (LocalModel needs no key)",
                ) from error
        assert self._own_client is not None  # noqa: S101
        return self._own_client

    async def disconnect(self) -> None:
        """Close the WebSocket connections that no request uses. A later request opens new ones."""
        for model in list(self._websocket_models.values()):
            await model.close()

    async def aclose(self) -> None:
        """Close the connections, and the client that the provider created. A later ``get_model`` creates a new one."""
        await self.disconnect()
        self._websocket_models.clear()
        client, self._own_client = self._own_client, None
        if client is not None:
            await client.close()
