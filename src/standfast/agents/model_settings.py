"""Settings for requests to a model, and the default model. ``None`` means the provider's default."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from standfast.agents.errors import InvalidDeclaration
from standfast.base.validation import is_number

S = TypeVar("S", bound="MergeableSettings")


TSettings = TypeVar("TSettings")


def coerce_settings(kind: type[TSettings], value: Any) -> TSettings:
    """Return settings of this dataclass as they are, or made from a dict.

    Raises :class:`InvalidDeclaration` for names that it does not have, and for everything else.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InvalidDeclaration(kind.__name__, f"expected settings or a dict, got {type(value).__name__}")
    unknown = set(value) - {one.name for one in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise InvalidDeclaration(kind.__name__, f"unknown settings: {', '.join(sorted(map(repr, unknown)))}")
    return kind(**value)


class MergeableSettings:
    """Settings that can override others: a value that is not ``None`` takes precedence."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def coerce(cls, value: Self | Mapping[str, Any]) -> Self:
        """Return settings as they are, or made from a dict; raise :class:`InvalidDeclaration` for unknown names."""
        return coerce_settings(cls, value)

    def resolve(self, override: Any) -> Self:
        """Return new settings in which the values set in ``override`` replace those of these settings."""
        if override is None:
            return self
        over = type(self).coerce(override)
        changes = {f.name: getattr(over, f.name) for f in fields(over) if getattr(over, f.name) is not None}
        for name, value in changes.items():
            current = getattr(self, name)
            if isinstance(current, MergeableSettings) and isinstance(value, MergeableSettings):
                changes[name] = current.resolve(value)
        return replace(self, **changes)

    def to_json_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values; functions are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: _to_plain(value) for name, value in values.items() if not callable(value) or value is None}


@dataclass
class ModelRetryBackoffSettings(MergeableSettings):
    """The delays between attempts, in seconds."""

    initial_delay: float | None = None
    """The delay before the first retry, by default 0.25."""
    max_delay: float | None = None
    """The longest delay, by default 2.0."""
    multiplier: float | None = None
    """By which factor each delay is longer than the one before it, by default 2.0."""
    jitter: bool | None = None
    """Whether up to a quarter is taken off each delay at random, by default True."""

    def __post_init__(self) -> None:
        for name in ("initial_delay", "max_delay", "multiplier"):
            _check_number(f"ModelRetryBackoffSettings.{name}", getattr(self, name), at_least=0)


ModelRetryBackoffInput: TypeAlias = ModelRetryBackoffSettings | dict[str, Any]


@dataclass
class ModelRetrySettings(MergeableSettings):
    """Whether and how often a failed request is retried. ``policy`` is a function and is never stored."""

    max_retries: int | None = None
    """How often a request is sent again. None or 0: never."""
    backoff: ModelRetryBackoffInput | None = None
    """The delays between attempts."""
    policy: Callable[..., Any] | None = None
    """Decides whether an error is retried; without one, nothing is."""

    def __post_init__(self) -> None:
        _check_number("ModelRetrySettings.max_retries", self.max_retries, at_least=0)
        if self.backoff is not None:
            self.backoff = ModelRetryBackoffSettings.coerce(self.backoff)
        if self.policy is not None and not callable(self.policy):
            raise InvalidDeclaration("ModelRetrySettings.policy", "must be a function of RetryPolicyContext")

    def to_json_dict(self) -> dict[str, Any]:
        settings = super().to_json_dict()
        settings.pop("policy", None)
        return settings


@dataclass
class MCPToolChoice:
    """A tool choice: the model must call this tool of this MCP server."""

    server_label: str
    name: str


ToolChoice: TypeAlias = Literal["auto", "required", "none"] | str | MCPToolChoice

_UNTRACED_SETTINGS = frozenset(["extra_query", "extra_body", "extra_headers", "extra_args", "preserve_raw_usage"])


_SETTING_TYPES: dict[str, Any] = {"tool_choice": (str, MCPToolChoice), "metadata": Mapping}
_SETTING_CHOICES = {"truncation": ("auto", "disabled"), "verbosity": ("low", "medium", "high")}


class Reasoning(dict[str, Any]):
    """Settings of a model's reasoning as a dict in the form of the API, whose entries are also attributes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __eq__(self, other: object) -> bool:
        dump = None if isinstance(other, Mapping) else getattr(other, "model_dump", None)
        return super().__eq__(other if dump is None else dump(exclude_unset=True))

    __hash__ = None

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dict, as the object of the provider's library does."""
        return dict(self)


@dataclass
class ModelSettings(MergeableSettings):
    """Settings for requests to a model. Not every provider supports every setting."""

    temperature: float | None = None
    """How random the answers are: 0 is the least."""
    top_p: float | None = None
    """Only the most likely words are considered, up to this share of the probability."""
    frequency_penalty: float | None = None
    """Makes words less likely the more often they have been used."""
    presence_penalty: float | None = None
    """Makes words less likely that have been used."""
    tool_choice: ToolChoice | None = None
    """``auto``, ``required``, ``none``, or the name of the tool that must be called."""
    parallel_tool_calls: bool | None = None
    """Whether one response may have several calls."""
    truncation: Literal["auto", "disabled"] | None = None
    """Whether the provider drops old items that do not fit."""
    max_tokens: int | None = None
    """The longest response, in tokens."""
    reasoning: Any = None
    """Settings of reasoning models, such as the effort."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """How long answers are."""
    metadata: dict[str, str] | None = None
    """Facts that the provider stores with the response."""
    store: bool | None = None
    """Whether the provider stores the response."""
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    """How long the provider keeps its cache of the prompt."""
    include_usage: bool | None = None
    """Whether a streamed response has the usage."""
    response_include: list[str] | None = None
    """Further parts of the response, by the names of the API."""
    top_logprobs: int | None = None
    """The number of alternatives for each token."""
    extra_query: Mapping[str, object] | None = None
    """Further parameters of the URL."""
    extra_body: object | None = None
    """Further fields of the request."""
    extra_headers: Mapping[str, Any] | None = None
    """Further headers of the request."""
    extra_args: dict[str, Any] | None = None
    """Further arguments for the client of the provider."""
    retry: ModelRetrySettings | None = None
    """Which failed requests are repeated, how often, and after which time."""
    context_management: list[dict[str, Any]] | None = None
    """How the provider shortens long contexts."""
    prompt_cache_options: dict[str, Any] | None = None
    """Options of the provider's cache."""
    preserve_raw_usage: bool | None = None
    """Whether the usage is kept as the provider sent it."""
    timeout: float | None = None
    """Seconds that a request may take."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "max_tokens", "top_logprobs"):
            _check_number(f"ModelSettings.{name}", getattr(self, name))
        _check_number("ModelSettings.timeout", self.timeout, above=0)
        for name, kinds in _SETTING_TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise InvalidDeclaration(f"ModelSettings.{name}", f"has the wrong type: {value!r}")
        for name, choices in _SETTING_CHOICES.items():
            if getattr(self, name) not in (None, *choices):
                raise InvalidDeclaration(f"ModelSettings.{name}", f"must be one of {', '.join(choices)}")
        if isinstance(self.reasoning, Mapping):
            self.reasoning = Reasoning(self.reasoning)
        if self.retry is not None:
            self.retry = ModelRetrySettings.coerce(self.retry)

    def resolve(self, override: "ModelSettings | dict[str, Any] | None") -> "ModelSettings":
        """Return new settings in which the values set in ``override`` replace those of these settings.

        ``extra_args`` and ``retry`` are merged entry by entry; all other values are replaced.
        """
        merged = super().resolve(override)
        if merged is not self and self.extra_args and merged.extra_args is not self.extra_args:
            merged.extra_args = self.extra_args | (merged.extra_args or {})
        return merged

    def to_traceable_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, without those that may contain secrets."""
        return {name: value for name, value in self.to_json_dict().items() if name not in _UNTRACED_SETTINGS}


def _to_plain(value: Any) -> Any:
    if isinstance(value, MergeableSettings):
        return value.to_json_dict()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(part) for part in value]
    return value


