"""The stored form of a durable run: a small header, and a journal of everything that happened.

The journal contains the outcomes of the driver's steps, from which the state of the run is rebuilt, and notes about
the run itself. The tags and fields of a released kind of entry never change.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from standfast.agents.tool_identity import ToolRef
from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.text import describe_error
from standfast.runs.core.context import SavedContext
from standfast.runs.core.state import FinalOutput, PersistedStruct, UsageRecord, decode_hook, encode_hook
from standfast.runs.core.steps import CallDecided, Outcome
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime.types import CancelMode
from standfast.runtime.types import RunProblem as RunProblem
from standfast.runtime.types import RunStatus as RunStatus
from standfast.store.backend import Backend
from standfast.store.records import (
    ENDED_RUN_STATUSES,
    HOLDING_RUN_STATUSES,
    QUEUED_RUN_STATUSES,
    LogEntry,
    RunRecord,
)

# The store distinguishes more statuses than programs see; their names are stored. ``next`` is a queued run that
# precedes all others of its session, ``woken`` a run that any runtime may claim, and ``blocked`` one that cannot
# continue, for example because the code has changed.
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


def list_stored_statuses(status: RunStatus | Sequence[RunStatus] | None) -> list[str] | None:
    """Return the stored statuses of these public ones, or raise :class:`InvalidInput`."""
    if status is None:
        return None
    public = [status] if isinstance(status, str) else status
    check_statuses(public, get_args(RunStatus))
    return [name for name, shown in PUBLIC_STATUS.items() if shown in public]


def check_statuses(statuses: Sequence[str], allowed: Sequence[str]) -> None:
    if unknown := set(statuses) - set(allowed):
        raise InvalidInput(f"unknown status {', '.join(sorted(unknown))}; expected {', '.join(allowed)}")


QUEUED_STATUSES = QUEUED_RUN_STATUSES
SESSION_HOLDING_STATUSES = HOLDING_RUN_STATUSES
ENDED_STATUSES = ENDED_RUN_STATUSES
STOPPED_STATUSES = ("waiting", "blocked", *ENDED_STATUSES)


class RunHeader(PersistedStruct, frozen=True):
    """The part of a run that is read without its journal. It is written when the status changes."""

    agent: str
    request: str
    key: str | None = None
    session_length_before: int | None = msgspec.field(default=None, name="base")
    """The number of items in its session before the run."""
    cancel: CancelMode | None = None
    rollback_requested: bool = msgspec.field(default=False, name="undone")
    """Whether its items are removed from the session when it ends."""
    accept: bool = False
    """Whether it continues although the code has changed."""
    problem: RunProblem | None = None
    answer: FinalOutput | None = None
    answered_by: str | None = None
    parent: str | None = None
    usage: UsageRecord | None = None
    """The tokens and requests of the run when its status changed last."""


class RunQueued(PersistedStruct, frozen=True, tag="run.queued"):
    """The run was created. A fork continues from entry ``at`` of its parent's journal, an import from ``state``.

    The state is that of a saved run, with its schema version.
    """

    input: str | list[Item]
    max_turns: int | None = 10
    context: SavedContext | None = None
    parent: str | None = None
    at: int | None = None
    state: dict[str, Any] | None = None


class SessionMark(PersistedStruct, frozen=True):
    """The session of a run at some moment: what the run stores after it follows these items.

    ``tape`` is 0 if the session did not exist yet.
    """

    tape: int = 0
    generation: int = 0
    length: int = 0
    next_seq: int = 0


class RunClaimed(PersistedStruct, frozen=True, tag="run.owned"):
    """A runtime claimed the run: to start it, to resume it, or because its owner had died."""

    by: str
    how: Literal["started", "continued", "recovered"] = "started"
    session: SessionMark | None = None


class SessionCompacted(PersistedStruct, frozen=True, tag="session.compacted"):
    """The oldest items of the session were replaced by a summary, in the same commit."""

    replaced: int
    session: SessionMark


class LeaseLossReported(PersistedStruct, frozen=True, tag="run.outlived"):
    """The previous owner lost its lease but is alive: the recovery of the run was not caused by a crash."""

    by: str


class ApprovalRequested(PersistedStruct, frozen=True, tag="approval.requested"):
    """An approval was requested."""

    approval_id: str
    call_id: str
    tool: ToolRef
    uncertain: bool = False


class ApprovalDecided(PersistedStruct, frozen=True, tag="approval.decided"):
    """An approval was decided."""

    approval_id: str
    verdict: str
    decided: CallDecided
    by: str | None = None


class CancelRequested(PersistedStruct, frozen=True, tag="run.cancel_requested"):
    """The owner of the run was asked to cancel it."""

    mode: CancelMode


class RunStopped(PersistedStruct, frozen=True, tag="run.rested"):
    """The run has ended, waits, or was released by its runtime; ``status`` is a status of the store."""

    status: str
    problem: RunProblem | None = None
    answer: FinalOutput | None = None


class ResumeRequested(PersistedStruct, frozen=True, tag="run.resumed"):
    """A stopped or blocked run was resumed, or changes were accepted for a running one."""

    accept: bool = False
    agent: str | None = None


class WorkspaceSaved(PersistedStruct, frozen=True, tag="workspace.saved"):
    """A version of the conversation's workspace has a checkpoint; ``unkept`` could not be saved."""

    key: str
    version: int
    checkpoint: str
    size: int = 0
    unkept: dict[str, str] = msgspec.field(default_factory=dict)


