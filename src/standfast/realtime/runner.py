"""From an agent to sessions: each call of ``run`` is a conversation of its own."""

from typing import Any

from standfast.history.session import Session
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig
from standfast.realtime.model import RealtimeModel, RealtimeModelConfig
from standfast.realtime.session import RealtimeSession


class RealtimeRunner:
    """Makes sessions. Without a ``model`` every session gets one of its own, so that calls can run side by side."""

    def __init__(
        self,
        starting_agent: RealtimeAgent[Any],
        *,
        model: RealtimeModel | None = None,
        config: RealtimeRunConfig | None = None,
    ) -> None:
        self._starting_agent, self._model, self._config = starting_agent, model, config

    async def run(
        self,
        *,
        context: Any | None = None,
        model_config: RealtimeModelConfig | None = None,
        session: Session | None = None,
    ) -> RealtimeSession:
        """A session that is ready to be entered; nothing is connected yet.

        ``session`` is a history: the conversation goes on from it and is written to it.
        """
        model = _default_model() if self._model is None else self._model
        return RealtimeSession(model, self._starting_agent, context, model_config, self._config, session=session)


def _default_model() -> RealtimeModel:
    # Imported here: a session over another model needs no websockets.
    from standfast.realtime.openai.websocket import OpenAIRealtimeWebSocketModel

    model: RealtimeModel = OpenAIRealtimeWebSocketModel()
    return model
