"""The messages between a page and a call: JSON, and the caller's audio as binary messages."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from standfast.realtime.events import AnyRealtimeEvent
from standfast.realtime.items import RealtimeItem


class Text(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """A text message from the caller."""

    text: str


class Interrupt(msgspec.Struct, frozen=True, tag="interrupt", forbid_unknown_fields=True):
    """Stop speaking."""


class Played(msgspec.Struct, frozen=True, tag="played", forbid_unknown_fields=True):
    """The page has played so many more milliseconds of a part."""

    item_id: str
    content_index: int
    ms: float


class Decide(msgspec.Struct, frozen=True, tag="decide", forbid_unknown_fields=True):
    """A decision about a tool call; it needs the role of an approver."""

    call_id: str
    decision: Literal["approve", "reject"]
    always: bool = False
    message: str | None = None


class HangUp(msgspec.Struct, frozen=True, tag="hang_up", forbid_unknown_fields=True):
    """End the call."""


PageMessage = Text | Interrupt | Played | Decide | HangUp
page_message_decoder: msgspec.json.Decoder[PageMessage] = msgspec.json.Decoder(PageMessage)


class HistoryChanges:
    """Finds out which items of a call have changed, so that a message does not grow with the call."""

    def __init__(self) -> None:
        self._known: dict[str, RealtimeItem] = {}

    def describe(self, history: Sequence[RealtimeItem]) -> dict[str, Any]:
        """Return the message about a history: items that are new or other than before, and ids that are gone."""
        changed = [item for item in history if self._known.get(item.item_id) != item]
        removed = self._known.keys() - {item.item_id for item in history}
        self._known = {item.item_id: item for item in history}
        items = [item.model_dump(mode="json") for item in changed]
        return {"type": "history_updated", "items": items, "removed": sorted(removed)}

    def add(self, item: RealtimeItem) -> dict[str, Any]:
        """Return the message about a new item."""
        self._known[item.item_id] = item
        return {"type": "history_updated", "items": [item.model_dump(mode="json")], "removed": []}


def describe_event(event: AnyRealtimeEvent) -> dict[str, Any] | None:
    """Return the message about an event, or ``None`` for one that pages do not need."""
    described = _describe(event)
    return None if described is None else {"type": event.type} | described


def _describe(event: Any) -> dict[str, Any] | None:
    match event.type:
        case "audio":
            data = base64.b64encode(event.audio.data).decode()
            return {"item_id": event.item_id, "content_index": event.content_index, "data": data}
        case "audio_end" | "audio_interrupted":
            return {"item_id": event.item_id, "content_index": event.content_index}
        case "transcript_delta":
            return {"item_id": event.item_id, "delta": event.delta, "response_id": event.response_id}
        case "agent_start" | "agent_end":
            return {"agent": event.agent.name, "response_id": event.response_id}
        case "agent_changed":
            return {"from_agent": event.from_agent.name, "to_agent": event.to_agent.name, "reason": event.reason}
        case "tool_start":
            return {"agent": event.agent.name, "tool": event.tool.name, "arguments": event.arguments} | _get_call(event)
        case "tool_end":
            return {"agent": event.agent.name, "tool": event.tool.name, "output": str(event.output)} | _get_call(event)
        case "tool_approval_required":
            return {"agent": event.agent.name, "tool": event.tool.name, "arguments": event.arguments} | _get_call(event)
        case "tool_approval_expired":
            return _get_call(event)
        case "guardrail_tripped":
            names = [result.guardrail.get_name() for result in event.guardrail_results]
            return {"guardrails": names, "response_id": event.response_id}
        case "error":
            return {"message": str(event.error)}
        case "metric":
            return {
                name: value
                for name in getattr(event, "__slots__", ())
                if name not in ("info", "type") and isinstance(value := getattr(event, name), str | int | float | None)
            }
        case "response_failed" | "response_incomplete" | "reconnecting" | "reconnected" | "events_dropped":
            return {}
        case "session_closed":
            return {"reason": event.report.reason}
    return None


def _get_call(event: Any) -> dict[str, Any]:
    return {"call_id": event.call_id}
