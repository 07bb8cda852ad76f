"""The events of a realtime model. Fields after ``type`` are extensions of standfast; other models omit them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from standfast.base.usage import Usage
from standfast.realtime.config import RealtimeAudioFormat

if TYPE_CHECKING:
    from standfast.realtime.items import RealtimeItem

RealtimeConnectionStatus: TypeAlias = Literal["connecting", "connected", "disconnected"]
RealtimeResponseStatus: TypeAlias = Literal["completed", "cancelled", "failed", "incomplete", "lost"]


@dataclass(slots=True)
class RealtimeModelErrorEvent:
    """An error that does not end the session. ``error`` is the server's error or an exception."""

    error: Any
    type: Literal["error"] = "error"


@dataclass(slots=True)
class RealtimeModelToolCallEvent:
    """The model calls a tool. ``response_id`` is the response that makes the call."""

    name: str
    call_id: str
    arguments: str
    id: str | None = None
    previous_item_id: str | None = None
    type: Literal["function_call"] = "function_call"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelAudioEvent:
    """A chunk of audio, decoded."""

    data: bytes
    response_id: str
    item_id: str
    content_index: int
    type: Literal["audio"] = "audio"


@dataclass(slots=True)
class RealtimeModelAudioFormatEvent:
    """The format of the audio from now on. Without this event it is the format of the settings, or PCM16."""

    format: RealtimeAudioFormat
    type: Literal["audio_format"] = "audio_format"


@dataclass(slots=True)
class RealtimeModelAudioInterruptedEvent:
    """Playback of this part must stop. ``audio_end_ms`` is how much of it was heard; without it, the session estimates.

    With ``from_previous_connection``, the server has the item as text and has not truncated it.
    """

    item_id: str
    content_index: int
    type: Literal["audio_interrupted"] = "audio_interrupted"
    response_id: str | None = None
    audio_end_ms: int | None = None
    from_previous_connection: bool = False


@dataclass(slots=True)
class RealtimeModelAudioDoneEvent:
    """All audio of this part was sent. It may still be playing."""

    item_id: str
    content_index: int
    type: Literal["audio_done"] = "audio_done"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelInputAudioTranscriptionCompletedEvent:
    """The transcript of the user's audio."""

    item_id: str
    transcript: str
    type: Literal["input_audio_transcription_completed"] = "input_audio_transcription_completed"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelInputAudioTranscriptionFailedEvent:
    """The user's audio has no transcript; the model has heard it nevertheless.

    ``error`` is ``None`` if transcription is switched off.
    """

    item_id: str
    content_index: int
    error: Any
    type: Literal["input_audio_transcription_failed"] = "input_audio_transcription_failed"


@dataclass(slots=True)
class RealtimeModelInputAudioTimeoutTriggeredEvent:
    """The user has been silent for the idle timeout of turn detection."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int
    type: Literal["input_audio_timeout_triggered"] = "input_audio_timeout_triggered"


@dataclass(slots=True)
class RealtimeModelSpeechStartedEvent:
    """The user has started to speak. ``item_id`` is the id of the item that will follow."""

    item_id: str | None
    audio_start_ms: int | None
    type: Literal["speech_started"] = "speech_started"


@dataclass(slots=True)
class RealtimeModelSpeechStoppedEvent:
    """The user has stopped speaking."""

    item_id: str | None
    audio_end_ms: int | None
    type: Literal["speech_stopped"] = "speech_stopped"


@dataclass(slots=True)
class RealtimeModelTranscriptDeltaEvent:
    """A delta of the transcript of the model's speech."""

    item_id: str
    delta: str
    response_id: str
    type: Literal["transcript_delta"] = "transcript_delta"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelOutputTextDeltaEvent:
    """A delta of the model's text output."""

    item_id: str
    delta: str
    response_id: str
    type: Literal["output_text_delta"] = "output_text_delta"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelTextDoneEvent:
    """The text of this part is complete, spoken or written. Its audio may still arrive."""

    item_id: str
    text: str
    response_id: str
    content_index: int = 0
    type: Literal["text_done"] = "text_done"


@dataclass(slots=True)
class RealtimeModelItemUpdatedEvent:
    """An item was added or has changed. Its ``previous_item_id`` is its position, if the server sent one."""

    item: "RealtimeItem"
    type: Literal["item_updated"] = "item_updated"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelItemDeletedEvent:
    """The server has deleted this item."""

    item_id: str
    type: Literal["item_deleted"] = "item_deleted"


