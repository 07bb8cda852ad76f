"""What a realtime model tells. Fields after ``type`` are standfast's own; other models leave them at their defaults."""

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
    """Something failed and the session goes on. ``error`` is the server's own words, or an exception."""

    error: Any
    type: Literal["error"] = "error"


@dataclass(slots=True)
class RealtimeModelToolCallEvent:
    """The model asks for a tool; ``response_id`` is the response in which it does."""

    name: str
    call_id: str
    arguments: str
    id: str | None = None
    previous_item_id: str | None = None
    type: Literal["function_call"] = "function_call"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelAudioEvent:
    """A piece of speech, decoded."""

    data: bytes
    response_id: str
    item_id: str
    content_index: int
    type: Literal["audio"] = "audio"


@dataclass(slots=True)
class RealtimeModelAudioFormatEvent:
    """What the audio is that comes from now on. A model that never tells sends what its settings say, or else PCM16."""

    format: RealtimeAudioFormat
    type: Literal["audio_format"] = "audio_format"


@dataclass(slots=True)
class RealtimeModelAudioInterruptedEvent:
    """Stop playing this; ``audio_end_ms`` says how much of it counts as heard, if that is known.

    One that was ``retold`` came over an earlier connection: the server has it as text, and has not cut it.
    """

    item_id: str
    content_index: int
    type: Literal["audio_interrupted"] = "audio_interrupted"
    response_id: str | None = None
    audio_end_ms: int | None = None
    from_previous_connection: bool = False


@dataclass(slots=True)
class RealtimeModelAudioDoneEvent:
    """All audio of this part was sent; it may still be playing."""

    item_id: str
    content_index: int
    type: Literal["audio_done"] = "audio_done"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelInputAudioTranscriptionCompletedEvent:
    """What the user said, in writing."""

    item_id: str
    transcript: str
    type: Literal["input_audio_transcription_completed"] = "input_audio_transcription_completed"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelInputAudioTranscriptionFailedEvent:
    """What the user said could not be written down; the model heard it nevertheless.

    ``error`` is ``None`` when that was not asked for, so that nothing went wrong.
    """

    item_id: str
    content_index: int
    error: Any
    type: Literal["input_audio_transcription_failed"] = "input_audio_transcription_failed"


@dataclass(slots=True)
class RealtimeModelInputAudioTimeoutTriggeredEvent:
    """The user has said nothing for the time that turn detection allows."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int
    type: Literal["input_audio_timeout_triggered"] = "input_audio_timeout_triggered"


@dataclass(slots=True)
class RealtimeModelSpeechStartedEvent:
    """The user has begun to speak. ``item_id`` will be the item of what is being said."""

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
    """The next words of what the model is saying aloud."""

    item_id: str
    delta: str
    response_id: str
    type: Literal["transcript_delta"] = "transcript_delta"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelOutputTextDeltaEvent:
    """The next words of what the model is writing."""

    item_id: str
    delta: str
    response_id: str
    type: Literal["output_text_delta"] = "output_text_delta"
    content_index: int = 0


@dataclass(slots=True)
class RealtimeModelTextDoneEvent:
    """The words of this part are complete, spoken or written. Its audio may still be coming."""

    item_id: str
    text: str
    response_id: str
    content_index: int = 0
    type: Literal["text_done"] = "text_done"


@dataclass(slots=True)
class RealtimeModelItemUpdatedEvent:
    """An item is new or has changed. ``previous_item_id`` of the item is its place, where the server told it."""

    item: "RealtimeItem"
    type: Literal["item_updated"] = "item_updated"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelItemDeletedEvent:
    """The server has forgotten this item."""

    item_id: str
    type: Literal["item_deleted"] = "item_deleted"


@dataclass(slots=True)
class RealtimeModelItemTruncatedEvent:
    """The server has cut the audio of an item, and its transcript with it: the user heard no more than this."""

    item_id: str
    content_index: int
    audio_end_ms: int
    type: Literal["item_truncated"] = "item_truncated"


@dataclass(slots=True)
class RealtimeModelConnectionStatusEvent:
    """The connection was made or ended. ``error`` and ``code`` say why it ended when nobody asked for it."""

    status: RealtimeConnectionStatus
    type: Literal["connection_status"] = "connection_status"
    error: Exception | None = None
    code: int | None = None


@dataclass(slots=True)
class RealtimeModelEndOfStreamEvent:
    """There will be no more events."""

    type: Literal["end_of_stream"] = "end_of_stream"


@dataclass(slots=True)
class RealtimeModelTurnStartedEvent:
    """The model has begun a response. ``metadata`` is what was sent with the request for it.

    One that is not ``plain`` was asked for with wishes of its own: if it is lost, no other stands for it.
    """

    type: Literal["turn_started"] = "turn_started"
    response_id: str | None = None
    metadata: dict[str, Any] | None = None
    retryable: bool = True


@dataclass(slots=True)
class RealtimeModelTurnEndedEvent:
    """A response is over; ``reason`` and ``error`` say why when it is not complete."""

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
    """What one response consumed."""

    usage: Usage
    input_tokens_details: RealtimeModelInputTokensDetails | None = None
    output_tokens_details: RealtimeModelOutputTokensDetails | None = None
    type: Literal["usage"] = "usage"
    response_id: str | None = None


@dataclass(slots=True)
class RealtimeModelOtherEvent:
    """Something that has no type here."""

    data: Any
    type: Literal["other"] = "other"


@dataclass(slots=True)
class RealtimeModelExceptionEvent:
    """The model itself failed; the session cannot go on with it."""

    exception: Exception
    context: str | None = None
    type: Literal["exception"] = "exception"


@dataclass(slots=True)
class RealtimeModelRawServerEvent:
    """A message of the server as it came. Only listeners that want them are given these."""

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
