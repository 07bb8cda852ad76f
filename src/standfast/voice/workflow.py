"""Workflows: they produce the text that answers what the user has said."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from standfast.agents.agent import Agent
from standfast.runs.runner import Runner, RunResultStreaming


class VoiceWorkflowBase(ABC):
    """Answers the user. A pipeline with streamed input first speaks what ``on_start`` yields."""

    @abstractmethod
    def run(self, transcription: str) -> AsyncIterator[str]:
        """Yield the text of the answer as it is generated."""

    async def on_start(self) -> AsyncIterator[str]:
        """Yield a greeting; by default none."""
        nothing: tuple[str, ...] = ()
        for text in nothing:
            yield text


class VoiceWorkflowHelper:
    """Text of runs for workflows."""

    @classmethod
    async def stream_text_from(cls, result: RunResultStreaming) -> AsyncIterator[str]:
        """Yield the text of a streamed run as it is generated."""
        async for event in result.stream_events():
            data: Any = getattr(event, "data", None)
            if event.type == "raw_response_event" and getattr(data, "type", None) == "response.output_text.delta":
                yield data.delta


class SingleAgentWorkflowCallbacks:
    """Methods that a :class:`SingleAgentVoiceWorkflow` calls."""

    def on_run(self, workflow: "SingleAgentVoiceWorkflow", transcription: str) -> None:
        """Called before each run."""


class SingleAgentVoiceWorkflow(VoiceWorkflowBase):
    """A conversation with one agent, and with those it hands off to. Each turn continues the previous ones."""

    def __init__(
        self, agent: Agent[Any], callbacks: SingleAgentWorkflowCallbacks | None = None, *, context: Any = None
    ) -> None:
        self._agent, self._callbacks, self._context = agent, callbacks, context
        self._history: list[Any] = []

    async def run(self, transcription: str) -> AsyncIterator[str]:
        if self._callbacks is not None:
            self._callbacks.on_run(self, transcription)
        self._history.append({"role": "user", "content": transcription})
        result = Runner.run_streamed(self._agent, list(self._history), context=self._context)
        async for text in VoiceWorkflowHelper.stream_text_from(result):
            yield text
        self._history, self._agent = result.to_input_list(), result.last_agent
