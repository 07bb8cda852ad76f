"""What is stored of a durable run: a small header, and a journal with everything that happened.

The journal holds the outcomes of the driver's steps, from which the run's state is made again, and notes about the
run itself. A kind that was released keeps its name and its meaning.
"""

import hashlib
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.agents.tool_refs import ToolRef
from holdfast.base.items import Item
from holdfast.runs.contexts import SavedContext
from holdfast.runs.state import Answer, Record, from_hook, to_hook
from holdfast.runs.steps import Decided, Outcome
from holdfast.store.contract import Backend, Logged, RunRecord

Status: TypeAlias = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]

# The store tells apart what programs need not: a run that is queued may be the ``next`` one, in front of all that
# are merely in line; one that holds its session may be ``woken``, to be taken up by whoever comes first, or
# ``blocked``, by changed code for example.
SHOWN: dict[str, Status] = {
    "next": "queued",
    "queued": "queued",
    "woken": "running",
    "running": "running",
    "waiting": "waiting",
    "blocked": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
IN_LINE = ("next", "queued")
HOLDING = ("woken", "running", "waiting", "blocked")
ENDED = ("completed", "failed", "cancelled")
RESTING = ("waiting", "blocked", *ENDED)
CancelMode: TypeAlias = Literal["after_turn", "immediate"]


class Problem(Record, frozen=True):
    """Why a run failed, or why it cannot go on."""

    code: str
    message: str
    type: str | None = None


class Header(Record, frozen=True):
    """What is known of a run without reading its journal. It is written when its status changes."""

    agent: str
    request: str
    key: str | None = None
    base: int | None = None
    """How many items its session had before it."""
    cancel: CancelMode | None = None
    undone: bool = False
    """What it added to its session is taken back when it ends."""
    accept: bool = False
    """Go on although the code has changed."""
    problem: Problem | None = None
    answer: Answer | None = None
    answered_by: str | None = None
    parent: str | None = None


class Begun(Record, frozen=True, tag="run.queued"):
    """The run was asked for. A fork goes on from the ``at``-th entry of its parent's journal."""

    input: str | list[Item]
    max_turns: int | None = 10
    context: SavedContext | None = None
    parent: str | None = None
    at: int | None = None


class Owned(Record, frozen=True, tag="run.owned"):
    """A runtime took the run up: to begin it, to go on with it, or because its owner was gone."""

    by: str
    how: Literal["started", "continued", "recovered"] = "started"


class Outlived(Record, frozen=True, tag="run.outlived"):
    """A runtime lives that was too slow to keep the run: whoever took the run up did not find it ended."""

    by: str


class Asked(Record, frozen=True, tag="approval.requested"):
    """A person is asked about a call."""

    approval_id: str
    call_id: str
    tool: ToolRef
    uncertain: bool = False


class Settled(Record, frozen=True, tag="approval.decided"):
    """What became of a question, and who answered it."""

    approval_id: str
    verdict: str
    decided: Decided
    by: str | None = None


class CancelAsked(Record, frozen=True, tag="run.cancel_requested"):
    mode: CancelMode


class Rested(Record, frozen=True, tag="run.rested"):
    """The run has ended, waits, or was handed back; ``status`` is one of the store's."""

    status: str
    problem: Problem | None = None
    answer: Answer | None = None


class Called(Record, frozen=True, tag="run.resumed"):
    """Somebody lets a run go on that had ended or was blocked, or accepts changes for one that goes on."""

    accept: bool = False
    agent: str | None = None


Note: TypeAlias = Begun | Owned | Outlived | Asked | Settled | CancelAsked | Rested | Called


class JournalEntry(Record, frozen=True):
    """One thing that happened. ``route`` leads to the nested run it happened to.

    ``mark`` is unique among the entries of the run's owners: one whose commit may have been lost is looked for by it.
    ``stored`` is how much of the transcript the session has from now on, ``trace`` the trace that the run is in, and
    ``context`` the program's context where it changed.
    """

    it: Outcome | Note
    route: tuple[str, ...] = ()
    mark: tuple[int, int] | None = None
    stored: int | None = None
    trace: dict[str, Any] | None = None
    context: SavedContext | None = None


class RecordedError(Exception):
    """An error that ended a step, as it was written down."""


def _to(value: Any) -> Any:
    return str(value) if isinstance(value, BaseException) else to_hook(value)


def _from(kind: Any, value: Any) -> Any:
    return RecordedError(value) if kind is BaseException else from_hook(kind, value)


_entries = msgspec.json.Decoder(JournalEntry, dec_hook=_from)
_headers = msgspec.json.Decoder(Header)
_encoder = msgspec.json.Encoder(enc_hook=_to)


def logged(entry: JournalEntry) -> tuple[str, bytes]:
    """An entry as the store keeps it."""
    return type(entry.it).__struct_config__.tag, _encoder.encode(entry)  # type: ignore[return-value]


def entry_of(row: Logged) -> JournalEntry:
    return entry_in(row.data)


def entry_in(data: bytes) -> JournalEntry:
    return _entries.decode(data)


def header_of(record: RunRecord) -> Header:
    return _headers.decode(record.data)


def encoded(value: Any) -> bytes:
    return _encoder.encode(value)


def request_digest(*parts: Any) -> str:
    """A fingerprint of what a run was asked for."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted", enc_hook=_to)).hexdigest()[:32]


async def everything(backend: Backend, *, status: tuple[str, ...]) -> list[RunRecord]:
    """All runs with one of these statuses, in order."""
    found: list[RunRecord] = []
    while True:
        page = await backend.runs(status=status, session_id=None, limit=200, after=found[-1].order if found else 0)
        found += page
        if len(page) < 200:
            return found
