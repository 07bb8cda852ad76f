"""What models have consumed: tokens and requests, added up over a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(slots=True)
class InputTokensDetails:
    """Input tokens that the provider's cache answered or took in."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0

    @classmethod
    def coerce(cls, value: Any) -> Self:
        """The details in a dict, in a provider's object, or none of them."""
        return cls(_read_count(value, "cached_tokens"), _read_count(value, "cache_write_tokens"))

    def add(self, other: "InputTokensDetails") -> None:
        self.cached_tokens += other.cached_tokens
        self.cache_write_tokens += other.cache_write_tokens


@dataclass(slots=True)
class OutputTokensDetails:
    """Output tokens that were spent on thinking."""

    reasoning_tokens: int = 0

    @classmethod
    def coerce(cls, value: Any) -> Self:
        """The details in a dict, in a provider's object, or none of them."""
        return cls(_read_count(value, "reasoning_tokens"))

    def add(self, other: "OutputTokensDetails") -> None:
        self.reasoning_tokens += other.reasoning_tokens


@dataclass(slots=True)
class RequestUsage:
    """What a single request consumed."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


@dataclass
class Usage:
    """What a run has consumed so far. ``request_usage_entries`` tells its requests apart where that is known."""

    requests: int = 0
    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = field(default_factory=InputTokensDetails)
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)
    total_tokens: int = 0
    request_usage_entries: list[RequestUsage] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.input_tokens_details, InputTokensDetails):
            self.input_tokens_details = InputTokensDetails.coerce(self.input_tokens_details)
        if not isinstance(self.output_tokens_details, OutputTokensDetails):
            self.output_tokens_details = OutputTokensDetails.coerce(self.output_tokens_details)

    def add(self, other: "Usage") -> None:
        """Count ``other`` in. A usage of one request becomes an entry of its own; ``other`` is not kept."""
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
        """The same numbers as those of a single request."""
        return RequestUsage(
            self.input_tokens,
            self.output_tokens,
            self.total_tokens,
            InputTokensDetails.coerce(self.input_tokens_details),
            OutputTokensDetails.coerce(self.output_tokens_details),
        )


def _read_count(value: Any, name: str) -> int:
    found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return found or 0
