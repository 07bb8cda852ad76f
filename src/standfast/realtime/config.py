"""What a realtime session and its model can be told: plain dicts with known keys."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from standfast.agents.guardrails import OutputGuardrail
from standfast.agents.handoffs import Handoff
from standfast.agents.hooks import RunHooks
from standfast.agents.model_settings import ToolChoice
from standfast.agents.prompts import Prompt
from standfast.agents.tools import Tool
from standfast.tool_calls.output import ToolErrorFormatter

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
    """A voice that was made at the provider."""

    id: str


RealtimeVoice: TypeAlias = str | RealtimeCustomVoice


class RealtimeClientMessage(TypedDict):
    """A message of the wire protocol: its type, and its other parts beside it."""

    type: str
    other_data: NotRequired[dict[str, Any]]


class RealtimeInputAudioTranscriptionConfig(TypedDict):
    """How the user's speech is written down."""

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
    """What the microphone is like."""

    type: NotRequired[Literal["near_field", "far_field"]]


class RealtimeTurnDetectionConfig(TypedDict):
    """How the server decides that the user has begun or ended to speak."""

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
    """The audio that goes to the model. ``None`` switches noise reduction or turn detection off."""

    format: RealtimeAudioFormat
    noise_reduction: RealtimeInputAudioNoiseReductionConfig | None
    transcription: RealtimeInputAudioTranscriptionConfig
    turn_detection: RealtimeTurnDetectionConfig | None


class RealtimeAudioOutputConfig(TypedDict, total=False):
    """The audio that comes from the model."""

    format: RealtimeAudioFormat
    voice: RealtimeVoice
    speed: float


class RealtimeAudioConfig(TypedDict, total=False):
    """Both directions. What is said here goes before the flat keys of the same meaning."""

    input: RealtimeAudioInputConfig
    output: RealtimeAudioOutputConfig


class RealtimeReasoningConfig(TypedDict, total=False):
    """How much the model thinks before it speaks."""

    effort: RealtimeReasoningEffort


class RealtimeModelTracingConfig(TypedDict):
    """How the provider names its own trace of the session."""

    workflow_name: NotRequired[str]
    group_id: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class RealtimeSessionModelSettings(TypedDict):
    """How the model is to behave. What is left out keeps the model's default."""

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
    """When output guardrails look at what was said so far."""

    debounce_text_length: NotRequired[int]
    hold_back_audio: NotRequired[bool]
    """Pass audio on only after its words were checked. Costs latency, and nothing refused is heard."""
    timeout: NotRequired[float | None]
    """After so many seconds (30) a guardrail without a verdict is skipped. Audio held back for it is not heard."""
    message: NotRequired[str | Callable[[list[str]], str]]
    """What the model is told after a trip, or what makes that of the names of the guardrails."""


class RealtimeToolExecutionConfig(TypedDict):
    """How tool calls are judged."""

    pre_approval_tool_input_guardrails: NotRequired[bool]
    approval_timeout: NotRequired[float | None]
    """After so many seconds without a decision the call counts as rejected."""


class RealtimeReconnectConfig(TypedDict, total=False):
    """What happens when the connection ends although nobody asked. ``attempts`` of 0 switches reconnecting off.

    The delay doubles with every attempt, and with every connection in a row that did not last for some seconds.
    """

    attempts: int
    first_delay: float
    longest_delay: float
    roll_over_after: float | None
    """Replace a connection after so many seconds, in a quiet moment, before the provider's own limit ends it."""


class RealtimeRunConfig(TypedDict):
    """What holds for a whole session, whoever is speaking."""

    model_settings: NotRequired[RealtimeSessionModelSettings]
    output_guardrails: NotRequired[list[OutputGuardrail[Any]]]
    guardrails_settings: NotRequired[RealtimeGuardrailsSettings]
    tracing_disabled: NotRequired[bool]
    async_tool_calls: NotRequired[bool]
    tool_execution: NotRequired[RealtimeToolExecutionConfig]
    tool_error_formatter: NotRequired[ToolErrorFormatter]
    hooks: NotRequired[RunHooks[Any]]
    reconnect: NotRequired[RealtimeReconnectConfig]
    raw_server_events: NotRequired[bool]
    """Whether ``raw_model_event`` also carries every message of the server as it came. On by default, at a cost."""


class RealtimeUserInputText(TypedDict):
    """Text of the user."""

    type: Literal["input_text"]
    text: str


class RealtimeUserInputImage(TypedDict, total=False):
    """A picture of the user, as an address or a data URL."""

    type: Literal["input_image"]
    image_url: str
    detail: NotRequired[Literal["auto", "low", "high"] | str]


class RealtimeUserInputMessage(TypedDict):
    """A message of the user in parts."""

    type: Literal["message"]
    role: Literal["user"]
    content: list[RealtimeUserInputText | RealtimeUserInputImage]


RealtimeUserInput: TypeAlias = str | RealtimeUserInputMessage
