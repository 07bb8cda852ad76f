"""A history as turns: a user speaks, and everything until they speak again is the answer. Nothing here does I/O."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.base.items import Item, text_of
from holdfast.history.codec import Decoded

_PREVIEW = 100
_NAMES = {"tool_search_call": "tool_search"}


class Turn(msgspec.Struct, frozen=True):
    """What belongs to a user's message, which is the first entry. Number 0 is what stands before the first one."""

    number: int
    entries: list[Decoded]

    @property
    def place(self) -> tuple[int, int]:
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
        return self.text if len(self.text) <= _PREVIEW else self.text[:_PREVIEW] + "..."

    def contains(self, term: str) -> bool:
        """Whether the user said this, upper and lower case being the same."""
        return term.casefold() in text_of({"content": self.content}).casefold()


def turns_of(entries: Iterable[Decoded]) -> list[Turn]:
    """The history cut before every user message."""
    turns = [Turn(0, [])]
    for entry in entries:
        if entry.item.get("role") == "user":
            turns.append(Turn(len(turns), []))
        turns[-1].entries.append(entry)
    return [turn for turn in turns if turn.entries]


def kind_of(item: Item) -> str:
    """``user`` and ``assistant`` for what they said, else the item's type."""
    role, kind = item.get("role"), item.get("type")
    if role in ("user", "assistant"):
        return str(role)
    return kind if isinstance(kind, str) and kind else "other"


def tool_of(item: Item) -> str | None:
    """The tool that an item calls, or asks to call: its name with its namespace or server, else the kind of call."""
    kind = kind_of(item)
    if not is_call(item) and kind != "mcp_approval_request":
        return None
    parts = [item.get("namespace") or item.get("server_label"), item.get("name")]
    return ".".join(str(part) for part in parts if part) or _NAMES.get(kind, kind)


def is_call(item: Item) -> bool:
    """Whether the item is a call of a tool, whoever makes it."""
    return kind_of(item).endswith("_call")
