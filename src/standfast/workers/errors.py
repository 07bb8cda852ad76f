"""What can go wrong with a worker, and how one can end."""

from dataclasses import dataclass
from typing import Literal

from standfast.base.errors import StandfastError, Unsupported

CauseKind = Literal["exit", "signal", "memory-limit", "cpu-limit", "sandbox", "killed", "protocol", "shutdown", "start"]


@dataclass(frozen=True)
class Cause:
    """Why a worker ended. ``kind`` is stable; ``detail`` is for people."""

    kind: CauseKind
    detail: str
    exit_code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class WorkerError(StandfastError):
    """Something about a worker went wrong."""

    code = "worker"


class WorkerDied(WorkerError):
    """The worker is gone, and its variables with it. ``cause`` says why."""

    code = "worker-died"

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"the worker is gone ({cause})")
        self.cause = cause


class StartFailed(WorkerError):
    """No worker could be started."""

    code = "start-failed"


class WorkerRequestFailed(WorkerError):
    """The worker refused or could not do what was asked. It goes on."""

    code = "request-failed"

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class SandboxUnavailable(Unsupported):
    """The demanded sandbox level cannot be had on this machine; nothing was started."""

    code = "sandbox-unavailable"

    def __init__(self, required: str, available: str, reason: str) -> None:
        super().__init__(f"the sandbox level {required!r} cannot be had here ({available!r} can): {reason}")
        self.required, self.available, self.reason = required, available, reason


class ExecutionTimeout(WorkerError, TimeoutError):
    """The code did not end in time and was stopped. ``state`` says whether the variables survived."""

    code = "execution-timeout"

    def __init__(self, execution_id: str, timeout: float, state: str) -> None:
        super().__init__(f"execution {execution_id} did not end within {timeout} s; variables {state}")
        self.execution_id, self.timeout, self.state = execution_id, timeout, state


class PoolExhausted(WorkerError, TimeoutError):
    """No session became free in time, or too many callers wait already."""

    code = "pool-exhausted"


class PoolBroken(WorkerError):
    """Workers fail to start again and again; the pool waits before it tries once more."""

    code = "pool-broken"

    def __init__(self, retry_after: float, last_error: str) -> None:
        super().__init__(f"workers do not start ({last_error}); next attempt in {retry_after:.1f} s")
        self.retry_after, self.last_error = retry_after, last_error
