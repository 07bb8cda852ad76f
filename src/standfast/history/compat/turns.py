"""What is known of a session besides its items: when they were written, and what answering them cost."""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from standfast.base.items import Item, extract_text
from standfast.base.usage import InputTokensDetails, OutputTokensDetails
from standfast.history.codec import DecodedRecord
from standfast.store.contract import Backend, SessionRecord, Splice


class WriteTime(msgspec.Struct, frozen=True, tag="written"):
    """From this place on, a tape was written at this time or later."""

    tape: int
    start: int
    at: float


class TurnUsage(msgspec.Struct, frozen=True, tag="spent"):
    """What a run cost that answered the user's message at this place, in one branch."""

    branch: str
    tape: int
    seq: int
    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, Any]
    output_tokens_details: dict[str, Any]

    @classmethod
    def from_usage(cls, usage: Any, *, branch: str, location: tuple[int, int]) -> Self:
        """What a :class:`~standfast.Usage` says, or its like of another framework."""
        return cls(
            branch,
            *location,
            usage.requests,
            usage.input_tokens,
            usage.output_tokens,
            usage.total_tokens,
            msgspec.to_builtins(InputTokensDetails.coerce(usage.input_tokens_details)),
            msgspec.to_builtins(OutputTokensDetails.coerce(usage.output_tokens_details)),
        )

    def get_counts(self) -> Item:
        """The numbers, by their names."""
        found: Item = msgspec.to_builtins(self)
        return {name: value for name, value in found.items() if name not in ("type", "branch", "tape", "seq")}


_LOG_ID = re.compile(r"log_[0-9a-f]{32}")
_decoder: msgspec.json.Decoder[WriteTime | TurnUsage] = msgspec.json.Decoder(WriteTime | TurnUsage)


def get_log_id(session_id: str) -> str:
    """The id under which the log of a session is stored; sessions with long ids have one too."""
    return f"log_{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"


async def is_turn_log(backend: Backend, record: SessionRecord) -> bool:
    """Whether this is the log of a session and no session itself."""
    if not _LOG_ID.fullmatch(record.session_id):
        return False
    page = await backend.read(record.session_id, stop=1)
    return page is not None and any(_decode_entry(row.data) is not None for row in page.rows)


def build_log_append(session_id: str, entry: WriteTime | TurnUsage) -> Splice:
    """The operation that appends an entry to a session's log."""
    return Splice(session_id=get_log_id(session_id), add=(msgspec.json.encode(entry),))


class TurnLog:
    """A session's log, as it was when it was read. Entries are bound to places on tapes, which are never reused:

    what is said there of an item that is no longer shown is said of nothing.
    """

    def __init__(self, entries: list[WriteTime | TurnUsage]) -> None:
        self._write_times: dict[int, list[WriteTime]] = {}
        self._usage: dict[tuple[str, int, int], TurnUsage] = {}
        for entry in entries:
            if isinstance(entry, TurnUsage):
                self._usage[entry.branch, entry.tape, entry.seq] = entry
            else:
                self._write_times.setdefault(entry.tape, []).append(entry)
        for marks in self._write_times.values():
            marks.sort(key=lambda mark: mark.start)

    @classmethod
    async def read(cls, backend: Backend, session_id: str) -> Self:
        page = await backend.read(get_log_id(session_id))
        return cls([entry for row in (page.rows if page else []) if (entry := _decode_entry(row.data)) is not None])

    def find_usage(self, branch: str, location: tuple[int, int]) -> TurnUsage | None:
        """What was stored last about the message at this place of a branch."""
        return self._usage.get((branch, *location))

    def get_write_time(self, location: tuple[int, int], *, default: float) -> str:
        """When that place was written, in UTC to the second; ``at_least`` where the log does not know."""
        tape, seq = location
        marks = self._write_times.get(tape, [])
        index = bisect_right(marks, seq, key=lambda mark: mark.start)
        return format_timestamp(marks[index - 1].at if index else default)


def format_timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _decode_entry(data: bytes | None) -> WriteTime | TurnUsage | None:
    try:
        return _decoder.decode(data or b"")
    except msgspec.MsgspecError:
        return None


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
