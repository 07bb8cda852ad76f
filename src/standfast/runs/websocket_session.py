"""Runs that share WebSocket connections to the Responses API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.models.multi_provider import (
    MultiProvider,
    MultiProviderOpenAIPrefixMode,
    MultiProviderUnknownPrefixMode,
)
from standfast.models.openai.provider import OpenAIProvider
from standfast.runs.config import RunConfig
from standfast.runs.result import RunResult
from standfast.runs.run_state import RunState
from standfast.runs.runner import Runner, RunResultStreaming

if TYPE_CHECKING:
    from standfast.models.openai.responses_websocket import OpenAIResponsesWebSocketOptions


@dataclass(frozen=True)
class ResponsesWebSocketSession:
    """Runs agents with one provider, whose models keep their connections from run to run.

    ``run_config`` must have a :class:`MultiProvider` that uses ``provider``; nested agents get the same.
    """

    provider: OpenAIProvider
    run_config: RunConfig

    def __post_init__(self) -> None:
        routed = self.run_config.model_provider
        if not isinstance(routed, MultiProvider):
            raise TypeError(f"run_config.model_provider must be a MultiProvider, got {type(routed).__name__}")
        if routed.openai_provider is not self.provider:
            raise InvalidInput("run_config.model_provider uses another OpenAIProvider than the session")

    async def run(
        self, starting_agent: Agent[Any], input: str | list[Item] | RunState[Any, Any], **kwargs: Any
    ) -> RunResult:
        """Call :meth:`Runner.run` with the session's configuration."""
        _refuse_config(kwargs)
        return await Runner.run(starting_agent, input, run_config=self.run_config, **kwargs)

    def run_streamed(
        self, starting_agent: Agent[Any], input: str | list[Item] | RunState[Any, Any], **kwargs: Any
    ) -> RunResultStreaming:
        """Call :meth:`Runner.run_streamed` with the session's configuration."""
        _refuse_config(kwargs)
        return Runner.run_streamed(starting_agent, input, run_config=self.run_config, **kwargs)

    async def aclose(self) -> None:
        """Close the connections, and the client that the provider created."""
        await self.run_config.model_provider.aclose()


def _refuse_config(options: dict[str, Any]) -> None:
    if "run_config" in options:
        raise InvalidInput("a ResponsesWebSocketSession has its own run_config: leave it out")


@asynccontextmanager
async def responses_websocket_session(
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    websocket_base_url: str | None = None,
    organization: str | None = None,
    project: str | None = None,
    openai_prefix_mode: MultiProviderOpenAIPrefixMode = "alias",
    unknown_prefix_mode: MultiProviderUnknownPrefixMode = "error",
    responses_websocket_options: "OpenAIResponsesWebSocketOptions | None" = None,
) -> AsyncIterator[ResponsesWebSocketSession]:
    """Provide a session whose runs use the Responses API over shared WebSocket connections; close them at the end.

    Read streamed runs to their end before leaving: a response that is still being received is not waited for.
    """
    provider = MultiProvider(
        openai_api_key=api_key,
        openai_base_url=base_url,
        openai_websocket_base_url=websocket_base_url,
        openai_organization=organization,
        openai_project=project,
        openai_use_responses=True,
        openai_use_responses_websocket=True,
        openai_prefix_mode=openai_prefix_mode,
        unknown_prefix_mode=unknown_prefix_mode,
        openai_responses_websocket_options=responses_websocket_options,
    )
    session = ResponsesWebSocketSession(provider.openai_provider, RunConfig(model_provider=provider))
    try:
        yield session
    finally:
        await session.aclose()
