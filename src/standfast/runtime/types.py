"""What programs see of durable runs."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.runs.core.state import PersistedStruct

RunStatus: TypeAlias = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
CancelMode: TypeAlias = Literal["after_turn", "immediate"]
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
Verdict: TypeAlias = Literal["approve", "reject", "done"]
ApprovalStatus: TypeAlias = Literal["pending", "approved", "rejected", "done", "expired", "withdrawn"]


class RunProblem(PersistedStruct, frozen=True):
    """Why a run failed, or why it cannot continue."""

    code: str
    message: str
    type: str | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to a person about one call, with the exact ``arguments`` and their SHA-256.

    An ``uncertain`` one asks about a call that was under way when its process ended: it may have happened.
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
    """What the tool has as ``ctx.idempotency_key``: where an uncertain call left traces, this finds them."""
    expires_at: float | None = None
    decided_by: str | None = None
    decided_at: float | None = None
    message: str | None = None
    edited: str | None = None
    """The arguments that the person put in place of the model's."""
    output: str | None = None
    always: bool = False
    agent_path: str = "root"
    tool_key: tuple[str, ...] = ()
    route: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. ``seq`` counts from 1 without gaps.

    What a model says while it is saying it is ``live``: it has no ``seq`` and is not kept.
    """

    seq: int | None
    run_id: str
    type: str
    data: dict[str, Any]
    at: float
    live: bool = False


@dataclass(frozen=True)
class RunInfo:
    """A run as it is listed."""

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


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to, or what it waits for: ``approvals`` of a person, or what ``error`` says."""

    run_id: str
    status: RunStatus
    final_output: Any = None
    approvals: tuple[Approval, ...] = ()
    error: RunProblem | None = None
