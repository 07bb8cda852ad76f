"""What a span is about, by kind. The fields can be filled in until the span is finished."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


class SpanData(ABC):
    """What a span is about."""

    @property
    @abstractmethod
    def type(self) -> str:
        """The kind of span, such as ``agent``."""

    def export(self) -> dict[str, Any]:
        """The kind and every field."""
        own: Any = self
        return {"type": self.type, **{part.name: getattr(self, part.name) for part in fields(own)}}


@dataclass(eq=False)
class TaskSpanData(SpanData):
    """One going-on of a run: from its start, or from where it was resumed, until it ends or waits."""

    name: str
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "task"


@dataclass(eq=False)
class AgentSpanData(SpanData):
    """An agent at work, until it hands over or the run stops."""

    name: str
    handoffs: list[str] | None = None
    tools: list[str] | None = None
    output_type: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "agent"


@dataclass(eq=False)
class TurnSpanData(SpanData):
    """One answer of the model and everything that was done about it."""

    turn: int
    agent_name: str
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "turn"


@dataclass(eq=False)
class GenerationSpanData(SpanData):
    """A model is asked, all attempts included."""

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
    """A response of the Responses API. Its contents are not exported, only which one it is."""

    response: Any | None = None
    input: str | list[Any] | None = None
    usage: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        return "response"

    def export(self) -> dict[str, Any]:
        return {"type": self.type, "response_id": getattr(self.response, "id", None), "usage": self.usage}


@dataclass(eq=False)
class FunctionSpanData(SpanData):
    """A tool is called."""

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
    """One agent hands over to another."""

    from_agent: str | None
    to_agent: str | None

    @property
    def type(self) -> str:
        return "handoff"


@dataclass(eq=False)
class GuardrailSpanData(SpanData):
    """A guardrail looks at something; ``triggered`` when it objected."""

    name: str
    triggered: bool = False

    @property
    def type(self) -> str:
        return "guardrail"


@dataclass(eq=False)
class MCPListToolsSpanData(SpanData):
    """An MCP server is asked for its tools."""

    server: str | None = None
    result: list[str] | None = None

    @property
    def type(self) -> str:
        return "mcp_tools"


@dataclass(eq=False)
class CustomSpanData(SpanData):
    """Whatever the program wants to see in its traces."""

    name: str
    data: dict[str, Any]

    @property
    def type(self) -> str:
        return "custom"
