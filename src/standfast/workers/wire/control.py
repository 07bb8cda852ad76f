"""What the host orders from the fork-server and from a worker's keeper, and what they answer.

These travel on sockets that user code never holds.
"""

from typing import Any, Literal

import msgspec

SandboxLevel = Literal["plain", "locked", "namespaces"]
# Libraries that would start threads when they are imported, which forking does not survive.
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
"""From the weakest to the strongest sandbox. Each level has all that the one before has."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sandbox in the child's terms: only data, resolved by the host."""

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
    uid: int | None = None
    gid: int | None = None


class StartServerCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a fork-server sets itself up, once."""

    jail: SandboxSpec = SandboxSpec()
    preload: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()
    host_pid: int = 0


class ForkCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="fork"):
    """Make one worker. Carries four descriptors: protocol, stdout, stderr, keeper."""

    id: int
    token: str
    session_id: str = ""
    environment: dict[str, str] = {}
    directory: str = ""
    settings: dict[str, Any] = {}
    gated: bool = False
    counted: bool = False


class ServerReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="up"):
    """The fork-server is ready: what it preloaded, in milliseconds each, and what it could not."""

    pid: int
    level: SandboxLevel
    uid: int = -1
    preloaded: dict[str, float] = {}
    failed: dict[str, str] = {}
    python: str = ""
    notes: tuple[str, ...] = ()


class ForkReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="forked"):
    """One worker was forked (its pidfd comes along where the system has them), or ``error`` says why not."""

    id: int
    pid: int = 0
    error: str = ""


class ServerStartFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="down"):
    """The fork-server could not set itself up."""

    error: str


class WakeCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ring"):
    """Tell the busy worker ``token`` that it has mail."""

    token: str


class ContinueCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="proceed"):
    """The gated keeper has been put where it belongs and may go on."""


class KillCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="kill"):
    """Kill the worker ``token``, or the whole family."""

    token: str | None = None


class SandboxReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="locked"):
    """The keeper has built the walls. Carries the session's directory, and the proxy's listener."""

    level: SandboxLevel
    directory: str = ""
    proxy_port: int = 0
    notes: tuple[str, ...] = ()


class WorkerExited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="exited"):
    """The worker ``token`` is gone. ``status`` is a wait status."""

    token: str
    status: int
    cpu: float = 0.0
    peak_rss: int = 0


class SandboxFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """The walls could not be built; no code ran."""

    error: str


ServerMessage = ServerReady | ServerStartFailed | ForkReply
SupervisorMessage = SandboxReady | WorkerExited | SandboxFailed

encode_control = msgspec.msgpack.Encoder().encode
