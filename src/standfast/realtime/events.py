"""The events of a session. Fields after ``type`` and the events from ``agent_changed`` on are standfast extensions."""

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
    """The information in every event."""

    context: RunContextWrapper[Any]


@dataclass(slots=True)
class RealtimeAgentStartEvent:
    """A response of this agent has started."""

    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["agent_start"] = "agent_start"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeAgentEndEvent:
    """A response has ended. ``agent`` is the agent that started it, which may not be the current one."""

    agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["agent_end"] = "agent_end"
    response_id: str | None = None
    status: str = "completed"


@dataclass(slots=True)
class RealtimeHandoffEvent:
    """A handoff is complete: the model has the new agent's settings. An ``agent_changed`` event precedes it."""

    from_agent: RealtimeAgent[Any]
    to_agent: RealtimeAgent[Any]
    info: RealtimeEventInfo
    type: Literal["handoff"] = "handoff"


@dataclass(slots=True)
class RealtimeToolStart:
    """A tool is about to be called; the call is approved and has passed the input guardrails."""

    agent: RealtimeAgent[Any]
    tool: Tool
    arguments: str
    info: RealtimeEventInfo
    type: Literal["tool_start"] = "tool_start"
    call_id: str | None = None


@dataclass(slots=True)
class RealtimeToolEnd:
    """The model has the output of a call, or the message that replaces it."""

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

    ``agent`` makes the call: the current agent, or an agent that is one of its tools.
    """

    agent: RealtimeAgent[Any] | Agent[Any]
    tool: Tool
    call_id: str
    arguments: str
    info: RealtimeEventInfo
    type: Literal["tool_approval_required"] = "tool_approval_required"


@dataclass(slots=True)
class RealtimeRawModelEvent:
    """An event of the model, unchanged. It comes before the session events that result from it."""

    data: RealtimeModelEvent
    info: RealtimeEventInfo
    type: Literal["raw_model_event"] = "raw_model_event"


@dataclass(slots=True)
class RealtimeAudio:
    """A chunk of audio to play."""

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
    """Playback of this part must stop. No more audio of its response follows."""

    info: RealtimeEventInfo
    item_id: str
    content_index: int
    type: Literal["audio_interrupted"] = "audio_interrupted"


@dataclass(slots=True)
class RealtimeError:
    """An error that does not end the session, unless ``session_closed`` follows."""

    error: Any
    info: RealtimeEventInfo
    type: Literal["error"] = "error"


@dataclass(slots=True)
class RealtimeHistoryUpdated:
    """Items have changed. ``history`` is a snapshot."""

    history: list[RealtimeItem]
    info: RealtimeEventInfo
    type: Literal["history_updated"] = "history_updated"
    revision: int = 0


@dataclass(slots=True)
class RealtimeHistoryAdded:
    """An item was added."""

    item: RealtimeItem
    info: RealtimeEventInfo
    type: Literal["history_added"] = "history_added"
    revision: int = 0


@dataclass(slots=True)
class RealtimeGuardrailTripped:
    """An output guardrail rejected a response; emitted once per response. ``message`` is the text that it checked."""

    guardrail_results: list[OutputGuardrailResult]
    message: str
    info: RealtimeEventInfo
    type: Literal["guardrail_tripped"] = "guardrail_tripped"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeInputAudioTimeoutTriggered:
    """The user has been silent for the idle timeout of turn detection."""

    info: RealtimeEventInfo
    type: Literal["input_audio_timeout_triggered"] = "input_audio_timeout_triggered"
    item_id: str | None = None
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None


@dataclass(slots=True)
class RealtimeAgentChanged:
    """Another agent is current and the model has its settings; emitted once per switch, for every reason."""

    from_agent: RealtimeAgent[Any]
    to_agent: RealtimeAgent[Any]
    reason: Literal["handoff", "update"]
    info: RealtimeEventInfo
    type: Literal["agent_changed"] = "agent_changed"


@dataclass(slots=True)
class RealtimeTranscriptDelta:
    """A delta of the text of a message, spoken or written."""

    item_id: str
    delta: str
    response_id: str
    info: RealtimeEventInfo
    type: Literal["transcript_delta"] = "transcript_delta"


@dataclass(slots=True)
class RealtimeResponseFailed:
    """A response failed, or was lost with its connection. ``reason`` and ``error`` come from the server."""

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
    """An approval was not decided in time; the call was rejected."""

    agent: RealtimeAgent[Any] | Agent[Any]
    tool: Tool
    call_id: str
    info: RealtimeEventInfo
    type: Literal["tool_approval_expired"] = "tool_approval_expired"


@dataclass(slots=True)
class RealtimeReconnecting:
    """The connection was lost, or is replaced if ``planned``. The next attempt starts after ``delay`` seconds."""

    attempt: int
    delay: float
    error: Exception | None
    info: RealtimeEventInfo
    type: Literal["reconnecting"] = "reconnecting"
    planned: bool = False


@dataclass(slots=True)
class RealtimeReconnected:
    """A new connection is up and has the history."""

    attempts: int
    gap_ms: float
    info: RealtimeEventInfo
    type: Literal["reconnected"] = "reconnected"
    planned: bool = False


@dataclass(slots=True)
class RealtimeMetric:
    """One measurement; :class:`RealtimeMetrics` lists the names."""

    name: str
    ms: float
    info: RealtimeEventInfo
    type: Literal["metric"] = "metric"
    subject: str | None = None


@dataclass(slots=True)
class RealtimeUsage:
    """The usage of one response; ``session.metrics.usage`` is the total."""

    usage: Usage
    response_id: str | None
    info: RealtimeEventInfo
    type: Literal["usage"] = "usage"
    input_tokens_details: RealtimeModelInputTokensDetails | None = None
    output_tokens_details: RealtimeModelOutputTokensDetails | None = None


@dataclass(slots=True)
class RealtimeEventsDropped:
    """This iterator was too slow and has lost ``count`` audio, delta and raw events.

    ``bytes`` is the size of the audio and the raw messages in them.
    """

    count: int
    info: RealtimeEventInfo
    type: Literal["events_dropped"] = "events_dropped"
    bytes: int = 0


@dataclass(slots=True)
class RealtimeCloseReport:
    """How a session ended, and what it could not finish.

    ``cancelled`` names tasks that were cancelled at the deadline (``connection``: the server did not complete the close
    handshake in time); ``still_running`` names tasks and threads that could not be stopped. ``unsent_outputs`` are the
    ids of calls whose output the model did not get, ``pending_approvals`` those of calls that were not decided.
    ``undelivered_messages`` were lost with a connection. ``unwritten_count`` is the number of items that are missing in
    the history session.
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
)
"""The events of an iteration over a session: those of openai-agents."""

RealtimeAdditionalEvent: TypeAlias = (
    RealtimeAgentChanged
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
"""The other events, which :meth:`~standfast.realtime.RealtimeSession.events` also yields."""

AnyRealtimeEvent: TypeAlias = RealtimeSessionEvent | RealtimeAdditionalEvent


def get_payload_size(event: AnyRealtimeEvent) -> int:
    """Return how many bytes of audio, or of a server's message, an event carries."""
    payload = event.audio if isinstance(event, RealtimeAudio) else getattr(event, "data", None)
    return len(payload.data) if isinstance(payload, RealtimeModelAudioEvent) else getattr(payload, "size", 0)
