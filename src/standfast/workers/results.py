"""What the methods of a session return, and a result as text for a model."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from standfast.workers.errors import Cause
from standfast.workers.state import SessionState
from standfast.workers.wire.messages import DisplayMessage, ErrorMessage, ExecutionUsage, NamespaceState


class ExecutionResult(msgspec.Struct, frozen=True):
    """Everything one execution produced.

    ``error`` is None when the code ran to its end. ``state`` says whether the session's variables are still
    there, from the worker's own word; ``reason`` why not.
    """

    execution_id: str
    value: Any = None
    repr: str = ""
    data: dict[str, Any] = {}
    stdout: str = ""
    stderr: str = ""
    dropped: dict[str, int] = {}
    displays: tuple[DisplayMessage, ...] = ()
    error: ErrorMessage | None = None
    timed_out: bool = False
    usage: ExecutionUsage = ExecutionUsage()
    execution_time: float = 0.0
    rolled_back: bool = False
    state: NamespaceState = "preserved"
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class InterruptResult:
    """How an interrupt or a cancel went. ``stopped`` is False when nothing was running."""

    stopped: bool
    state: NamespaceState
    reason: str = ""

    def __bool__(self) -> bool:
        return self.state == "preserved"


@dataclass(frozen=True)
class SnapshotPoint:
    """A place to go back to, within the life of this worker."""

    id: str
    hazards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A namespace as bytes. Only a worker can read them; the host never does."""

    data: bytes
    name: str = ""
    kept: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    function_count: int = 0
    class_count: int = 0


@dataclass(frozen=True)
class RestoreResult:
    """What a checkpoint brought back."""

    kept: tuple[str, ...]
    lost: dict[str, str]


@dataclass(frozen=True)
class WorkerUsage:
    """Memory by the kernel's fair accounting (PSS), private bytes, processor seconds: of all processes."""

    pss: int = 0
    private: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0


@dataclass(frozen=True)
class SessionInfo:
    """A session at one moment."""

    session_id: str
    state: SessionState
    created_at: float
    last_used_at: float
    execution_count: int = 0
    error_count: int = 0
    memory_usage: int = 0
    cpu_percent: float = 0.0
    namespace_size: int = 0
    last_heartbeat_at: float | None = None
    cause: Cause | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)
    telemetry: dict[str, Any] = field(default_factory=dict)
