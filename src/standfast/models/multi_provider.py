"""A provider that selects other providers by a prefix of the model name, such as ``openai/`` or ``local/``."""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from standfast.agents.errors import UserError
from standfast.models.interface import Model, ModelProvider
from standfast.models.openai.provider import OpenAIProvider

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MultiProviderOpenAIPrefixMode: TypeAlias = Literal["alias", "model_id"]
MultiProviderUnknownPrefixMode: TypeAlias = Literal["error", "model_id"]


class MultiProviderMap:
    """Providers by prefix."""

    def __init__(self) -> None:
        self._providers: dict[str, ModelProvider] = {}

    def has_prefix(self, prefix: str) -> bool:
        return prefix in self._providers

    def get_mapping(self) -> dict[str, ModelProvider]:
        return dict(self._providers)

    def set_mapping(self, mapping: dict[str, ModelProvider]) -> None:
        self._providers = dict(mapping)

    def get_provider(self, prefix: str) -> ModelProvider | None:
        return self._providers.get(prefix)

    def add_provider(self, prefix: str, provider: ModelProvider) -> None:
        self._providers[prefix] = provider

    def remove_provider(self, prefix: str) -> None:
        del self._providers[prefix]


class MultiProvider(ModelProvider):
    """Selects the provider by the prefix of the model name. Without a prefix it is OpenAI; ``local/`` is LocalModel.

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
        openai_agent_registration: Any = None,
        openai_responses_websocket_options: Any = None,
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
        self._local: ModelProvider | None = None

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
        if prefix == "local":
            return self._get_local_provider().get_model(rest or None)
        if self._unknown_prefix_mode == "model_id":
            return self.openai_provider.get_model(model_name)
        raise UserError(f"no provider for the model {model_name!r}: the prefix {prefix!r} is not in the provider map")

    async def aclose(self) -> None:
        """Close the OpenAI and the local provider. Those in the provider map belong to the caller."""
        local, self._local = self._local, None
        try:
            await self.openai_provider.aclose()
        finally:
            if local is not None:
                await local.aclose()

    def _get_local_provider(self) -> ModelProvider:
        if self._local is None:
            from standfast.models.local.model import LocalModelProvider

            self._local = LocalModelProvider()
        return self._local
