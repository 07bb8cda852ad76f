"""What a response consumed, as its last message tells."""

from collections.abc import Mapping
from typing import Any

from holdfast.base.usage import InputTokensDetails, Usage
from holdfast.realtime.model_events import (
    RealtimeModelCachedTokensDetails,
    RealtimeModelInputTokensDetails,
    RealtimeModelOutputTokensDetails,
    RealtimeModelUsageEvent,
)

_KINDS = ("text_tokens", "audio_tokens", "image_tokens")


def build_usage_event(usage: Mapping[str, Any], response_id: str | None) -> RealtimeModelUsageEvent:
    spent = Usage(
        requests=1,
        input_tokens=usage.get("input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        total_tokens=usage.get("total_tokens") or 0,
        input_tokens_details=InputTokensDetails.coerce(usage.get("input_token_details")),
    )
    return RealtimeModelUsageEvent(
        spent,
        _parse_input_details(usage.get("input_token_details")),
        _parse_output_details(usage.get("output_token_details")),
        response_id=response_id,
    )


def _parse_input_details(details: Mapping[str, Any] | None) -> RealtimeModelInputTokensDetails | None:
    if details is None:
        return None
    cached = details.get("cached_tokens_details")
    text, audio, image = (details.get(kind) for kind in _KINDS)
    return RealtimeModelInputTokensDetails(
        text_tokens=text,
        audio_tokens=audio,
        image_tokens=image,
        cached_tokens=details.get("cached_tokens"),
        cached_tokens_details=RealtimeModelCachedTokensDetails(*(cached.get(kind) for kind in _KINDS))
        if cached
        else None,
    )


def _parse_output_details(details: Mapping[str, Any] | None) -> RealtimeModelOutputTokensDetails | None:
    if details is None:
        return None
    return RealtimeModelOutputTokensDetails(details.get("text_tokens"), details.get("audio_tokens"))
