"""Many providers behind one, told apart by a prefix: ``openai/gpt-5``, ``local/…``, ``mine/anything``."""

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
    """Finds the provider by the name's prefix; names without one are OpenAI's, ``local/`` is the embedded model.

    ``openai_prefix_mode="model_id"`` leaves ``openai/`` in the name, for servers that expect it there; and
    ``unknown_prefix_mode="model_id"`` takes a prefix that nobody knows for a part of the name.
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
            raise UserError(f"openai_prefix_mode is 'alias' or 'model_id', not {openai_prefix_mode!r}")
        if unknown_prefix_mode not in ("error", "model_id"):
            raise UserError(f"unknown_prefix_mode is 'error' or 'model_id', not {unknown_prefix_mode!r}")
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
        mine = None if self.provider_map is None else self.provider_map.get_provider(prefix)
        if mine is not None:
            return mine.get_model(rest or None)
        if prefix == "openai":
            whole = self._openai_prefix_mode == "model_id"
            return self.openai_provider.get_model(model_name if whole else rest or None)
        if prefix == "local":
            return self._get_local_provider().get_model(rest or None)
        if self._unknown_prefix_mode == "model_id":
            return self.openai_provider.get_model(model_name)
        raise UserError(f"no provider for the model {model_name!r}: the prefix {prefix!r} is not in the provider map")

    async def aclose(self) -> None:
        """Close OpenAI's and the embedded provider; those in the map are their owner's."""
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
