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


class Written(msgspec.Struct, frozen=True, tag="written"):
    """From this place on, a tape was written at this time or later."""

    tape: int
    start: int
    at: float


class Spent(msgspec.Struct, frozen=True, tag="spent"):
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
    def of(cls, usage: Any, *, branch: str, place: tuple[int, int]) -> Self:
        """What a :class:`~holdfast.Usage` says, or its like of another framework."""
        return cls(
            branch,
            *place,
            usage.requests,
            usage.input_tokens,
            usage.output_tokens,
            usage.total_tokens,
            msgspec.to_builtins(InputTokensDetails.of(usage.input_tokens_details)),
            msgspec.to_builtins(OutputTokensDetails.of(usage.output_tokens_details)),
        )

    def counts(self) -> Item:
        """The numbers, by their names."""
        found: Item = msgspec.to_builtins(self)
        return {name: value for name, value in found.items() if name not in ("type", "branch", "tape", "seq")}


_LOG_NAME = re.compile(r"log_[0-9a-f]{32}")
_decoder: msgspec.json.Decoder[Written | Spent] = msgspec.json.Decoder(Written | Spent)


def log_name(session_id: str) -> str:
    """The id under which the log of a session is stored; sessions with long ids have one too."""
    return f"log_{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"


async def is_log(backend: Backend, record: SessionRecord) -> bool:
    """Whether this is the log of a session and no session itself."""
    if not _LOG_NAME.fullmatch(record.session_id):
        return False
    page = await backend.read(record.session_id, stop=1)
    return page is not None and any(_decoded(row.data) is not None for row in page.rows)


def logged(session_id: str, entry: Written | Spent) -> Splice:
    """The operation that appends an entry to a session's log."""
    return Splice(session_id=log_name(session_id), add=(msgspec.json.encode(entry),))


class TurnLog:
    """A session's log, as it was when it was read. Entries are bound to places on tapes, which are never reused:

    what is said there of an item that is no longer shown is said of nothing.
    """

    def __init__(self, entries: list[Written | Spent]) -> None:
        self._written: dict[int, list[Written]] = {}
        self._spent: dict[tuple[str, int, int], Spent] = {}
        for entry in entries:
            if isinstance(entry, Spent):
                self._spent[entry.branch, entry.tape, entry.seq] = entry
            else:
                self._written.setdefault(entry.tape, []).append(entry)
        for marks in self._written.values():
            marks.sort(key=lambda mark: mark.start)

    @classmethod
    async def read(cls, backend: Backend, session_id: str) -> Self:
        page = await backend.read(log_name(session_id))
        return cls([entry for row in (page.rows if page else []) if (entry := _decoded(row.data)) is not None])

    def spent(self, branch: str, place: tuple[int, int]) -> Spent | None:
        """What was stored last about the message at this place of a branch."""
        return self._spent.get((branch, *place))

    def written_at(self, place: tuple[int, int], *, at_least: float) -> str:
        """When that place was written, in UTC to the second; ``at_least`` where the log does not know."""
        tape, seq = place
        marks = self._written.get(tape, [])
        index = bisect_right(marks, seq, key=lambda mark: mark.start)
        return clock_time(marks[index - 1].at if index else at_least)


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _decoded(data: bytes | None) -> Written | Spent | None:
    try:
        return _decoder.decode(data or b"")
    except msgspec.MsgspecError:
        return None
