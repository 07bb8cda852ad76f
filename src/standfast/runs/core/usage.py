"""Usage in a saved run, and back."""

from typing import Any

from standfast.base.usage import InputTokensDetails, OutputTokensDetails, RequestUsage, Usage
from standfast.runs.core.state import UsageRecord


def to_usage_record(usage: Usage) -> UsageRecord:
    """What was consumed, for a run that is saved."""
    return UsageRecord(
        requests=usage.requests,
        input=usage.input_tokens,
        cached=usage.input_tokens_details.cached_tokens,
        cache_write=usage.input_tokens_details.cache_write_tokens,
        output=usage.output_tokens,
        reasoning=usage.output_tokens_details.reasoning_tokens,
        total=usage.total_tokens,
        entries=tuple(_to_request_record(entry) for entry in usage.request_usage_entries),
    )


def from_usage_record(record: UsageRecord) -> Usage:
    """What was consumed, for a run that goes on."""
    return Usage(
        requests=record.requests,
        input_tokens=record.input,
        input_tokens_details=InputTokensDetails(record.cached, record.cache_write),
        output_tokens=record.output,
        output_tokens_details=OutputTokensDetails(record.reasoning),
        total_tokens=record.total,
        request_usage_entries=[_from_request_record(entry) for entry in record.entries],
    )


def _to_request_record(entry: RequestUsage) -> UsageRecord:
    return UsageRecord(
        input=entry.input_tokens,
        cached=entry.input_tokens_details.cached_tokens,
        cache_write=entry.input_tokens_details.cache_write_tokens,
        output=entry.output_tokens,
        reasoning=entry.output_tokens_details.reasoning_tokens,
        total=entry.total_tokens,
    )


def _from_request_record(record: UsageRecord) -> RequestUsage:
    return RequestUsage(
        record.input,
        record.output,
        record.total,
        InputTokensDetails(record.cached, record.cache_write),
        OutputTokensDetails(record.reasoning),
    )


def usage_as_dict(usage: Usage) -> dict[str, Any]:
    """Usage in plain numbers, for traces."""
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.input_tokens_details.cached_tokens,
        "cache_write_tokens": usage.input_tokens_details.cache_write_tokens,
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
    }
