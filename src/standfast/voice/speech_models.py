"""The interfaces of speech recognition and speech synthesis, and their settings."""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from standfast.voice.audio import AudioInput, StreamedAudioInput, load_numpy

if TYPE_CHECKING:
    from standfast.voice.audio import Samples

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
DEFAULT_TTS_INSTRUCTIONS = "You receive parts of a text. Read them aloud as they are, without completing sentences."


class TTSCustomVoice(TypedDict):
    """A voice that was made for an organisation."""

    id: str


TTSVoice: TypeAlias = (
    Literal[
        "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin", "cedar"
    ]
    | TTSCustomVoice
)


def get_sentence_based_splitter(min_sentence_length: int = 20) -> Callable[[str], tuple[str, str]]:
    """Return a function that splits text into whole sentences, to be spoken now, and the rest.

    Sentences that have fewer characters together stay in the rest.
    """

    def split(text_buffer: str) -> tuple[str, str]:
        *sentences, rest = _SENTENCE_END.split(text_buffer.lstrip())
        spoken = " ".join(sentences)
        return (spoken, rest) if sentences and len(spoken) >= min_sentence_length else ("", text_buffer)

    return split


def _get_default_dtype() -> Any:
    return load_numpy().int16


@dataclass
class TTSModelSettings:
    """How text is spoken.

    Audio is delivered as samples of ``dtype`` in pieces of up to ``buffer_size`` chunks of the model, each passed
    through ``transform_data``. ``text_splitter`` returns what can be spoken already and the rest.
    """

    voice: TTSVoice | None = None
    buffer_size: int = 120
    dtype: Any = field(default_factory=_get_default_dtype)
    transform_data: "Callable[[Samples], Samples] | None" = None
    instructions: str = DEFAULT_TTS_INSTRUCTIONS
    text_splitter: Callable[[str], tuple[str, str]] = field(default_factory=get_sentence_based_splitter)
    speed: float | None = None


class TTSModel(ABC):
    """Speech synthesis."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name of the model."""

    @abstractmethod
    def run(self, text: str, settings: TTSModelSettings) -> AsyncIterator[bytes]:
        """Yield the spoken text as chunks of 16-bit samples at 24 kHz."""


class StreamedTranscriptionSession(ABC):
    """The transcription of audio as it is spoken."""

    @abstractmethod
    def transcribe_turns(self) -> AsyncIterator[str]:
        """Yield the text of each turn."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. No more turns follow."""


@dataclass
class STTModelSettings:
    """How speech is recognised. ``languages`` and ``keywords`` are for streamed audio."""

    prompt: str | None = None
    language: str | None = None
    temperature: float | None = None
    turn_detection: dict[str, Any] | None = None
    languages: list[str] | None = field(default=None, kw_only=True)
    keywords: list[str] | None = field(default=None, kw_only=True)


class STTModel(ABC):
    """Speech recognition."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name of the model."""

    @abstractmethod
    async def transcribe(
        self,
        input: AudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> str:
        """Return the text of a recording."""

    @abstractmethod
    async def create_session(
        self,
        input: StreamedAudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> StreamedTranscriptionSession:
        """Start the transcription of audio as it is spoken."""


class VoiceModelProvider(ABC):
    """Finds speech models by name."""

    @abstractmethod
    def get_stt_model(self, model_name: str | None) -> STTModel:
        """Return the model with this name that recognizes speech, by default the provider's."""

    @abstractmethod
    def get_tts_model(self, model_name: str | None) -> TTSModel:
        """Return the model with this name that speaks, by default the provider's."""
