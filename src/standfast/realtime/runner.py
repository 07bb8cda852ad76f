"""The runner of realtime agents. Each call of ``run`` creates a session."""

from typing import Any

from standfast.history.session import Session
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeRunConfig
from standfast.realtime.model import RealtimeModel, RealtimeModelConfig
from standfast.realtime.session import RealtimeSession


class RealtimeRunner:
    """Creates realtime sessions. Without a ``model``, each session gets a model of its own and they can run at once."""

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
        """Create a session. It connects when it is entered.

        ``session`` is a history session: the conversation continues from it and is written to it.
        """
        model = _default_model() if self._model is None else self._model
        return RealtimeSession(model, self._starting_agent, context, model_config, self._config, session=session)


def _default_model() -> RealtimeModel:
    # Imported here: other models do not need websockets.
    from standfast.realtime.openai.websocket import OpenAIRealtimeWebSocketModel

    model: RealtimeModel = OpenAIRealtimeWebSocketModel()
    return model
