"""What is known of a session besides its items: when they were written, and what answering them cost."""

import hashlib
import re
from bisect import bisect_right
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from holdfast.base.items import Item
from holdfast.base.usage import InputTokensDetails, OutputTokensDetails
from holdfast.store.contract import Backend, SessionRecord, Splice


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
        """What a :class:`~holdfast.Usage` says, or its like of another framework."""
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
