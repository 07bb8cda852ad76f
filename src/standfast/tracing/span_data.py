"""The data of spans, by type. The fields can be set until the span is finished."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


class SpanData(ABC):
    """The base class of span data."""

    @property
    @abstractmethod
    def type(self) -> str:
        """The type of the span, such as ``agent``."""

    def export(self) -> dict[str, Any]:
        """Return the type and all fields as a dict."""
        instance: Any = self  # subclasses are dataclasses, this class is not
        return {"type": self.type, **{field.name: getattr(self, field.name) for field in fields(instance)}}


@dataclass(eq=False)
class TaskSpanData(SpanData):
    """A run, from its start or resumption until it ends or waits. ``usage`` is that of this part of the run."""

    name: str
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "task"

    def export(self) -> dict[str, Any]:
        return _export_custom(self.type, {"name": self.name}, self.usage)


@dataclass(eq=False)
class AgentSpanData(SpanData):
    """An agent's part of a run, until it hands off or the run stops."""

    name: str
    handoffs: list[str] | None = None
    tools: list[str] | None = None
    output_type: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "agent"

    def export(self) -> dict[str, Any]:
        return _leave_out(super().export(), "metadata")


@dataclass(eq=False)
class TurnSpanData(SpanData):
    """One turn: a model response and the tool calls it requests."""

    turn: int
    agent_name: str
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "turn"

    def export(self) -> dict[str, Any]:
        return _export_custom(self.type, {"turn": self.turn, "agent_name": self.agent_name}, self.usage)


@dataclass(eq=False)
class GenerationSpanData(SpanData):
    """A model call, including all retries."""

    input: Sequence[Mapping[str, Any]] | None = None
    output: Sequence[Mapping[str, Any]] | None = None
    model: str | None = None
    model_config: Mapping[str, Any] | None = None
    usage: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "generation"


@dataclass(eq=False)
class ResponseSpanData(SpanData):
    """A response of the Responses API. Only its id and usage are exported, not its contents.

    ``request`` describes the model call for OpenTelemetry.
    """

    response: Any | None = None
    input: str | list[Any] | None = None
    usage: dict[str, Any] | None = None
    request: GenerationSpanData | None = field(default=None, init=False)

    @property
    def type(self) -> str:
        return "response"

    def export(self) -> dict[str, Any]:
        return {"type": self.type, "response_id": getattr(self.response, "id", None), "usage": self.usage}


@dataclass(eq=False)
class FunctionSpanData(SpanData):
    """A tool call."""

    name: str
    input: str | None
    output: Any | None
    mcp_data: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "function"

    def export(self) -> dict[str, Any]:
        return {**super().export(), "output": None if self.output is None else str(self.output)}


@dataclass(eq=False)
class HandoffSpanData(SpanData):
    """A handoff from one agent to another."""

    from_agent: str | None
    to_agent: str | None

    @property
    def type(self) -> str:
        return "handoff"


@dataclass(eq=False)
class GuardrailSpanData(SpanData):
    """A guardrail check. ``triggered`` is True if its tripwire was triggered."""

    name: str
    triggered: bool = False

    @property
    def type(self) -> str:
        return "guardrail"


@dataclass(eq=False)
class MCPListToolsSpanData(SpanData):
    """Listing the tools of an MCP server."""

    server: str | None = None
    result: list[str] | None = None

    @property
    def type(self) -> str:
        return "mcp_tools"


@dataclass(eq=False)
class CustomSpanData(SpanData):
    """A span with data of the program's choice."""

    name: str
    data: dict[str, Any]

    @property
    def type(self) -> str:
        return "custom"


@dataclass(eq=False)
class TranscriptionSpanData(SpanData):
    """Speech to text."""

    input: str | None = None
    input_format: str | None = "pcm"
    output: str | None = None
    model: str | None = None
    model_config: Mapping[str, Any] | None = None

    @property
    def type(self) -> str:
        return "transcription"

    def export(self) -> dict[str, Any]:
        audio = {"data": self.input or "", "format": self.input_format}
        return {**_leave_out(super().export(), "input_format"), "input": audio}


@dataclass(eq=False)
class SpeechSpanData(SpanData):
    """Text to speech."""

    input: str | None = None
    output: str | None = None
    output_format: str | None = "pcm"
    model: str | None = None
    model_config: Mapping[str, Any] | None = None
    first_content_at: str | None = None

    @property
    def type(self) -> str:
        return "speech"

    def export(self) -> dict[str, Any]:
        audio = {"data": self.output or "", "format": self.output_format}
        return {**_leave_out(super().export(), "output_format"), "output": audio}


@dataclass(eq=False)
class SpeechGroupSpanData(SpanData):
    """Several texts to speech that belong together."""

    input: str | None = None

    @property
    def type(self) -> str:
        return "speech_group"


def _export_custom(kind: str, data: dict[str, Any], usage: dict[str, Any] | None) -> dict[str, Any]:
    """Return the exported form of spans that backends know as custom ones."""
    used = {} if usage is None else {"usage": usage}
    return {"type": "custom", "name": kind, "data": {"sdk_span_type": kind, **data, **used}}


def _leave_out(exported: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in exported.items() if key != name}
