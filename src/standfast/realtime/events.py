"""What a session tells. Fields after ``type`` are standfast's own, and so are the events after the first group."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from standfast.agents.agent import Agent
from standfast.agents.context import RunContextWrapper
from standfast.agents.guardrails import OutputGuardrailResult
from standfast.agents.tools import Tool
from standfast.base.usage import Usage
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.config import RealtimeUserInput
from standfast.realtime.items import RealtimeItem
from standfast.realtime.model_events import (
    RealtimeModelAudioEvent,
    RealtimeModelEvent,
    RealtimeModelInputTokensDetails,
    RealtimeModelOutputTokensDetails,
)


@dataclass(slots=True)
class RealtimeEventInfo:
    """What comes with every event."""

    context: RunContextWrapper[Any]


@dataclass(slots=True)
class RealtimeAgentStartEvent:
    """A response of this agent has begun."""

    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["agent_start"] = "agent_start"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeAgentEndEvent:
    """A response is over; ``agent`` is the one that began it, whoever is current now."""

    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["agent_end"] = "agent_end"
    response_id: str | None = None
    status: str = "completed"


@dataclass(slots=True)
class RealtimeHandoffEvent:
    """The model handed over, and the new agent's settings hold. An ``agent_changed`` comes with it."""

    from_agent: RealtimeAgent[Any]
    to_agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["handoff"] = "handoff"


@dataclass(slots=True)
class RealtimeToolStart:
    """A tool is about to be called; approval and input guardrails lie behind."""

    agent: RealtimeAgent[Any]
    tool: Tool
    arguments: str
    info: RealtimeEventInfo
    type: Literal["tool_start"] = "tool_start"
    call_id: str | None = None


@dataclass(slots=True)
class RealtimeToolEnd:
    """The model was given the output of a call, or what it gets in the place of one."""

    agent: RealtimeAgent[Any]
    tool: Tool
    arguments: str
    output: Any
    info: RealtimeEventInfo
    type: Literal["tool_end"] = "tool_end"
    call_id: str | None = None


@dataclass(slots=True)
class RealtimeToolApprovalRequired:
    """A call waits for ``approve_tool_call`` or ``reject_tool_call``.

    ``agent`` wants to make it: the one that speaks, or one that is its tool.
    """

    agent: RealtimeAgent[Any] | Agent[Any]
    tool: Tool
    call_id: str
    arguments: str
    info: RealtimeEventInfo
    type: Literal["tool_approval_required"] = "tool_approval_required"


@dataclass(slots=True)
class RealtimeRawModelEvent:
    """What the model told, as it told it; comes before what the session makes of it."""

    data: RealtimeModelEvent
    info: RealtimeEventInfo
    type: Literal["raw_model_event"] = "raw_model_event"


@dataclass(slots=True)
class RealtimeAudio:
    """A piece of speech to play."""

    audio: RealtimeModelAudioEvent
    item_id: str
    content_index: int
    info: RealtimeEventInfo
    type: Literal["audio"] = "audio"


@dataclass(slots=True)
class RealtimeAudioEnd:
    """The audio of this part is complete."""

    info: RealtimeEventInfo
    item_id: str
    content_index: int
    type: Literal["audio_end"] = "audio_end"


@dataclass(slots=True)
class RealtimeAudioInterrupted:
    """Stop playing this. No audio of its response comes afterwards."""

    info: RealtimeEventInfo
    item_id: str
    content_index: int
    type: Literal["audio_interrupted"] = "audio_interrupted"


@dataclass(slots=True)
class RealtimeError:
    """Something failed and the session goes on, unless it closes right after."""

    error: Any
    info: RealtimeEventInfo
    type: Literal["error"] = "error"


@dataclass(slots=True)
class RealtimeHistoryUpdated:
    """Items have changed. ``history`` is a snapshot: later changes do not touch it."""

    history: list[RealtimeItem]
    info: RealtimeEventInfo
    type: Literal["history_updated"] = "history_updated"
    revision: int = 0


@dataclass(slots=True)
class RealtimeHistoryAdded:
    """There is a new item."""

    item: RealtimeItem
    info: RealtimeEventInfo
    type: Literal["history_added"] = "history_added"
    revision: int = 0


@dataclass(slots=True)
class RealtimeGuardrailTripped:
    """An output guardrail refused what was being said; told once per response. ``message`` is the text it saw."""

    guardrail_results: list[OutputGuardrailResult]
    message: str
    info: RealtimeEventInfo
    type: Literal["guardrail_tripped"] = "guardrail_tripped"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeInputAudioTimeoutTriggered:
    """The user has said nothing for the time that turn detection allows."""

    info: RealtimeEventInfo
    type: Literal["input_audio_timeout_triggered"] = "input_audio_timeout_triggered"
    item_id: str | None = None
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None


@dataclass(slots=True)
class RealtimeAgentChanged:
    """Another agent has taken over and its settings hold; told once, however it came about."""

    from_agent: RealtimeAgent[Any]
    to_agent: RealtimeAgent[Any]
    reason: Literal["handoff", "update"]
    info: RealtimeEventInfo
    type: Literal["agent_changed"] = "agent_changed"


