"""A provider that selects other providers by a prefix of the model name, such as ``openai/`` or ``local/``."""

import importlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from standfast.agents.errors import UserError
from standfast.models.interface import Model, ModelProvider
from standfast.models.openai.agent_registration import OpenAIAgentRegistrationConfig
from standfast.models.openai.provider import OpenAIProvider

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from standfast.models.openai.responses_websocket import OpenAIResponsesWebSocketOptions

MultiProviderOpenAIPrefixMode: TypeAlias = Literal["alias", "model_id"]
MultiProviderUnknownPrefixMode: TypeAlias = Literal["error", "model_id"]


# Providers that are made when a model with their prefix is requested first.
_OTHER_PROVIDERS = {
    "local": ("standfast.models.local.model", "LocalModelProvider"),
    "litellm": ("standfast.models.litellm", "LitellmProvider"),
    "any-llm": ("standfast.models.any_llm", "AnyLLMProvider"),
}


class MultiProviderMap:
    """Providers by prefix."""

    def __init__(self) -> None:
        self._providers: dict[str, ModelProvider] = {}

    def has_prefix(self, prefix: str) -> bool:
        """Return whether there is a provider for the prefix."""
        return prefix in self._providers

    def get_mapping(self) -> dict[str, ModelProvider]:
        """Return the providers by their prefixes."""
        return dict(self._providers)

    def set_mapping(self, mapping: dict[str, ModelProvider]) -> None:
        """Replace all providers."""
        self._providers = dict(mapping)

    def get_provider(self, prefix: str) -> ModelProvider | None:
        """Return the provider for a prefix, or None."""
        return self._providers.get(prefix)

    def add_provider(self, prefix: str, provider: ModelProvider) -> None:
        """Let a provider serve the models with this prefix."""
        self._providers[prefix] = provider

    def remove_provider(self, prefix: str) -> None:
        """Remove the provider for a prefix."""
        del self._providers[prefix]


class MultiProvider(ModelProvider):
    """Selects the provider by the prefix of the model name. Without a prefix it is OpenAI.

    ``local/`` is LocalModel, and ``litellm/`` and ``any-llm/`` are followed by the names that these libraries use.

    ``openai_prefix_mode="model_id"`` keeps ``openai/`` as part of the model name, for servers that expect it.
    ``unknown_prefix_mode="model_id"`` treats an unknown prefix as part of the model name.
    """

    def __init__(
        self,
        *,
        provider_map: MultiProviderMap | None = None,
        openai_api_key: str | None = None,
        openai_base_url: str | None = None,
        openai_client: "AsyncOpenAI | None" = None,
        openai_organization: str | None = None,
        openai_project: str | None = None,
        openai_use_responses: bool | None = None,
        openai_use_responses_websocket: bool | None = None,
        openai_strict_feature_validation: bool = False,
        openai_websocket_base_url: str | None = None,
        openai_prefix_mode: MultiProviderOpenAIPrefixMode = "alias",
        unknown_prefix_mode: MultiProviderUnknownPrefixMode = "error",
        openai_agent_registration: OpenAIAgentRegistrationConfig | dict[str, Any] | None = None,
        openai_responses_websocket_options: "OpenAIResponsesWebSocketOptions | None" = None,
        openai_buffer_streamed_tool_calls: bool = False,
    ) -> None:
        if openai_prefix_mode not in ("alias", "model_id"):
            raise UserError(f"openai_prefix_mode must be 'alias' or 'model_id', got {openai_prefix_mode!r}")
        if unknown_prefix_mode not in ("error", "model_id"):
            raise UserError(f"unknown_prefix_mode must be 'error' or 'model_id', got {unknown_prefix_mode!r}")
        self.provider_map = provider_map
        self.openai_provider = OpenAIProvider(
            api_key=openai_api_key,
            base_url=openai_base_url,
            websocket_base_url=openai_websocket_base_url,
            openai_client=openai_client,
            organization=openai_organization,
            project=openai_project,
            use_responses=openai_use_responses,
            use_responses_websocket=openai_use_responses_websocket,
            strict_feature_validation=openai_strict_feature_validation,
            agent_registration=openai_agent_registration,
            responses_websocket_options=openai_responses_websocket_options,
            buffer_streamed_tool_calls=openai_buffer_streamed_tool_calls,
        )
        self._openai_prefix_mode = openai_prefix_mode
        self._unknown_prefix_mode = unknown_prefix_mode
        self._others: dict[str, ModelProvider] = {}

    def get_model(self, model_name: str | None) -> Model:
        prefix, slash, rest = (model_name or "").partition("/")
        if not slash:
            return self.openai_provider.get_model(model_name)
        mapped = None if self.provider_map is None else self.provider_map.get_provider(prefix)
        if mapped is not None:
            return mapped.get_model(rest or None)
        if prefix == "openai":
            keep_prefix = self._openai_prefix_mode == "model_id"
            return self.openai_provider.get_model(model_name if keep_prefix else rest or None)
        if prefix in _OTHER_PROVIDERS:
            return self._get_other_provider(prefix).get_model(rest or None)
        if self._unknown_prefix_mode == "model_id":
            return self.openai_provider.get_model(model_name)
        raise UserError(f"no provider for the model {model_name!r}: the prefix {prefix!r} is not in the provider map")

    async def aclose(self) -> None:
        """Close the providers that were made here. Those in the provider map belong to the caller."""
        others, self._others = self._others, {}
        async with AsyncExitStack() as closing:
            for provider in [*others.values(), self.openai_provider]:
                closing.push_async_callback(provider.aclose)

    def _get_other_provider(self, prefix: str) -> ModelProvider:
        if prefix not in self._others:
            module, name = _OTHER_PROVIDERS[prefix]
            self._others[prefix] = getattr(importlib.import_module(module), name)()
        return self._others[prefix]
