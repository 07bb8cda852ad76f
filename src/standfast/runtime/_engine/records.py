"""What is stored of a durable run: a small header, and a journal with everything that happened.

The journal holds the outcomes of the driver's steps, from which the run's state is made again, and notes about the
run itself. A kind that was released keeps its name and its meaning.
"""

import hashlib
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.agents.tool_identity import ToolRef
from standfast.base.items import Item
from standfast.runs.core.context import SavedContext
from standfast.runs.core.state import FinalOutput, PersistedStruct, decode_hook, encode_hook
from standfast.runs.core.steps import CallDecided, Outcome
from standfast.runtime.types import CancelMode
from standfast.runtime.types import RunProblem as RunProblem
from standfast.runtime.types import RunStatus as RunStatus
from standfast.store.contract import Backend, LogEntry, RunRecord

# The store tells apart what programs need not: a run that is queued may be the ``next`` one, in front of all that
# are merely in line; one that holds its session may be ``woken``, to be taken up by whoever comes first, or
# ``blocked``, by changed code for example.
PUBLIC_STATUS: dict[str, RunStatus] = {
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
QUEUED_STATUSES = ("next", "queued")
SESSION_HOLDING_STATUSES = ("woken", "running", "waiting", "blocked")
ENDED_STATUSES = ("completed", "failed", "cancelled")
STOPPED_STATUSES = ("waiting", "blocked", *ENDED_STATUSES)


class RunHeader(PersistedStruct, frozen=True):
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
    problem: RunProblem | None = None
    answer: FinalOutput | None = None
    answered_by: str | None = None
    parent: str | None = None


class RunQueued(PersistedStruct, frozen=True, tag="run.queued"):
    """The run was asked for. A fork goes on from the ``at``-th entry of its parent's journal."""

    input: str | list[Item]
    max_turns: int | None = 10
    context: SavedContext | None = None
    parent: str | None = None
    at: int | None = None


class RunClaimed(PersistedStruct, frozen=True, tag="run.owned"):
    """A runtime took the run up: to begin it, to go on with it, or because its owner was gone."""

    by: str
    how: Literal["started", "continued", "recovered"] = "started"


class LeaseLossReported(PersistedStruct, frozen=True, tag="run.outlived"):
    """A runtime lives that was too slow to keep the run: whoever took the run up did not find it ended."""

    by: str


class ApprovalRequested(PersistedStruct, frozen=True, tag="approval.requested"):
    """A person is asked about a call."""

    approval_id: str
    call_id: str
    tool: ToolRef
    uncertain: bool = False


class ApprovalDecided(PersistedStruct, frozen=True, tag="approval.decided"):
    """What became of a question, and who answered it."""

    approval_id: str
    verdict: str
    decided: CallDecided
    by: str | None = None


class CancelRequested(PersistedStruct, frozen=True, tag="run.cancel_requested"):
    mode: CancelMode


class RunStopped(PersistedStruct, frozen=True, tag="run.rested"):
    """The run has ended, waits, or was handed back; ``status`` is one of the store's."""

    status: str
    problem: RunProblem | None = None
    answer: FinalOutput | None = None


class ResumeRequested(PersistedStruct, frozen=True, tag="run.resumed"):
    """Somebody lets a run go on that had ended or was blocked, or accepts changes for one that goes on."""

    accept: bool = False
    agent: str | None = None


RunNote: TypeAlias = (
    RunQueued
    | RunClaimed
    | LeaseLossReported
    | ApprovalRequested
    | ApprovalDecided
    | CancelRequested
    | RunStopped
    | ResumeRequested
)


class JournalEntry(PersistedStruct, frozen=True):
    """One thing that happened. ``route`` leads to the nested run it happened to.

    ``mark`` is unique among the entries of the run's owners: one whose commit may have been lost is looked for by it.
    ``stored`` is how much of the transcript the session has from now on, ``trace`` the trace that the run is in, and
    ``context`` the program's context where it changed.
    """

    it: Outcome | RunNote
    route: tuple[str, ...] = ()
    mark: tuple[int, int] | None = None
    stored: int | None = None
    trace: dict[str, Any] | None = None
    context: SavedContext | None = None


class RecordedError(Exception):
    """An error that ended a step, as it was written down."""


def _encode_hook(value: Any) -> Any:
    return str(value) if isinstance(value, BaseException) else encode_hook(value)


def _decode_hook(kind: Any, value: Any) -> Any:
    return RecordedError(value) if kind is BaseException else decode_hook(kind, value)


_entry_decoder = msgspec.json.Decoder(JournalEntry, dec_hook=_decode_hook)
_header_decoder = msgspec.json.Decoder(RunHeader)
_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode_entry(entry: JournalEntry) -> tuple[str, bytes]:
    """An entry as the store keeps it."""
    return type(entry.it).__struct_config__.tag, _encoder.encode(entry)  # type: ignore[return-value]


def decode_row(row: LogEntry) -> JournalEntry:
    return decode_entry(row.data)


def decode_entry(data: bytes) -> JournalEntry:
    return _entry_decoder.decode(data)


def decode_header(record: RunRecord) -> RunHeader:
    return _header_decoder.decode(record.data)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def compute_request_digest(*parts: Any) -> str:
    """A fingerprint of what a run was asked for."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted", enc_hook=_encode_hook)).hexdigest()[:32]


async def list_runs(backend: Backend, *, status: tuple[str, ...]) -> list[RunRecord]:
    """All runs with one of these statuses, in order."""
    found: list[RunRecord] = []
    while True:
        page = await backend.list_runs(status=status, session_id=None, limit=200, after=found[-1].order if found else 0)
        found += page
        if len(page) < 200:
            return found
