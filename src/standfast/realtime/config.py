"""The configuration of realtime sessions and models, as typed dicts."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from standfast.agents.agent import Prompt
from standfast.agents.context import RunHooksBase
from standfast.agents.guardrails import OutputGuardrail
from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ToolChoice
from standfast.agents.tools import Tool, ToolErrorFormatter

if TYPE_CHECKING:
    from openai.types.realtime.realtime_audio_formats import RealtimeAudioFormats as OpenAIRealtimeAudioFormats
else:
    OpenAIRealtimeAudioFormats = Any

RealtimeModelName: TypeAlias = (
    Literal["gpt-realtime-2.1", "gpt-realtime-2.1-mini", "gpt-realtime-2", "gpt-realtime-1.5", "gpt-realtime"] | str
)
RealtimeAudioFormat: TypeAlias = (
    Literal["pcm16", "g711_ulaw", "g711_alaw"] | str | Mapping[str, Any] | OpenAIRealtimeAudioFormats
)
RealtimeReasoningEffort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh"] | str


class RealtimeCustomVoice(TypedDict):
    """A custom voice that was created at the provider."""

    id: str


RealtimeVoice: TypeAlias = str | RealtimeCustomVoice


class RealtimeClientMessage(TypedDict):
    """A message of the wire protocol: its type, and its other fields in ``other_data``."""

    type: str
    other_data: NotRequired[dict[str, Any]]


class RealtimeInputAudioTranscriptionConfig(TypedDict):
    """How the audio of the user is transcribed."""

    language: NotRequired[str]
    model: NotRequired[
        Literal["gpt-transcribe", "gpt-live-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "whisper-1"]
        | str
    ]
    prompt: NotRequired[str]
    keywords: NotRequired[list[str]]
    languages: NotRequired[list[str]]
    delay: NotRequired[Literal["minimal", "low", "medium", "high", "xhigh"]]


class RealtimeInputAudioNoiseReductionConfig(TypedDict):
    """Noise reduction, by the distance of the microphone."""

    type: NotRequired[Literal["near_field", "far_field"]]


class RealtimeTurnDetectionConfig(TypedDict):
    """How the server detects the start and end of the user's turn."""

    type: NotRequired[Literal["semantic_vad", "server_vad"]]
    create_response: NotRequired[bool]
    eagerness: NotRequired[Literal["auto", "low", "medium", "high"]]
    interrupt_response: NotRequired[bool]
    prefix_padding_ms: NotRequired[int]
    silence_duration_ms: NotRequired[int]
    threshold: NotRequired[float]
    idle_timeout_ms: NotRequired[int]
    model_version: NotRequired[str]


class RealtimeAudioInputConfig(TypedDict, total=False):
    """The audio sent to the model. ``None`` switches noise reduction or turn detection off."""

    format: RealtimeAudioFormat
    noise_reduction: RealtimeInputAudioNoiseReductionConfig | None
    transcription: RealtimeInputAudioTranscriptionConfig
    turn_detection: RealtimeTurnDetectionConfig | None


class RealtimeAudioOutputConfig(TypedDict, total=False):
    """The audio received from the model."""

    format: RealtimeAudioFormat
    voice: RealtimeVoice
    speed: float


class RealtimeAudioConfig(TypedDict, total=False):
    """Audio in both directions. These keys take precedence over the flat keys with the same meaning."""

    input: RealtimeAudioInputConfig
    output: RealtimeAudioOutputConfig


class RealtimeReasoningConfig(TypedDict, total=False):
    """How much the model reasons before it responds."""

    effort: RealtimeReasoningEffort