class WorkspaceUnsaved(PersistedStruct, frozen=True, tag="workspace.unsaved"):
    """The workspace could not be saved; the checkpoint of the version ``checkpoint`` is kept, or none for 0."""

    key: str
    reason: str
    checkpoint: int = 0


class ReplayedDifference(PersistedStruct, frozen=True):
    """A cell that was run again, and gave another output."""

    version: int
    call: str = ""


class WorkspaceRestored(PersistedStruct, frozen=True, tag="workspace.restored"):
    """The workspace was restored for a call: from the checkpoint of a version, and by running cells again.

    ``missing`` are versions whose effects are lost, and ``refused`` the reasons for checkpoints that were not read.
    """

    key: str
    version: int
    checkpoint: int = 0
    replayed: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    differs: tuple[ReplayedDifference, ...] = ()
    unkept: dict[str, str] = msgspec.field(default_factory=dict)
    refused: tuple[str, ...] = ()


RunNote: TypeAlias = (
    RunQueued
    | RunClaimed
    | SessionCompacted
    | LeaseLossReported
    | ApprovalRequested
    | ApprovalDecided
    | CancelRequested
    | RunStopped
    | ResumeRequested
    | WorkspaceSaved
    | WorkspaceUnsaved
    | WorkspaceRestored
)


class JournalEntry(PersistedStruct, frozen=True):
    """One entry of the journal. ``route`` leads to the nested run that it belongs to.

    ``mark`` is (fencing token, counter). It is unique among the entries that ``JournalWriter`` writes, and ``None`` in
    all others. It shows whether a commit whose response was lost was applied. ``stored`` is the length of the
    transcript that the session has after this entry. ``trace`` and ``context`` are set when they have changed.
    """

    content: Outcome | RunNote = msgspec.field(name="it")
    route: tuple[str, ...] = ()
    mark: tuple[int, int] | None = None
    stored: int | None = None
    trace: dict[str, Any] | None = None
    context: SavedContext | None = None


class RecordedError(Exception):
    """An error that ended a step, restored from the journal; only its message is known."""


def _encode_hook(value: Any) -> Any:
    return describe_error(value) if isinstance(value, BaseException) else encode_hook(value)


def _decode_hook(kind: Any, value: Any) -> Any:
    return RecordedError(value) if kind is BaseException else decode_hook(kind, value)


_entry_decoder = msgspec.json.Decoder(JournalEntry, dec_hook=_decode_hook)
_header_decoder = msgspec.json.Decoder(RunHeader)
_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode_entry(entry: JournalEntry) -> tuple[str, bytes]:
    """Return the kind and the bytes of an entry, for the store."""
    return type(entry.content).__struct_config__.tag, _encoder.encode(entry)  # type: ignore[return-value]


def decode_row(row: LogEntry) -> JournalEntry:
    return decode_entry(row.data)


def decode_entry(data: bytes) -> JournalEntry:
    """Return the entry of decrypted bytes."""
    try:
        return _entry_decoder.decode(data)
    except msgspec.ValidationError:
        return _entry_decoder.decode(_repair_problem(data))


def decode_header(record: RunRecord) -> RunHeader:
    require_unlocked(record)
    return decode_header_data(record.data)


def decode_header_data(data: bytes) -> RunHeader:
    """Return the header of decrypted bytes."""
    try:
        return _header_decoder.decode(data)
    except msgspec.ValidationError:
        return _header_decoder.decode(_repair_problem(data))


def _repair_problem(data: bytes) -> bytes:
    """Give a problem a code: until 0.1.0 it was stored as the error had it, which could be null or a number."""
    values = msgspec.json.decode(data)
    for part in (values, values.get("it")):
        problem = part.get("problem") if isinstance(part, dict) else None
        if isinstance(problem, dict) and not isinstance(problem.get("code"), str):
            problem["code"] = "error" if problem.get("code") is None else str(problem["code"])
    return msgspec.json.encode(values)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def compute_request_digest(*parts: Any) -> str:
    """Return a digest of the request that started a run."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted", enc_hook=_encode_hook)).hexdigest()[:32]


async def list_runs(backend: Backend, *, status: tuple[str, ...]) -> list[RunRecord]:
    """Return all runs with one of these statuses, in order."""
    records: list[RunRecord] = []
    while True:
        last = records[-1].order if records else 0
        page = await backend.list_runs(status=status, session_id=None, limit=200, after=last)
        records += page
        if len(page) < 200:
            return records
