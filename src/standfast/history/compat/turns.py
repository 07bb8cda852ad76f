"""Turns of a history, and the turn log with the times of writing and the usage of runs.

A turn is a user message and everything up to the next one. The turn log of a session is stored as a session of its own,
whose id is derived from that of the session; listings do not show it.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from standfast.base.items import Item
from standfast.base.text import extract_text
from standfast.base.usage import InputTokensDetails, OutputTokensDetails
from standfast.history.codec import DecodedRecord
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.operations import Splice
from standfast.store.records import HistoryPage, SessionRecord

_LOG_ID = re.compile(r"log_[0-9a-f]{32}")
_PREVIEW_LENGTH = 100
_TOOL_NAMES = {"tool_search_call": "tool_search"}


class WriteTime(msgspec.Struct, frozen=True, tag="written"):
    """The time at which a tape was written from ``start`` on."""

    tape: int
    start: int
    at: float


class TurnUsage(msgspec.Struct, frozen=True, tag="spent"):
    """The usage of the run that answered the user message at this location, in one branch."""

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
        """Return an entry made from a :class:`~standfast.Usage` or the usage object of another framework."""
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
        """Return the counts by name."""
        fields: Item = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name not in ("type", "branch", "tape", "seq")}


_decoder: msgspec.json.Decoder[WriteTime | TurnUsage] = msgspec.json.Decoder(WriteTime | TurnUsage)


def get_log_id(session_id: str) -> str:
    """Return the id under which the turn log of a session is stored. It is a hash, because session ids may be long."""
    return f"log_{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"


async def is_turn_log(backend: Backend, record: SessionRecord) -> bool:
    """Return True if the record is a turn log. Users may have sessions with such an id, so the content decides."""
    if not _LOG_ID.fullmatch(record.session_id):
        return False
    page = await backend.read(record.session_id, stop=1)
    return page is not None and is_turn_log_page(page)


def is_turn_log_page(page: HistoryPage) -> bool:
    """Return True if these are entries of a turn log."""
    has_id = _LOG_ID.fullmatch(page.record.session_id) is not None
    return has_id and any(_decode_entry(row.data) is not None for row in page.rows[:1])


def build_log_append(session_id: str, entry: WriteTime | TurnUsage) -> Splice:
    """Return the operation that appends an entry to the turn log of a session."""
    return Splice(session_id=get_log_id(session_id), add=(msgspec.json.encode(entry),))


class TurnLog:
    """The turn log of a session at the time of reading.

    Entries refer to locations on tapes. These are never reused, so an entry about an item that is no longer shown has
    no effect.
    """

    def __init__(self, entries: list[WriteTime | TurnUsage]) -> None:
        self._write_times: dict[int, list[WriteTime]] = {}
        self._usage: dict[tuple[str, int, int], TurnUsage] = {}
        for entry in entries:
            if isinstance(entry, TurnUsage):
                self._usage[entry.branch, entry.tape, entry.seq] = entry
            else:
                self._write_times.setdefault(entry.tape, []).append(entry)
        for times in self._write_times.values():
            times.sort(key=lambda entry: entry.start)

    @classmethod
    async def read(cls, backend: Backend, session_id: str) -> Self:
        page = await backend.read(get_log_id(session_id))
        return cls([entry for row in (page.rows if page else []) if (entry := _decode_entry(row.data)) is not None])

    def find_usage(self, branch: StoredSession, turn: "Turn") -> dict[str, Any] | None:
        """Return the counts that were stored last for a turn of a branch."""
        entry = self.find_entry(branch.session_id, turn.location)
        return None if entry is None else entry.get_counts()

    def find_entry(self, branch: str, location: tuple[int, int]) -> TurnUsage | None:
        """Return the usage that was stored last for the user message at this location of a branch."""
        return self._usage.get((branch, *location))

    def get_write_time(self, branch: StoredSession, turn: "Turn", *, default: float) -> str:
        """Return the timestamp at which a turn began, or that of ``default`` if the log has no entry."""
        tape, seq = turn.location
        times = self._write_times.get(tape, [])
        index = bisect_right(times, seq, key=lambda entry: entry.start)
        return format_timestamp(times[index - 1].at if index else default)


def format_timestamp(at: float) -> str:
    """Return the time in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _decode_entry(data: bytes | None) -> WriteTime | TurnUsage | None:
    try:
        return _decoder.decode(data or b"")
    except msgspec.MsgspecError:
        return None


class Turn(msgspec.Struct, frozen=True):
    """A user message, which is the first entry, and its answer. Number 0 is the items before the first user message."""

    number: int
    entries: list[DecodedRecord]

    @property
    def location(self) -> tuple[int, int]:
        """The location of the user message, which identifies the turn."""
        row = self.entries[0].row
        return row.tape, row.seq

    @property
    def content(self) -> Any:
        """The content of the user message as it was written."""
        return self.entries[0].item.get("content", "")

    @property
    def text(self) -> str:
        """The content of the user message: the text, or JSON if it is not a string."""
        return self.content if isinstance(self.content, str) else json.dumps(self.content, ensure_ascii=False)

    @property
    def preview(self) -> str:
        return self.text if len(self.text) <= _PREVIEW_LENGTH else self.text[:_PREVIEW_LENGTH] + "..."

    def contains(self, term: str) -> bool:
        """Return True if the user message contains ``term``, ignoring case."""
        return term.casefold() in extract_text({"content": self.content}).casefold()


def split_into_turns(entries: Iterable[DecodedRecord]) -> list[Turn]:
    """Split a history before every user message."""
    turns = [Turn(0, [])]
    for entry in entries:
        if entry.item.get("role") == "user":
            turns.append(Turn(len(turns), []))
        turns[-1].entries.append(entry)
    return [turn for turn in turns if turn.entries]


def classify_item(item: Item) -> str:
    """Return ``user`` or ``assistant`` for their messages, else the type of the item."""
    role, kind = item.get("role"), item.get("type")
    if role in ("user", "assistant"):
        return str(role)
    return kind if isinstance(kind, str) and kind else "other"


def get_tool_name(item: Item) -> str | None:
    """Return the tool that an item calls or requests approval for, with its namespace or server; ``None`` for others.

    A call without a name has the name of its type.
    """
    kind = classify_item(item)
    if not is_tool_call(item) and kind != "mcp_approval_request":
        return None
    parts = [item.get("namespace") or item.get("server_label"), item.get("name")]
    return ".".join(str(part) for part in parts if part) or _TOOL_NAMES.get(kind, kind)


def is_tool_call(item: Item) -> bool:
    """Return True if the item is a tool call of any type."""
    return classify_item(item).endswith("_call")