@dataclass(slots=True)
class RealtimeModelItemTruncatedEvent:
    """The server has truncated the audio of an item and its transcript: the user heard no more than this."""

    item_id: str
    content_index: int
    audio_end_ms: int
    type: Literal["item_truncated"] = "item_truncated"


@dataclass(slots=True)
class RealtimeModelConnectionStatusEvent:
    """The connection was made or has ended. ``error`` and ``code`` are the reason of an unexpected end."""

    status: RealtimeConnectionStatus
    type: Literal["connection_status"] = "connection_status"
    error: Exception | None = None
    code: int | None = None


@dataclass(slots=True)
class RealtimeModelEndOfStreamEvent:
    """No more events follow."""

    type: Literal["end_of_stream"] = "end_of_stream"


@dataclass(slots=True)
class RealtimeModelTurnStartedEvent:
    """The model has started a response. ``metadata`` is that of the request.

    It is ``retryable`` if it was requested without options of its own: if it is lost, it can be requested again.
    """

    type: Literal["turn_started"] = "turn_started"
    response_id: str | None = None
    metadata: dict[str, Any] | None = None
    retryable: bool = True


@dataclass(slots=True)
class RealtimeModelTurnEndedEvent:
    """A response has ended. If it is not completed, ``reason`` and ``error`` say why."""

    type: Literal["turn_ended"] = "turn_ended"
    response_id: str | None = None
    status: RealtimeResponseStatus = "completed"
    reason: str | None = None
    error: Any = None
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class RealtimeModelCachedTokensDetails:
    """Cached input tokens by kind."""

    text_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None


@dataclass(slots=True)
class RealtimeModelInputTokensDetails:
    """Input tokens by kind."""

    text_tokens: int | None = None
    audio_tokens: int | None = None
    image_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_details: RealtimeModelCachedTokensDetails | None = None


@dataclass(slots=True)
class RealtimeModelOutputTokensDetails:
    """Output tokens by kind."""

    text_tokens: int | None = None
    audio_tokens: int | None = None


@dataclass(slots=True)
class RealtimeModelUsageEvent:
    """The usage of one response."""

    usage: Usage
    input_tokens_details: RealtimeModelInputTokensDetails | None = None
    output_tokens_details: RealtimeModelOutputTokensDetails | None = None
    type: Literal["usage"] = "usage"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelOtherEvent:
    """A message that has no event type here."""

    data: Any
    type: Literal["other"] = "other"


@dataclass(slots=True)
class RealtimeModelExceptionEvent:
    """The model itself failed; the session ends."""

    exception: Exception
    context: str | None = None
    type: Literal["exception"] = "exception"


@dataclass(slots=True)
class RealtimeModelRawServerEvent:
    """A raw message of the server, for listeners with ``raw_server_events``."""

    data: Any
    type: Literal["raw_server_event"] = "raw_server_event"


RealtimeModelEvent: TypeAlias = (
    RealtimeModelErrorEvent
    | RealtimeModelToolCallEvent
    | RealtimeModelAudioEvent
    | RealtimeModelAudioFormatEvent
    | RealtimeModelAudioInterruptedEvent
    | RealtimeModelAudioDoneEvent
    | RealtimeModelInputAudioTimeoutTriggeredEvent
    | RealtimeModelInputAudioTranscriptionCompletedEvent
    | RealtimeModelInputAudioTranscriptionFailedEvent
    | RealtimeModelSpeechStartedEvent
    | RealtimeModelSpeechStoppedEvent
    | RealtimeModelTranscriptDeltaEvent
    | RealtimeModelOutputTextDeltaEvent
    | RealtimeModelTextDoneEvent
    | RealtimeModelItemUpdatedEvent
    | RealtimeModelItemDeletedEvent
    | RealtimeModelItemTruncatedEvent
    | RealtimeModelConnectionStatusEvent
    | RealtimeModelEndOfStreamEvent
    | RealtimeModelTurnStartedEvent
    | RealtimeModelTurnEndedEvent
    | RealtimeModelUsageEvent
    | RealtimeModelOtherEvent
    | RealtimeModelExceptionEvent
    | RealtimeModelRawServerEvent
)
