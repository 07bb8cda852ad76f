"""What the result of a voice pipeline yields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from standfast.voice.audio import Samples


@dataclass
class VoiceStreamEventAudio:
    """A piece of the answer."""

    data: "Samples | None"
    type: Literal["voice_stream_event_audio"] = "voice_stream_event_audio"


@dataclass
class VoiceStreamEventLifecycle:
    """A turn starts with its first audio and ends after its last; the session ends after its last turn."""

    event: Literal["turn_started", "turn_ended", "session_ended"]
    type: Literal["voice_stream_event_lifecycle"] = "voice_stream_event_lifecycle"


@dataclass
class VoiceStreamEventError:
    """An error that does not end the session."""

    error: Exception
    type: Literal["voice_stream_event_error"] = "voice_stream_event_error"


VoiceStreamEvent: TypeAlias = VoiceStreamEventAudio | VoiceStreamEventLifecycle | VoiceStreamEventError
