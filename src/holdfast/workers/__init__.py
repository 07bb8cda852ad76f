"""Worker sessions: isolated, persistent Python, forked in milliseconds.

Names are resolved on first use: a worker imports ``workers.wire`` only and pays for nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.workers.config import PoolConfig, SandboxPolicy, SessionConfig
    from holdfast.workers.errors import (
        Cause,
        ExecutionTimeout,
        PoolBroken,
        PoolExhausted,
        RequestFailed,
        SandboxUnavailable,
        StartFailed,
        WorkerDied,
        WorkerError,
    )
    from holdfast.workers.pool import SessionPool
    from holdfast.workers.probe import SandboxReport, probe_sandbox
    from holdfast.workers.result import (
        Checkpoint,
        ExecutionResult,
        Interrupted,
        Restored,
        SessionInfo,
        SnapshotPoint,
        WorkerUsage,
    )
    from holdfast.workers.servers import fork_server
    from holdfast.workers.session import WorkerSession
    from holdfast.workers.states import SessionState
    from holdfast.workers.tool import PythonSessions, python_function
    from holdfast.workers.wire.frames import FrameTooLarge

_HOMES = {
    "config": ("PoolConfig", "SandboxPolicy", "SessionConfig"),
    "errors": (
        "Cause",
        "ExecutionTimeout",
        "PoolBroken",
        "PoolExhausted",
        "RequestFailed",
        "SandboxUnavailable",
        "StartFailed",
        "WorkerDied",
        "WorkerError",
    ),
    "result": (
        "Checkpoint",
        "ExecutionResult",
        "Interrupted",
        "Restored",
        "SessionInfo",
        "SnapshotPoint",
        "WorkerUsage",
    ),
    "pool": ("SessionPool",),
    "probe": ("SandboxReport", "probe_sandbox"),
    "servers": ("fork_server",),
    "session": ("WorkerSession",),
    "states": ("SessionState",),
    "tool": ("PythonSessions", "python_function"),
    "wire.frames": ("FrameTooLarge",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if name.endswith("Message") or name in ("Usage", "NamespaceEntry"):
        home = "wire.messages"
    if home is None:
        raise AttributeError(f"module 'holdfast.workers' has no attribute {name!r}")
    value = getattr(import_module(f"holdfast.workers.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
