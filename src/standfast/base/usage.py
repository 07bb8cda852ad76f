"""Token and request counts of model calls, added up over a run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


class _Counts:
    """Counts that equal an object of the provider's library with the same ones."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return all(getattr(other, each.name, None) == getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, **_: Any) -> dict[str, int]:
        """Return the counts as a dict, as the objects of the provider's library do."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(slots=True, eq=False)
class InputTokensDetails(_Counts):
    """Input tokens that were read from or written to the provider's cache."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0

    @classmethod
    def coerce(cls, value: Any) -> Self:
        """Convert a dict or a provider's object. Missing counts become 0."""
        return cls(_read_count(value, "cached_tokens"), _read_count(value, "cache_write_tokens"))

    def add(self, other: "InputTokensDetails") -> None:
        self.cached_tokens += other.cached_tokens
        self.cache_write_tokens += other.cache_write_tokens


@dataclass(slots=True, eq=False)
class OutputTokensDetails(_Counts):
    """Output tokens that were spent on reasoning."""

    reasoning_tokens: int = 0

    @classmethod
    def coerce(cls, value: Any) -> Self:
        """Convert a dict or a provider's object. Missing counts become 0."""
        return cls(_read_count(value, "reasoning_tokens"))

    def add(self, other: "OutputTokensDetails") -> None:
        self.reasoning_tokens += other.reasoning_tokens


@dataclass(slots=True)
class RequestUsage:
    """The token counts of a single request."""

    input_tokens: int
    """Tokens that the model read."""
    output_tokens: int
    """Tokens that the model wrote."""
    total_tokens: int
    """Tokens read and written."""
    input_tokens_details: InputTokensDetails
    """How many of them came from a cache, and were written to it."""
    output_tokens_details: OutputTokensDetails
    """How many of them were reasoning."""


@dataclass
class Usage:
    """The counts of a run so far. ``request_usage_entries`` lists single requests as far as they are known."""

    requests: int = 0
    """Requests to models."""
    input_tokens: int = 0
    """Tokens that the models read."""
    input_tokens_details: InputTokensDetails = field(default_factory=InputTokensDetails)
    """How many of them came from a cache, and were written to it."""
    output_tokens: int = 0
    """Tokens that the models wrote."""
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)
    """How many of them were reasoning."""
    total_tokens: int = 0
    """Tokens read and written."""
    request_usage_entries: list[RequestUsage] = field(default_factory=list)
    """The usage of single requests, as far as it is known."""

    def __post_init__(self) -> None:
        if not isinstance(self.input_tokens_details, InputTokensDetails):
            self.input_tokens_details = InputTokensDetails.coerce(self.input_tokens_details)
        if not isinstance(self.output_tokens_details, OutputTokensDetails):
            self.output_tokens_details = OutputTokensDetails.coerce(self.output_tokens_details)

    def add(self, other: "Usage") -> None:
        """Add the counts of ``other``. A usage of exactly one request is also added to ``request_usage_entries``."""
        if other.request_usage_entries:
            self.request_usage_entries.extend(list(other.request_usage_entries))
        elif other.requests == 1 and other.total_tokens > 0:
            self.request_usage_entries.append(other.as_request())
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.total_tokens += other.total_tokens
        self.input_tokens_details.add(other.input_tokens_details)
        self.output_tokens_details.add(other.output_tokens_details)

    def as_request(self) -> RequestUsage:
        """Return the same counts as those of a single request."""
        read, written = self.input_tokens_details, self.output_tokens_details
        return RequestUsage(
            self.input_tokens,
            self.output_tokens,
            self.total_tokens,
            InputTokensDetails(read.cached_tokens, read.cache_write_tokens),
            OutputTokensDetails(written.reasoning_tokens),
        )


def _read_count(value: Any, name: str) -> int:
    count = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return count or 0