@dataclass(slots=True)
class RealtimeTranscriptDelta:
    """The next words of an answer, spoken or written."""

    item_id: str
    delta: str
    response_id: str
    info: RealtimeEventInfo
    type: Literal["transcript_delta"] = "transcript_delta"


@dataclass(slots=True)
class RealtimeResponseFailed:
    """A response failed, or was ``lost`` with its connection. ``reason`` and ``error`` are the server's words."""

    response_id: str | None
    status: Literal["failed", "lost"]
    reason: str | None
    error: Any
    info: RealtimeEventInfo
    type: Literal["response_failed"] = "response_failed"


@dataclass(slots=True)
class RealtimeResponseIncomplete:
    """A response ended early, for instance at ``max_output_tokens`` or a ``content_filter``."""

    response_id: str | None
    reason: str | None
    info: RealtimeEventInfo
    type: Literal["response_incomplete"] = "response_incomplete"


@dataclass(slots=True)
class RealtimeToolApprovalExpired:
    """Nobody decided in time; the model was told that the call was not made."""

    agent: RealtimeAgent[Any] | Agent[Any]
    tool: Tool
    call_id: str
    info: RealtimeEventInfo
    type: Literal["tool_approval_expired"] = "tool_approval_expired"


@dataclass(slots=True)
class RealtimeReconnecting:
    """The connection is gone (or is replaced, when ``planned``) and the next attempt comes after ``delay`` seconds."""

    attempt: int
    delay: float
    error: Exception | None
    info: RealtimeEventInfo
    type: Literal["reconnecting"] = "reconnecting"
    planned: bool = False


@dataclass(slots=True)
class RealtimeReconnected:
    """There is a connection again and it knows the history."""

    attempts: int
    gap_ms: float
    info: RealtimeEventInfo
    type: Literal["reconnected"] = "reconnected"
    planned: bool = False


@dataclass(slots=True)
class RealtimeMetric:
    """One measurement, by the names of :class:`RealtimeMetrics`."""

    name: str
    ms: float
    info: RealtimeEventInfo
    type: Literal["metric"] = "metric"
    subject: str | None = None


@dataclass(slots=True)
class RealtimeUsage:
    """What one response consumed; ``session.metrics.usage`` is the sum."""

    usage: Usage
    response_id: str | None
    info: RealtimeEventInfo
    type: Literal["usage"] = "usage"
    input_tokens_details: RealtimeModelInputTokensDetails | None = None
    output_tokens_details: RealtimeModelOutputTokensDetails | None = None


@dataclass(slots=True)
class RealtimeEventsDropped:
    """This iterator was too slow for the audio: so many audio, delta and raw events are missing here.

    ``bytes`` is how much audio and how many raw messages were in them.
    """

    count: int
    info: RealtimeEventInfo
    type: Literal["events_dropped"] = "events_dropped"
    bytes: int = 0


@dataclass(slots=True)
class RealtimeCloseReport:
    """How a session ended, and what it could not bring to its end.

    ``cut`` was interrupted (``connection``: the server did not say goodbye in time), ``left`` is still running,
    ``unsent`` are calls whose output the model never got, ``undecided`` are calls that still waited for a person,
    ``unsaid`` are messages that were lost with a connection and said to no other, ``unwritten`` counts items missing
    in the history session.
    """

    reason: Literal["asked", "ended", "failed"]
    error: BaseException | None = None
    cancelled: tuple[str, ...] = ()
    still_running: tuple[str, ...] = ()
    unsent_outputs: tuple[str, ...] = ()
    pending_approvals: tuple[str, ...] = ()
    undelivered_messages: tuple[RealtimeUserInput, ...] = ()
    unwritten_count: int = 0


@dataclass(slots=True)
class RealtimeSessionClosed:
    """The last event of a session."""

    report: RealtimeCloseReport
    info: RealtimeEventInfo = field(repr=False)
    type: Literal["session_closed"] = "session_closed"


RealtimeSessionEvent: TypeAlias = (
    RealtimeAgentStartEvent
    | RealtimeAgentEndEvent
    | RealtimeHandoffEvent
    | RealtimeToolStart
    | RealtimeToolEnd
    | RealtimeToolApprovalRequired
    | RealtimeRawModelEvent
    | RealtimeAudioEnd
    | RealtimeAudio
    | RealtimeAudioInterrupted
    | RealtimeError
    | RealtimeHistoryUpdated
    | RealtimeHistoryAdded
    | RealtimeGuardrailTripped
    | RealtimeInputAudioTimeoutTriggered
    | RealtimeAgentChanged
    | RealtimeTranscriptDelta
    | RealtimeResponseFailed
    | RealtimeResponseIncomplete
    | RealtimeToolApprovalExpired
    | RealtimeReconnecting
    | RealtimeReconnected
    | RealtimeMetric
    | RealtimeUsage
    | RealtimeEventsDropped
    | RealtimeSessionClosed
)


def get_payload_size(event: RealtimeSessionEvent) -> int:
    """How many bytes of audio, or of a server's message, an event carries."""
    carried = event.audio if isinstance(event, RealtimeAudio) else getattr(event, "data", None)
    return len(carried.data) if isinstance(carried, RealtimeModelAudioEvent) else getattr(carried, "size", 0)
