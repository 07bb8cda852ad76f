"""The public data types of durable runs."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.runs.core.state import PersistedStruct

RunStatus: TypeAlias = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
CancelMode: TypeAlias = Literal["after_turn", "immediate"]
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
Verdict: TypeAlias = Literal["approve", "reject", "done", "again"]
ApprovalStatus: TypeAlias = Literal["pending", "approved", "rejected", "done", "expired", "withdrawn"]


class RunProblem(PersistedStruct, frozen=True):
    """Why a run failed, or why it cannot continue."""

    code: str
    message: str
    type: str | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to approve a tool call, and the decision once there is one. ``digest`` is the SHA-256 of ``arguments``.

    An approval of kind ``uncertain`` is about a call that was in progress when its process died: it may have happened.
    """

    id: str
    kind: Literal["approval", "uncertain"]
    status: ApprovalStatus
    run_id: str
    session_id: str | None
    agent: str
    tool: str
    call_id: str
    arguments: str
    digest: str
    requested_at: float
    idempotency_key: str = ""
    """The tool's ``ctx.idempotency_key``: use it to find out whether an uncertain call had an effect."""
    expires_at: float | None = None
    decided_by: str | None = None
    decided_at: float | None = None
    message: str | None = None
    edited: str | None = None
    """The arguments with which the call was approved, if a person edited them."""
    output: str | None = None
    always: bool = False
    agent_path: str = "root"
    tool_key: tuple[str, ...] = ()
    route: tuple[str, ...] = ()
    locked: bool = False
    """Whether it is encrypted and this runtime cannot read it: only its ids, status and times are known."""


@dataclass(frozen=True)
class ApprovalChange:
    """An approval after it was requested, decided, withdrawn or has expired; ``approval.status`` says which.

    Pass ``cursor`` to :meth:`Runtime.follow_approvals` to continue after it.
    """

    approval: Approval
    cursor: str


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. ``seq`` counts from 1 without gaps.

    Events of a streaming model response are ``live``: they have no ``seq`` and are not stored. Their ``position`` is
    their place among the live events, see :meth:`RunHandle.events`. A live event of type ``model.gap`` stands for
    ``data["missed"]`` others that did not reach the reader; the complete response follows as always.
    """

    seq: int | None
    run_id: str
    type: str
    data: dict[str, Any]
    at: float
    live: bool = False
    position: str | None = None


@dataclass(frozen=True)
class RunInfo:
    """A run in a listing. ``steps`` is the number of its events so far, ``reason`` why it failed or is blocked.

    A ``locked`` run is encrypted and cannot be read by this runtime: ``agent`` is empty, ``reason`` and ``key`` are
    unknown.
    """

    run_id: str
    agent: str
    session_id: str | None
    status: RunStatus
    reason: RunProblem | None
    key: str | None
    parent: str | None
    steps: int
    created_at: float
    updated_at: float
    locked: bool = False


@dataclass(frozen=True)
class PruneReport:
    """The ids of the ``deleted`` runs, and how many ended runs were ``kept``.

    Those in ``shared`` were to be deleted, but a run that is kept was forked from them and shares their journals.
    """

    deleted: tuple[str, ...]
    kept: int
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class RekeyReport:
    """What was encrypted again with the first key: the ids of runs, the number of approvals, the keys of workspaces.

    ``failed`` has the ids of those that could not be read, with the reasons; they are unchanged.
    """

    runs: tuple[str, ...]
    approvals: int
    workspaces: tuple[str, ...]
    failed: dict[str, str]


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run, or what it waits for: ``approvals``, or the problem in ``error``."""

    run_id: str
    status: RunStatus
    final_output: Any = None
    approvals: tuple[Approval, ...] = ()
    error: RunProblem | None = None