def _check_number(where: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf) -> None:
    if value is None:
        return
    if not is_number(value):
        raise InvalidDeclaration(where, f"must be a finite number or None, got {value!r}")
    if value < at_least or value <= above:
        limit = f"greater than {above:g}" if value <= above else f"at least {at_least:g}"
        raise InvalidDeclaration(where, f"must be {limit}, got {value!r}")


DEFAULT_MODEL = "gpt-5.6-luna"

_EFFORT_BY_MODEL = {
    "gpt-5": "low",
    "gpt-5.1": "none",
    "gpt-5.2": "none",
    "gpt-5.2-codex": "low",
    "gpt-5.2-pro": "medium",
    "gpt-5.3-codex": "none",
    "gpt-5.4": "none",
    "gpt-5.4-mini": "none",
    "gpt-5.4-nano": "none",
    "gpt-5.4-pro": "medium",
    "gpt-5.5": "none",
    "gpt-5.6": "none",
    "gpt-5.6-luna": "none",
    "gpt-5.6-sol": "none",
    "gpt-5.6-terra": "none",
}
_DATE = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_CHAT_MODEL = re.compile(r"gpt-5(\.\d+)?-chat-latest")


def get_default_model() -> str:
    """Return the name of the model for agents without one: ``OPENAI_DEFAULT_MODEL``, or the built-in default."""
    return os.environ.get("OPENAI_DEFAULT_MODEL", "").lower() or DEFAULT_MODEL


def gpt_5_reasoning_settings_required(model_name: str) -> bool:
    """Return whether the model is one of the GPT-5 family that reasons."""
    return model_name.startswith("gpt-5") and _CHAT_MODEL.fullmatch(model_name) is None


def is_gpt_5_default() -> bool:
    """Return whether the default model is one of the GPT-5 family that reasons."""
    return gpt_5_reasoning_settings_required(get_default_model())


def get_default_model_settings(model: str | None = None) -> ModelSettings:
    """Return the settings that a model gets unless the program sets them: short answers and little reasoning."""
    name = get_default_model() if model is None else model
    if not gpt_5_reasoning_settings_required(name):
        return ModelSettings()
    effort = _EFFORT_BY_MODEL.get(_DATE.sub("", name))
    return ModelSettings(reasoning=None if effort is None else Reasoning(effort=effort), verbosity="low")


def get_implicit_settings(model: Any) -> ModelSettings:
    """Return the settings of an agent that declares none; ``model`` is a name, a model object or ``None``."""
    return get_default_model_settings(model) if model is None or isinstance(model, str) else ModelSettings()
