"""Errors of workers and pools, and the cause of a worker's end."""

from dataclasses import dataclass
from typing import Literal

from standfast.base.errors import StandfastError, Unsupported

CauseKind = Literal[
    "exit", "signal", "memory-limit", "cpu-limit", "sandbox", "killed", "protocol", "shutdown", "start", "node-lost"
]

CaptureProblem = Literal["worker", "too-large", "timeout", "protocol", "closed", "unsupported"]
WorkspaceProblem = Literal[
    "foreign", "too-new", "damaged", "unsafe", "missing", "python-version", "too-large", "other-owner", "locked"
]


@dataclass(frozen=True)
class Cause:
    """Why a worker ended. Programs may rely on ``kind``; ``detail`` is for people.

    ``is_external`` means that the code in the worker cannot have caused it.
    """

    kind: CauseKind
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    is_external: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class WorkerError(StandfastError):
    """Base class of the errors of workers and pools."""

    code = "worker"


class WorkerDied(WorkerError):
    """The worker ended and its variables are lost. ``cause`` says why; ``restart`` starts a new one."""

    code = "worker-died"

    def __init__(self, cause: Cause) -> None:
        super().__init__(f"the worker has ended ({cause})")
        self.cause = cause


class StartFailed(WorkerError):
    """The worker could not be started."""

    code = "start-failed"


class WorkerRequestFailed(WorkerError):
    """A request to the worker failed. The worker keeps running."""

    code = "request-failed"

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class CaptureFailed(WorkerError):
    """The workspace could not be captured. The session continues, and what was stored before is untouched.

    ``kind`` is ``worker`` (the copy of the worker failed or was killed), ``too-large``, ``timeout``, ``protocol`` (the
    copy sent invalid messages), ``closed`` (the session ended, or the capture was closed) or ``unsupported``.
    """

    code = "capture-failed"

    def __init__(self, kind: CaptureProblem, detail: str) -> None:
        super().__init__(f"the workspace was not captured: {detail}")
        self.kind, self.detail = kind, detail


class WorkspaceRefused(WorkerError):
    """A stored workspace cannot be restored here. Nothing was loaded, and the session is as it was.

    ``kind`` is ``foreign``, ``too-new``, ``damaged`` (also a chunk that does not match its digest), ``unsafe`` (paths
    outside of the directory, for example), ``missing`` (a chunk is not stored), ``python-version``, ``too-large``,
    ``other-owner`` (it belongs to another run, conversation or owner) or ``locked`` (it is encrypted, and no key was
    passed).
    """

    code = "workspace-refused"

    def __init__(self, kind: WorkspaceProblem, detail: str) -> None:
        super().__init__(f"the workspace was not restored: {detail}")
        self.kind, self.detail = kind, detail


class PrepareFailed(WorkerError):
    """The code that prepares an interpreter, ``python_tool(prepare=)``, has failed. The call was not run."""

    code = "prepare-failed"


class SandboxUnavailable(Unsupported):
    """The required sandbox level is not available on this machine; nothing was started."""

    code = "sandbox-unavailable"

    def __init__(self, required: str, available: str, reason: str) -> None:
        super().__init__(f"sandbox level {required!r} is not available here: {reason}")
        self.required, self.available, self.reason = required, available, reason


class ExecutionTimeout(WorkerError, TimeoutError):
    """The code did not finish in time and was stopped. ``state`` says whether the variables survived."""

    code = "execution-timeout"

    def __init__(self, execution_id: str, timeout: float, state: str) -> None:
        super().__init__(f"execution {execution_id} did not finish within {timeout} s; variables {state}")
        self.execution_id, self.timeout, self.state = execution_id, timeout, state


class PoolExhausted(WorkerError, TimeoutError):
    """No session became free in time, or too many callers are waiting."""

    code = "pool-exhausted"


class PoolBroken(WorkerError):
    """Workers fail to start repeatedly; the pool waits ``retry_after`` seconds before the next attempt."""

    code = "pool-broken"

    def __init__(self, retry_after: float, last_error: str) -> None:
        super().__init__(f"workers do not start ({last_error}); next attempt in {retry_after:.1f} s")
        self.retry_after, self.last_error = retry_after, last_error
