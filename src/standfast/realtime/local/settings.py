"""The settings of a session and of a response: their fields, defaults, validation and merging."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from standfast.realtime.local.actions import InvalidRequest
from standfast.realtime.local.audio import CODECS, AudioCodec


class Pcm(Struct, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    rate: Literal[24000] = 24000


class Pcmu(Struct, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    pass


class Pcma(Struct, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    pass


class TranscriptionSettings(Struct, forbid_unknown_fields=True):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    keywords: list[str] | None = None
    languages: list[str] | None = None
    delay: str | None = None


class NoiseReduction(Struct, forbid_unknown_fields=True):
    type: Literal["near_field", "far_field"]
    strength: float = 1.0


class ServerVad(Struct, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=0, le=10_000)] = 500
    idle_timeout_ms: Annotated[int, Meta(ge=5000, le=30_000)] | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(Struct, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    """Semantic turn detection, imitated by the length of the pause: the more eager, the sooner the response."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    model_version: str | None = None

    threshold = 0.5
    prefix_padding_ms = 300
    idle_timeout_ms = None

    @property
    def silence_duration_ms(self) -> int:
        return {"low": 1200, "medium": 600, "high": 300, "auto": 600}[self.eagerness]


class CustomVoice(Struct, forbid_unknown_fields=True):
    id: str


class AudioInputSettings(Struct, forbid_unknown_fields=True):
    format: Pcm | Pcmu | Pcma = field(default_factory=Pcm)
    noise_reduction: NoiseReduction | None = None
    transcription: TranscriptionSettings | None = None
    turn_detection: ServerVad | SemanticVad | None = field(default_factory=ServerVad)


class AudioOutputSettings(Struct, forbid_unknown_fields=True):
    format: Pcm | Pcmu | Pcma = field(default_factory=Pcm)
    voice: str | CustomVoice = "alloy"
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] = 1.0


class AudioSettings(Struct, forbid_unknown_fields=True):
    input: AudioInputSettings = field(default_factory=AudioInputSettings)
    output: AudioOutputSettings = field(default_factory=AudioOutputSettings)


class FunctionDeclaration(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


class McpDeclaration(Struct, tag_field="type", tag="mcp"):
    server_label: str


class NamedTool(Struct, forbid_unknown_fields=True):
    type: Literal["function", "mcp"]
    name: str | None = None
    server_label: str | None = None


class PromptReference(Struct, forbid_unknown_fields=True):
    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class ReasoningSettings(Struct, forbid_unknown_fields=True):
    effort: str | None = None


class TracingSettings(Struct, forbid_unknown_fields=True):
    workflow_name: str | None = None
    group_id: str | None = None
    metadata: Any = None


class RetentionRatio(Struct, tag_field="type", tag="retention_ratio", forbid_unknown_fields=True):
    retention_ratio: Annotated[float, Meta(ge=0, le=1)]
    token_limits: dict[str, Any] | None = None


Modalities = Annotated[list[Literal["audio", "text"]], Meta(min_length=1, max_length=1)]
MaxTokens = Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"]
ToolChoice = Literal["auto", "none", "required"] | NamedTool

# Settings that are validated, and then kept as the client sent them.
_OPAQUE_SETTINGS: dict[str, Any] = {
    "tool_choice": ToolChoice,
    "max_output_tokens": MaxTokens,
    "prompt": PromptReference | None,
    "reasoning": ReasoningSettings | None,
    "tracing": TracingSettings | Literal["auto"] | None,
    "truncation": RetentionRatio | Literal["auto", "disabled"] | None,
}


class EngineSessionSettings(Struct, forbid_unknown_fields=True):
    """The settings of a session, in the structure of the protocol."""

    type: Literal["realtime"] = "realtime"
    model: str = "local"
    instructions: str = ""
    output_modalities: Modalities = field(default_factory=lambda: ["audio"])
    audio: AudioSettings = field(default_factory=AudioSettings)
    tools: list[FunctionDeclaration | McpDeclaration] = field(default_factory=list)
    tool_choice: Any = "auto"
    max_output_tokens: Any = "inf"
    parallel_tool_calls: bool = True
    prompt: Any = None
    reasoning: Any = None
    tracing: Any = None
    truncation: Any = "auto"
    include: list[str] | None = None

    @property
    def input_codec(self) -> AudioCodec:
        return CODECS[_get_tag(self.audio.input.format)]

    @property
    def output_codec(self) -> AudioCodec:
        return CODECS[_get_tag(self.audio.output.format)]


class ResponseSettings(Struct, forbid_unknown_fields=True):
    """The options of one response in ``response.create``."""

    conversation: Literal["auto", "none"] = "auto"
    input: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None
    instructions: str | None = None
    output_modalities: Modalities | None = None
    audio: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_output_tokens: Any = None
    parallel_tool_calls: bool | None = None
    prompt: Any = None
    reasoning: Any = None

    def apply_to(self, session: EngineSessionSettings) -> EngineSessionSettings:
        """Return the settings of the session, overridden by the options that are set here."""
        response_only = ("conversation", "input", "metadata")
        overrides = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if name not in response_only and value is not None
        }
        return merge_settings(session, overrides, param_prefix="response")


# Objects at these paths are merged key by key; all other values are replaced.
_MERGED_PATHS = frozenset(
    ["", "audio", "audio.input", "audio.output", "audio.input.turn_detection", "audio.input.noise_reduction"]
)
_ERROR_PATH = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.S)
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.*)`")


def merge_settings(
    settings: EngineSessionSettings, changes: Mapping[str, Any], *, param_prefix: str = "session"
) -> EngineSessionSettings:
    """Return the settings with changes applied. Raises :class:`InvalidRequest` with the invalid parameter."""
    merged = _merge(msgspec.to_builtins(settings), changes, "")
    result: EngineSessionSettings = convert(merged, EngineSessionSettings, param_prefix=param_prefix)
    for name, kind in _OPAQUE_SETTINGS.items():
        convert(getattr(result, name), kind, param_prefix=f"{param_prefix}.{name}")
    return result


def convert(value: Any, target_type: Any, *, param_prefix: str) -> Any:
    """Convert a value to ``target_type``. Raises :class:`InvalidRequest` with the path of the invalid parameter."""
    try:
        return msgspec.convert(value, target_type)
    except msgspec.ValidationError as error:
        match = _ERROR_PATH.match(str(error))
        problem, path = (str(error), "") if match is None else (match["problem"], match["path"] or "")
        param = ".".join(part for part in (param_prefix, path) if part)
        unknown = _UNKNOWN_FIELD.search(problem)
        if unknown is not None:
            param = f"{param}.{unknown['name']}".strip(".")
            raise InvalidRequest("unknown_parameter", f"Unknown parameter: '{param}'.", param=param) from None
        raise InvalidRequest("invalid_value", f"Invalid value for '{param}': {problem}.", param=param) from None


def settings_to_wire(settings: EngineSessionSettings) -> dict[str, Any]:
    """Return the settings as JSON values, as a ``session`` frame contains them."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return values


def _merge(old: Any, new: Any, path: str) -> Any:
    if path not in _MERGED_PATHS or not isinstance(old, dict) or not isinstance(new, Mapping):
        return new
    if "type" in new and "type" in old and new["type"] != old["type"]:
        return new
    inner = {name: _merge(old.get(name), value, f"{path}.{name}".strip(".")) for name, value in new.items()}
    return {**old, **inner}


def _get_tag(struct: Any) -> str:
    tag: str = type(struct).__struct_config__.tag
    return tag
