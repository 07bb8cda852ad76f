"""Input filters for handoffs: the history as a summary, or the history without tool calls."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from standfast.agents.handoffs import HandoffHistoryMapper, HandoffInputData
from standfast.agents.types import RunItemLike
from standfast.base.item_pairs import CALL_TYPE_BY_OUTPUT_TYPE, OUTPUT_TYPE_BY_CALL_TYPE, get_item_type
from standfast.base.items import Item


@dataclass
class _HistoryWrappers:
    start: str = "<CONVERSATION HISTORY>"
    end: str = "</CONVERSATION HISTORY>"


_wrappers = _HistoryWrappers()
_PREAMBLE = "For context, here is the conversation so far between the user and the previous agent:"
_EMPTY = "(no previous turns recorded)"
_LINE_PATTERN = re.compile(r"\d+\. (?:(\w+)(?: \(([^()]*)\))?: )?(.*)", re.DOTALL)
_MESSAGE_ITEM_TYPES = frozenset(["message_output_item", "input_item", "compaction_item"])


def set_conversation_history_wrappers(*, start: str | None = None, end: str | None = None) -> None:
    """Change the lines around a nested history for the whole program; ``None`` leaves a line unchanged."""
    _wrappers.start = _wrappers.start if start is None else start
    _wrappers.end = _wrappers.end if end is None else end


def reset_conversation_history_wrappers() -> None:
    """Restore the default lines around a nested history."""
    _wrappers.start, _wrappers.end = _HistoryWrappers.start, _HistoryWrappers.end


def get_conversation_history_wrappers() -> tuple[str, str]:
    """Return the lines before and after a nested history."""
    return _wrappers.start, _wrappers.end


def nest_handoff_history(
    handoff_input_data: HandoffInputData, *, history_mapper: HandoffHistoryMapper | None = None
) -> HandoffInputData:
    """Summarise the history, so that the next agent does not take it for turns of its own.

    The messages of the last turn stay as they are, with a summary of what is before, between and after them; a
    ``history_mapper`` gets everything. A history that is already nested is unpacked first, so it is never nested twice.
    ``new_items``, the record of the run, stays complete.
    """
    data = handoff_input_data
    earlier = _flatten_history(_as_items(data.input_history)) + _to_items(data.pre_handoff_items)
    if history_mapper is not None:
        mapped = history_mapper([dict(item) for item in earlier + _to_items(data.new_items)])
    else:
        mapped = _summarise_around_messages(earlier, data.new_items)
    return data.clone(input_history=tuple(mapped), pre_handoff_items=(), input_items=())


def default_handoff_history_mapper(transcript: list[Item]) -> list[Item]:
    """Return the transcript as one assistant message with one line for each item."""
    lines = [f"{number}. {_format_item(item)}" for number, item in enumerate(transcript, 1)] or [_EMPTY]
    return [{"role": "assistant", "content": "\n".join([_PREAMBLE, _wrappers.start, *lines, _wrappers.end])}]


def remove_all_tools(handoff_input_data: HandoffInputData) -> HandoffInputData:
    """Remove tool calls, their outputs and reasoning, so that the next agent receives only messages."""
    data = handoff_input_data
    history = data.input_history
    return data.clone(
        input_history=history
        if isinstance(history, str)
        else tuple(item for item in history if not _is_tool_item(item)),
        pre_handoff_items=_filter_messages(data.pre_handoff_items),
        new_items=_filter_messages(data.new_items),
        input_items=None if data.input_items is None else _filter_messages(data.input_items),
    )


def _as_items(history: str | Sequence[Item]) -> list[Item]:
    return [{"role": "user", "content": history}] if isinstance(history, str) else list(history)


def _to_items(items: Iterable[RunItemLike]) -> list[Item]:
    return [item.to_input_item() for item in items if item.type != "tool_approval_item"]


def _summarise_around_messages(earlier: list[Item], new_items: Sequence[RunItemLike]) -> list[Item]:
    result: list[Item] = []
    unsaid = list(earlier)
    for item in new_items:
        if item.type != "message_output_item":
            unsaid += _to_items([item])
            continue
        result += default_handoff_history_mapper(unsaid) if unsaid else []
        result.append(item.to_input_item())
        unsaid = []
    return result + (default_handoff_history_mapper(unsaid) if unsaid or not result else [])


def _filter_messages(items: Iterable[RunItemLike]) -> tuple[RunItemLike, ...]:
    return tuple(item for item in items if item.type in _MESSAGE_ITEM_TYPES)


def _is_tool_item(item: Item) -> bool:
    kind = get_item_type(item)
    return (
        kind in OUTPUT_TYPE_BY_CALL_TYPE
        or kind in CALL_TYPE_BY_OUTPUT_TYPE
        or kind.endswith("_call")
        or kind in ("reasoning", "mcp_list_tools")
    )


def _format_item(item: Item) -> str:
    """Return an item as one line: ``role (name): content`` if that can be parsed again, else JSON."""
    fields = {name: part for name, part in item.items() if name != "type"}
    fields["content"] = item.get("content") or ""
    if fields.keys() <= {"role", "content", "name"} and all(isinstance(part, str) for part in fields.values()):
        name = f" ({fields['name']})" if "name" in fields else ""
        plain = f"{fields.get('role')}{name}: {fields['content']}"
        if _parse_line(f"1. {plain}") == fields and "\n" not in plain:
            return plain
    return json.dumps(item, ensure_ascii=False, default=str)


def _flatten_history(items: list[Item]) -> list[Item]:
    flat: list[Item] = []
    for item in items:
        nested = _parse_nested_history(item)
        flat.extend([item] if nested is None else nested)
    return flat


def _parse_nested_history(item: Item) -> list[Item] | None:
    """Return the items inside a nested history; ``None`` if the item is not one."""
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, str) or not content.startswith(_PREAMBLE):
        return None
    lines = content.split("\n")
    if len(lines) < 3 or lines[1] != _wrappers.start or lines[-1] != _wrappers.end:
        return None
    return [part for line in lines[2:-1] if (part := _parse_line(line)) is not None]


def _parse_line(line: str) -> Item | None:
    match = _LINE_PATTERN.fullmatch(line)
    if match is None:
        return None
    role, name, content = match.groups()
    if role:
        return {"role": role, "content": content} | ({} if name is None else {"name": name})
    try:
        item = json.loads(content)
    except ValueError:
        return None
    return item if isinstance(item, dict) else None