class RealtimeModelTracingConfig(TypedDict):
    """The names in the provider's own trace of the session."""

    workflow_name: NotRequired[str]
    group_id: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class RealtimeSessionModelSettings(TypedDict):
    """The settings of the model. A missing key keeps the model's default."""

    model_name: NotRequired[RealtimeModelName]
    instructions: NotRequired[str]
    prompt: NotRequired[Prompt]
    modalities: NotRequired[list[Literal["text", "audio"]]]
    output_modalities: NotRequired[list[Literal["text", "audio"]]]
    audio: NotRequired[RealtimeAudioConfig]
    voice: NotRequired[RealtimeVoice]
    speed: NotRequired[float]
    max_output_tokens: NotRequired[int | Literal["inf"]]
    input_audio_format: NotRequired[RealtimeAudioFormat]
    output_audio_format: NotRequired[RealtimeAudioFormat]
    input_audio_transcription: NotRequired[RealtimeInputAudioTranscriptionConfig]
    input_audio_noise_reduction: NotRequired[RealtimeInputAudioNoiseReductionConfig | None]
    turn_detection: NotRequired[RealtimeTurnDetectionConfig | None]
    tool_choice: NotRequired[ToolChoice]
    parallel_tool_calls: NotRequired[bool]
    reasoning: NotRequired[RealtimeReasoningConfig]
    tools: NotRequired[list[Tool]]
    handoffs: NotRequired[list[Handoff[Any, Any]]]
    tracing: NotRequired[RealtimeModelTracingConfig | None]


class RealtimeGuardrailsSettings(TypedDict):
    """When and how output guardrails run."""

    debounce_text_length: NotRequired[int]
    hold_back_audio: NotRequired[bool]
    """Emit audio only after its text has passed. Adds latency; rejected audio is never heard."""
    timeout: NotRequired[float | None]
    """Seconds (default 30) after which a guardrail is skipped. Audio held back for it is not heard."""
    message: NotRequired[str | Callable[[list[str]], str]]
    """The message to the model after a trip, or a function that makes it of the names of the guardrails."""


class RealtimeToolExecutionConfig(TypedDict):
    """How tool calls are approved."""

    pre_approval_tool_input_guardrails: NotRequired[bool]
    approval_timeout: NotRequired[float | None]
    """Seconds after which a call without a decision is rejected."""


class RealtimeReconnectConfig(TypedDict, total=False):
    """How a lost connection is replaced. ``attempts`` of 0 switches reconnects off.

    The delay doubles with every attempt, and with every connection in a row that was lost within seconds.
    """

    attempts: int
    initial_delay: float
    max_delay: float
    roll_over_after: float | None
    """Seconds after which a connection is replaced, while the conversation is quiet, before the provider ends it."""


class RealtimeRunConfig(TypedDict):
    """The configuration of a session, for all its agents."""

    model_settings: NotRequired[RealtimeSessionModelSettings]
    output_guardrails: NotRequired[list[OutputGuardrail[Any]]]
    guardrails_settings: NotRequired[RealtimeGuardrailsSettings]
    tracing_disabled: NotRequired[bool]
    async_tool_calls: NotRequired[bool]
    tool_execution: NotRequired[RealtimeToolExecutionConfig]
    tool_error_formatter: NotRequired[ToolErrorFormatter]
    hooks: NotRequired[RunHooksBase[Any, Any]]
    reconnect: NotRequired[RealtimeReconnectConfig]
    raw_server_events: NotRequired[bool]
    """Whether ``raw_model_event`` includes every message of the server. True by default; False saves time."""


class RealtimeUserInputText(TypedDict):
    """A text part of a user message."""

    type: Literal["input_text"]
    text: str


class RealtimeUserInputImage(TypedDict, total=False):
    """An image part of a user message, as a URL or a data URL."""

    type: Literal["input_image"]
    image_url: str
    detail: NotRequired[Literal["auto", "low", "high"] | str]


class RealtimeUserInputMessage(TypedDict):
    """A user message in parts."""

    type: Literal["message"]
    role: Literal["user"]
    content: list[RealtimeUserInputText | RealtimeUserInputImage]


RealtimeUserInput: TypeAlias = str | RealtimeUserInputMessage
