"""Conversion of protocol items and usage to the types of the session. Audio bytes of items are dropped."""

from collections.abc import Mapping
from typing import Any

from standfast.base.collections import BoundedDict
from standfast.base.usage import InputTokensDetails, Usage
from standfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    InputText,
    RealtimeItem,
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
)
from standfast.realtime.model import RealtimeModelUserInput
from standfast.realtime.model_events import (
    RealtimeModelCachedTokensDetails,
    RealtimeModelInputTokensDetails,
    RealtimeModelOutputTokensDetails,
    RealtimeModelUsageEvent,
)

_KINDS = ("text_tokens", "audio_tokens", "image_tokens")


def build_usage_event(usage: Mapping[str, Any], response_id: str | None) -> RealtimeModelUsageEvent:
    total = Usage(
        requests=1,
        input_tokens=usage.get("input_tokens") or 0,
        output_tokens=usage.get("output_tokens") or 0,
        total_tokens=usage.get("total_tokens") or 0,
        input_tokens_details=InputTokensDetails.coerce(usage.get("input_token_details")),
    )
    return RealtimeModelUsageEvent(
        total,
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


_MAX_REMEMBERED_ITEMS = 512


def parse_message_item(item: Mapping[str, Any], previous_item_id: str | None) -> RealtimeItem | None:
    """Parse a message item; returns ``None`` for an unknown role."""
    ids = {"item_id": item["id"], "previous_item_id": previous_item_id}
    content = item.get("content") or ()
    match item.get("role"):
        case "user":
            return UserMessageItem(**ids, content=[part for raw in content if (part := _parse_input_part(raw))])
        case "system":
            return SystemMessageItem(**ids, content=[InputText(text=raw.get("text")) for raw in content])
        case "assistant":
            status = item.get("status")
            parts = [output for raw in content if (output := _parse_output_part(raw))]
            return AssistantMessageItem(**ids, status=status, content=parts)
    return None


def _parse_input_part(raw: Mapping[str, Any]) -> InputText | InputAudio | InputImage | None:
    match raw.get("type"):
        case "input_text":
            return InputText(text=raw.get("text"))
        case "input_audio":
            return InputAudio(transcript=raw.get("transcript"))
        case "input_image":
            return InputImage(image_url=raw.get("image_url"), detail=raw.get("detail"))
    return None


def _parse_output_part(raw: Mapping[str, Any]) -> AssistantText | AssistantAudio | None:
    match raw.get("type"):
        case "output_text" | "text":
            return AssistantText(text=raw.get("text"))
        case "output_audio" | "audio":
            return AssistantAudio(transcript=raw.get("transcript"))
    return None


def build_user_item(user_input: RealtimeModelUserInput) -> dict[str, Any]:
    """Build the protocol item for text or a structured message of the user."""
    if isinstance(user_input, str):
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": user_input}]}
    return {**user_input, "content": [dict(part) for part in user_input["content"]]}


class ItemTracker:
    """Remembers facts of items that the server does not repeat: the previous item, and the call of an output.

    It keeps a bounded number of the latest items.
    """

    def __init__(self) -> None:
        self._previous: BoundedDict[str, str] = BoundedDict(_MAX_REMEMBERED_ITEMS)
        self._calls: BoundedDict[str, RealtimeToolCallItem] = BoundedDict(_MAX_REMEMBERED_ITEMS)
        self._announced_calls: BoundedDict[str, None] = BoundedDict(_MAX_REMEMBERED_ITEMS)

    def resolve_previous_id(self, item_id: str, previous_item_id: str | None) -> str | None:
        """Return the id of the previous item: the given one, or else the one that was remembered."""
        if previous_item_id is not None:
            self._previous[item_id] = previous_item_id
        return self._previous.get(item_id)

    def record_call(self, item: Mapping[str, Any], previous_item_id: str | None) -> RealtimeToolCallItem:
        """Remember a tool call and return its item, still in progress."""
        call = RealtimeToolCallItem(
            item_id=item["id"],
            previous_item_id=previous_item_id,
            call_id=item["call_id"],
            status="in_progress",
            arguments=item["arguments"],
            name=item["name"],
        )
        self._calls[item["call_id"]] = call
        return call

    def claim_call(self, call_id: str) -> bool:
        """Return True the first time a call is seen, which is when it must be made."""
        is_first = call_id not in self._announced_calls
        self._announced_calls[call_id] = None
        return is_first

    def match_output(self, item: Mapping[str, Any]) -> RealtimeToolCallItem | None:
        """Return the completed call of an output; ``None`` if the call was never seen."""
        call = self._calls.get(item["call_id"])
        if call is None:
            return None
        return call.model_copy(update={"status": "completed", "output": item["output"], "output_item_id": item["id"]})
