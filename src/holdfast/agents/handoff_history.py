"""Ready-made changes to what the next agent is given: the past as one message, or without its tool calls."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.agents.handoffs import HandoffHistoryMapper, HandoffInputData
from holdfast.agents.types import RunItemLike
from holdfast.base.items import Item
from holdfast.base.pairing import CALL_OF, OUTPUT_OF, kind_of


@dataclass
class _Wrappers:
    start: str = "<CONVERSATION HISTORY>"
    end: str = "</CONVERSATION HISTORY>"


_wrappers = _Wrappers()
_LEAD = "What was said before, between the user and the agents in charge until now:"
_LINE = re.compile(r"\d+\. (?:(\w+): )?(.*)", re.DOTALL)
_SILENT_ITEMS = frozenset(["reasoning_item", "tool_approval_item"])
_SPOKEN_ITEMS = frozenset(["message_output_item", "input_item", "compaction_item"])


def set_conversation_history_wrappers(*, start: str | None = None, end: str | None = None) -> None:
    """Change the lines around a nested history, for the whole program; ``None`` leaves one as it is."""
    _wrappers.start = _wrappers.start if start is None else start
    _wrappers.end = _wrappers.end if end is None else end


def reset_conversation_history_wrappers() -> None:
    """Go back to the usual lines."""
    _wrappers.start, _wrappers.end = _Wrappers.start, _Wrappers.end


def get_conversation_history_wrappers() -> tuple[str, str]:
    """The lines before and after a nested history."""
    return _wrappers.start, _wrappers.end


def nest_handoff_history(
    handoff_input_data: HandoffInputData, *, history_mapper: HandoffHistoryMapper | None = None
) -> HandoffInputData:
    """Give the next agent the past as one message instead of as turns of its own.

    A past that was nested before is unpacked first, so that it never nests twice. The run's own record,
    ``new_items``, stays complete.
    """
    data = handoff_input_data
    said = _unnested(_as_items(data.input_history))
    said += [item.to_input_item() for item in (*data.pre_handoff_items, *data.new_items) if _is_told(item)]
    mapped = (history_mapper or default_handoff_history_mapper)([dict(item) for item in said])
    return data.clone(input_history=tuple(mapped), pre_handoff_items=(), input_items=())


def default_handoff_history_mapper(transcript: list[Item]) -> list[Item]:
    """The transcript as one assistant message, an item to a line."""
    lines = [f"{number}. {_told(item)}" for number, item in enumerate(transcript, 1)] or ["(nothing yet)"]
    return [{"role": "assistant", "content": "\n".join([_LEAD, _wrappers.start, *lines, _wrappers.end])}]


def remove_all_tools(handoff_input_data: HandoffInputData) -> HandoffInputData:
    """Give the next agent only what was said: no tool calls, no outputs, no reasoning that led to them."""
    data = handoff_input_data
    history = data.input_history
    return data.clone(
        input_history=history if isinstance(history, str) else tuple(item for item in history if not _is_tool(item)),
        pre_handoff_items=_spoken(data.pre_handoff_items),
        new_items=_spoken(data.new_items),
        input_items=None if data.input_items is None else _spoken(data.input_items),
    )


def _as_items(history: str | Sequence[Item]) -> list[Item]:
    return [{"role": "user", "content": history}] if isinstance(history, str) else list(history)


def _is_told(item: RunItemLike) -> bool:
    return item.type not in _SILENT_ITEMS


def _spoken(items: Iterable[RunItemLike]) -> tuple[RunItemLike, ...]:
    return tuple(item for item in items if item.type in _SPOKEN_ITEMS)


def _is_tool(item: Item) -> bool:
    kind = kind_of(item)
    return kind in OUTPUT_OF or kind in CALL_OF or kind.endswith("_call") or kind in ("reasoning", "mcp_list_tools")


def _told(item: Item) -> str:
    """An item on one line. Only what can be read back from there is put plainly."""
    role, content = item.get("role"), item.get("content")
    if item.keys() <= {"role", "content", "type"} and isinstance(role, str) and isinstance(content, str):
        plain = f"{role}: {content}"
        if _read(f"1. {plain}") == {"role": role, "content": content} and "\n" not in plain:
            return plain
    return json.dumps(item, ensure_ascii=False, default=str)


def _unnested(items: list[Item]) -> list[Item]:
    found: list[Item] = []
    for item in items:
        if kind_of(item) != "reasoning":
            found.extend(_unpacked(item) or [item])
    return found


def _unpacked(item: Item) -> list[Item] | None:
    """The items inside a nested history; ``None`` for every other message."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, str) or not content.startswith(_LEAD):
        return None
    lines = content.split("\n")
    if len(lines) < 3 or lines[1] != _wrappers.start or lines[-1] != _wrappers.end:
        return None
    return [part for line in lines[2:-1] if (part := _read(line)) is not None]


def _read(line: str) -> Item | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    if match[1]:
        return {"role": match[1], "content": match[2]}
    try:
        item = json.loads(match[2])
    except ValueError:
        return None
    return item if isinstance(item, dict) else None
