"""Commands of the host to the fork server and to supervisors, and their replies.

They are sent over sockets that user code has no access to.
"""

from typing import Any, Literal

import msgspec

SandboxLevel = Literal["plain", "locked", "namespaces"]
# Keeps libraries from starting threads when they are imported, since threads do not survive a fork.
SINGLE_THREAD_ENVIRONMENT = dict.fromkeys(
    (
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
SANDBOX_LEVELS: tuple[SandboxLevel, ...] = ("plain", "locked", "namespaces")
"""The sandbox levels from the weakest to the strongest. Each one includes the one before it."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sandbox that a child process sets up, as plain data that the host has resolved."""

    level: SandboxLevel = "plain"
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: Literal["none", "host", "proxy"] = "none"
    memory: int | None = None
    cpu_seconds: int | None = None
    processes: int | None = None
    open_files: int | None = None
    file_size: int | None = None
    disk: int | None = None
    terminals: bool = False
    uid: int | None = None
    gid: int | None = None


class StartServerCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first command to a fork server: how to prepare itself."""

    sandbox: SandboxSpec = SandboxSpec()
    preload: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()
    host_pid: int = 0


class ForkCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="fork"):
    """Fork one supervisor. Carries four descriptors: protocol, stdout, stderr, supervisor.

    It has nothing that belongs to a session: every later worker is a copy of the fork server's memory.
    """

    id: int


class IdleCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="idle"):
    """No session uses the fork server: exit after ``seconds``. None: it is used again, and replies with ServerReady."""

    seconds: float | None = None


class ServerReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="up"):
    """The fork server is ready. ``preloaded`` has the import time of each module in milliseconds."""

    pid: int
    level: SandboxLevel
    uid: int = -1
    preloaded: dict[str, float] = {}
    failed: dict[str, str] = {}
    python: str = ""
    notes: tuple[str, ...] = ()


class ForkReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="forked"):
    """A worker was forked, with its pidfd attached where the system has them; or ``error`` says why not."""

    id: int
    pid: int = 0
    error: str = ""


class ServerStartFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="down"):
    """The fork server could not prepare itself. ``sandboxed`` is False if its level of the sandbox is the reason."""

    error: str
    sandboxed: bool = True


class WakeCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ring"):
    """Signal the busy worker ``token`` to read its messages."""

    token: str


class StartWorkerCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="proceed"):
    """Fork the worker. The first command to a supervisor, with descriptors of its control groups.

    ``counted`` says that a control group limits the number of processes.
    """

    token: str
    session_id: str = ""
    environment: dict[str, str] = {}
    directory: str = ""
    settings: dict[str, Any] = {}
    counted: bool = False


class SignalProcessesCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="signal"):
    """Send a signal to all processes below the worker ``token``, not to the worker itself."""

    token: str
    number: int


class KillCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="kill"):
    """Kill the worker ``token``, or all processes of the supervisor."""

    token: str | None = None


class EndProcessesCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="end_processes"):
    """Kill what the code of the worker ``token`` has started.

    All processes but workers, ``snapshots`` copies, and the copies that capture the workspace for one of ``captures``.
    """

    token: str
    snapshots: int = 0
    captures: tuple[str, ...] = ()


class EndCaptureCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="end_capture"):
    """Kill the copy that captures the workspace under this id, now or as soon as it announces itself."""

    capture_id: str


class ProcessesEnded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="processes_ended"):
    """The reply to an EndProcessesCommand."""

    token: str


class SandboxReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="locked"):
    """The sandbox is up. Carries descriptors of the session's directory and of the proxy's listener."""

    level: SandboxLevel
    directory: str = ""
    proxy_port: int = 0
    notes: tuple[str, ...] = ()


class WorkerExited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="exited"):
    """The worker ``token`` has exited. ``status`` is a wait status."""

    token: str
    status: int
    cpu: float = 0.0
    peak_rss: int = 0


class SandboxFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """The sandbox could not be set up; no code ran."""

    error: str


ServerMessage = ServerReady | ServerStartFailed | ForkReply
SupervisorMessage = SandboxReady | WorkerExited | SandboxFailed | ProcessesEnded

encode_control = msgspec.msgpack.Encoder().encode
