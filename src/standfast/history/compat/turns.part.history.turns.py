"""A history as turns: a user speaks, and everything until they speak again is the answer. Nothing here does I/O."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.base.items import Item, extract_text
from holdfast.history.codec import DecodedRecord

_PREVIEW_LENGTH = 100
_TOOL_NAMES = {"tool_search_call": "tool_search"}


class Turn(msgspec.Struct, frozen=True):
    """What belongs to a user's message, which is the first entry. Number 0 is what stands before the first one."""

    number: int
    entries: list[DecodedRecord]

    @property
    def location(self) -> tuple[int, int]:
        """Where the user's message is stored: the turn is this one as long as that is shown."""
        row = self.entries[0].row
        return row.tape, row.seq

    @property
    def content(self) -> Any:
        """What the user said, as it was given."""
        return self.entries[0].item.get("content", "")

    @property
    def text(self) -> str:
        """What the user said, on one line of JSON unless it is a text."""
        return self.content if isinstance(self.content, str) else json.dumps(self.content, ensure_ascii=False)

    @property
    def preview(self) -> str:
        return self.text if len(self.text) <= _PREVIEW_LENGTH else self.text[:_PREVIEW_LENGTH] + "..."

    def contains(self, term: str) -> bool:
        """Whether the user said this, upper and lower case being the same."""
        return term.casefold() in extract_text({"content": self.content}).casefold()


def split_into_turns(entries: Iterable[DecodedRecord]) -> list[Turn]:
    """The history cut before every user message."""
    turns = [Turn(0, [])]
    for entry in entries:
        if entry.item.get("role") == "user":
            turns.append(Turn(len(turns), []))
        turns[-1].entries.append(entry)
    return [turn for turn in turns if turn.entries]


def classify_item(item: Item) -> str:
    """``user`` and ``assistant`` for what they said, else the item's type."""
    role, kind = item.get("role"), item.get("type")
    if role in ("user", "assistant"):
        return str(role)
    return kind if isinstance(kind, str) and kind else "other"


def get_tool_name(item: Item) -> str | None:
    """The tool that an item calls, or asks to call: its name with its namespace or server, else the kind of call."""
    kind = classify_item(item)
    if not is_tool_call(item) and kind != "mcp_approval_request":
        return None
    parts = [item.get("namespace") or item.get("server_label"), item.get("name")]
    return ".".join(str(part) for part in parts if part) or _TOOL_NAMES.get(kind, kind)


def is_tool_call(item: Item) -> bool:
    """Whether the item is a call of a tool, whoever makes it."""
    return classify_item(item).endswith("_call")
