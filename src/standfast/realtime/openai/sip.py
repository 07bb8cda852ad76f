"""OpenAI's realtime models in telephone calls (SIP)."""

from typing import TYPE_CHECKING, Any

from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.base.errors import MissingExtra
from standfast.realtime._session.resolved_agent import build_base_settings, resolve_agent
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig, RealtimeSessionModelSettings
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai._protocol.session_settings import build_session_payload
from standfast.realtime.openai.websocket import OpenAIRealtimeWebSocketModel

if TYPE_CHECKING:
    from openai.types.realtime.realtime_session_create_request import (
        RealtimeSessionCreateRequest as OpenAISessionCreateRequest,
    )


class OpenAIRealtimeSIPModel(OpenAIRealtimeWebSocketModel):
    """Joins the accepted call that ``call_id`` in the model config names."""

    async def connect(self, options: RealtimeModelConfig) -> None:
        """Join the call. Raises :class:`UserError` without a ``call_id``."""
        if not options.get("call_id"):
            raise UserError("OpenAIRealtimeSIPModel needs the call_id of an accepted call in the model config")
        await super().connect(options)

    @staticmethod
    async def build_initial_session_payload(
        agent: RealtimeAgent[Any],
        *,
        context: Any = None,
        model_config: RealtimeModelConfig | None = None,
        run_config: RealtimeRunConfig | None = None,
        overrides: RealtimeSessionModelSettings | None = None,
    ) -> "OpenAISessionCreateRequest":
        """Build the payload to accept a call with, so that the agent answers from the first word.

        It has the settings that a session with this agent would send; ``overrides`` replace them.
        """
        config = run_config or {}
        initial = (model_config or {}).get("initial_model_settings") or {}
        wrapper = context if isinstance(context, RunContextWrapper) else RunContextWrapper(context)
        snapshot = await resolve_agent(
            agent,
            wrapper,
            config,
            base=build_base_settings(config, initial),
            overrides={**initial, **(overrides or {})},
        )
        try:
            from openai.types.realtime.realtime_session_create_request import RealtimeSessionCreateRequest
        except ImportError as error:
            raise MissingExtra("openai", "the payload of a SIP call") from error
        payload = build_session_payload(snapshot.settings, joins_call=True, include_model=True)
        return RealtimeSessionCreateRequest.model_validate(payload)
