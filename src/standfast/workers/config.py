"""Configuration of sessions, their sandbox and pools: frozen values, validated when they are created."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from standfast.base.errors import InvalidInput
from standfast.workers._host.allowed_hosts import AllowedHost
from standfast.workers.wire.control import SANDBOX_LEVELS, SandboxLevel
from standfast.workers.wire.frames import DEFAULT_LIMIT

MB = 1024 * 1024
_HOST_PATTERN = re.compile(r"(?=.*[A-Za-z0-9*])[A-Za-z0-9_*-]+(\.[A-Za-z0-9_*-]+)*")
# NUL cannot be in an environment variable, and lone surrogates cannot be in a message.
_FORBIDDEN_CHARACTERS = re.compile("[\0\ud800-\udfff]")


def _require_positive(name: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise InvalidInput(f"{name} must be greater than zero, got {value}")


def _check_hosts(names: tuple[str, ...]) -> None:
    if not names:
        raise InvalidInput("network must list at least one host name; use network='none' to allow none")
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"host names must be strings, got {name!r}")
        try:
            host = AllowedHost.parse(name)
        except ValueError:
            host = None
        if host is None or (host.address is None and not _HOST_PATTERN.fullmatch(host.name)):
            raise InvalidInput(
                f"{name!r} is not a host name; expected for example api.example.org, *.example.org or "
                "api.example.org:8080, without scheme or path"
            )


def _check_paths(name: str, paths: tuple[str, ...]) -> None:
    if not isinstance(paths, tuple) or not all(isinstance(path, str) and os.path.isabs(path) for path in paths):
        raise InvalidInput(f"{name} must be a tuple of absolute paths, such as str(Path(...).resolve()), got {paths!r}")


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        for text in (name, value):
            if not isinstance(text, str) or _FORBIDDEN_CHARACTERS.search(text):
                raise InvalidInput(f"environment variables must be strings without NUL, got {name!r}: {value!r}")
        if not name or "=" in name:
            raise InvalidInput(f"{name!r} cannot be the name of an environment variable")


@dataclass(frozen=True, kw_only=True)
class SandboxPolicy:
    """What code in a worker may reach.

    ``level`` is the strongest sandbox level to use and ``require`` the weakest to accept; by default they are the same.
    A session does not start where the required level is not available. One that starts at a weaker level than
    ``level`` reports it in ``info``, and the logger ``standfast.workers`` warns.

    ``memory_mb`` limits each process, which then gets a MemoryError. All processes of a worker together, including
    the memory they share, may use one and a half times as much; above that, the worker is killed shortly after.

    ``cgroup`` sets whether control groups limit all processes of a worker together, exactly: None uses them where this
    process may create them and notes the reason where it may not, True demands them, and False does without.

    ``network`` is ``none``, ``host``, or a tuple of host names (``api.example.org``, ``*.pypi.org``) that are
    reachable through an HTTP proxy, while nothing else is: on the ports 80 and 443, or on the port that an entry names
    (``api.example.org:8080``). Addresses that are not public are reachable only if they are listed themselves
    (``localhost:8080``, ``10.0.0.5``). A tuple needs the level ``namespaces``.
    """

    level: SandboxLevel = "namespaces"
    """The strongest sandbox level to use."""
    require: SandboxLevel | None = None
    """The weakest level to accept. None: the same as ``level``."""
    network: Literal["none", "host"] | tuple[str, ...] = "none"
    """``none``, ``host``, or the hosts that may be reached."""
    memory_mb: int | None = 1024
    """Megabytes of memory for each process. None: no limit."""
    cpu_seconds: int | None = None
    """Seconds of processor time for all processes of the worker together. None: no limit."""
    processes: int | None = 64
    """The number of processes and threads. None: no limit."""
    open_files: int | None = 512
    """The number of open files for each process. None: no limit."""
    disk_mb: int = 64
    """Megabytes that the worker may write to its own directory."""
    readable: tuple[str, ...] = ()
    """Further paths that may be read."""
    writable: tuple[str, ...] = ()
    """Further paths that may be read and written."""
    terminals: bool = False
    """Whether code may open pseudo-terminals, which are the worker's own. Needs the level ``namespaces``."""
    run_as: int = 65534
    """The user id of workers if this process is root on Linux; otherwise it has no effect."""
    cgroup: bool | None = None
    """Whether control groups limit the worker as a whole. None: where they are available."""

    @property
    def total_memory_mb(self) -> int | None:
        """The limit of all processes together.

        It is above the limit of one process, since code can handle a MemoryError but not the end of the worker.
        """
        return None if self.memory_mb is None else self.memory_mb + self.memory_mb // 2

    @property
    def weakest_level(self) -> SandboxLevel:
        """The level without which a session does not start."""
        return self.require or self.level

    def __post_init__(self) -> None:
        for name in ("memory_mb", "cpu_seconds", "processes", "open_files", "disk_mb"):
            _require_positive(name, getattr(self, name))
        if self.require is None:
            object.__setattr__(self, "require", self.level)
        if self.level not in SANDBOX_LEVELS or self.require not in SANDBOX_LEVELS:
            raise InvalidInput(f"unknown sandbox level; expected one of {', '.join(SANDBOX_LEVELS)}")
        if SANDBOX_LEVELS.index(self.weakest_level) > SANDBOX_LEVELS.index(self.level):
            raise InvalidInput(f"cannot require level {self.require!r} with level {self.level!r}, which is weaker")
        for name in ("readable", "writable"):
            _check_paths(name, getattr(self, name))
        if isinstance(self.network, tuple):
            _check_hosts(self.network)
        elif self.network not in ("none", "host"):
            raise InvalidInput(f"network must be 'none', 'host' or a tuple of host names, got {self.network!r}")
        if self.terminals and self.weakest_level != "namespaces":
            raise InvalidInput("terminals=True needs the level 'namespaces', also as 'require'")
        if isinstance(self.network, tuple) and self.require != "namespaces":
            object.__setattr__(self, "require", "namespaces")
            if self.level != "namespaces":
                raise InvalidInput("a tuple of host names as network needs the level 'namespaces'")


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The interpreter, sandbox, limits and timeouts of one session. Each field names its unit."""

    sandbox: SandboxPolicy = field(default_factory=SandboxPolicy)
    """What the code may reach."""
    mode: Literal["fork", "spawn"] = "fork" if sys.platform.startswith("linux") else "spawn"
    """``fork`` forks workers from a fork server; ``spawn`` starts a new interpreter for each."""
    python: str = sys.executable
    """The path of the interpreter."""
    fork_server_idle: float = 60.0
    """Seconds for which the fork server is kept after its last session, so that the next one starts in milliseconds.

    With 0, it ends with its last session.
    """
    preload: tuple[str, ...] = ()
    """Names of modules that are imported once, before workers are forked."""
    import_path: tuple[str, ...] = ()
    """Directories that are put in front of ``sys.path``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the worker. It gets none of the host's."""
    workdir: str | None = None
    """The working directory of the code. None: a directory of the worker, which is deleted with it."""
    warmup_code: str | None = None
    """Code that every worker runs before it is ready. If it fails, the start fails."""

    ready_timeout: float = 10.0
    """Seconds within which a worker must start."""
    shutdown_timeout: float = 5.0
    """Seconds within which a worker must exit on ``shutdown``; then it is killed."""
    default_execute_timeout: float | None = 30.0
    """Seconds that an execution may wait and run if the call sets no timeout. None: no limit."""
    grace: float = 0.5
    """Seconds within which interrupted code must stop; then the worker is killed."""

    allow_input: bool = True
    """Whether code may call ``input()``. If not, it raises at once."""
    input_timeout: float | None = 300.0
    """Seconds that ``input()`` waits for an answer. None: no limit."""

    output_limit: int | None = 16 * MB
    """Bytes that are kept of each output stream of an execution, half from its start and half from its end.

    None: no limit.
    """
    output_buffer: int = 1 * MB
    """Bytes of messages that an execution may have unread before the worker has to wait."""
    display_limit: int = 32 * MB
    """Bytes of displays that the result of an execution keeps; ``result.dropped`` counts the others."""
    frame_limit: int = DEFAULT_LIMIT
    """Bytes of the longest message between host and worker; at least 4096."""
    repr_limit: int = 100_000
    """Characters of a ``repr`` or a traceback; the rest is cut."""
    value_limit: int = 1 * MB
    """Items, characters and bytes, added up, of a value that is returned as plain data, and of each representation."""
    general_queue: int = 1000
    """Messages that are kept for ``receive_message``; of more, the oldest are dropped."""

    heartbeat_interval: float | None = 5.0
    """Seconds between two requests for a heartbeat. None: none are requested."""
    interceptor_budget: float = 0.010
    """Seconds that an interceptor may take for one message."""
    interceptor_strikes: int = 5
    """Failed or slow calls after which an interceptor is no longer called."""
    enable_metrics: bool = False
    """Whether ``info.metrics`` is filled."""

    def __post_init__(self) -> None:
        for name in (
            "ready_timeout", "shutdown_timeout", "default_execute_timeout", "grace", "input_timeout",
            "output_limit", "output_buffer", "display_limit", "frame_limit", "repr_limit", "value_limit",
            "general_queue", "heartbeat_interval", "interceptor_budget", "interceptor_strikes",
        ):  # fmt: skip
            _require_positive(name, getattr(self, name))
        if self.fork_server_idle < 0:
            raise InvalidInput("fork_server_idle must not be negative")
        if self.frame_limit < 4096:
            raise InvalidInput("frame_limit must be at least 4096 bytes")
        _check_environment(self.environment)

    @property
    def worker_settings(self) -> dict[str, object]:
        """The settings that are sent to the worker process."""
        return {
            "frame_limit": self.frame_limit,
            "repr_limit": self.repr_limit,
            "value_limit": self.value_limit,
            "allow_input": self.allow_input,
            "input_timeout": self.input_timeout,
            "workdir": self.workdir,
        }


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How many workers a pool keeps, how long they live, and how it retries when they do not start."""

    session: SessionConfig = field(default_factory=SessionConfig)
    """The configuration of every worker."""
    min_idle: int = 2
    """The number of idle workers to keep ready."""
    max_sessions: int = 10
    """The maximum number of workers, idle and in use."""
    max_waiting: int = 1000
    """The number of callers that may wait for a worker; further ones get ``PoolExhausted`` at once."""
    idle_timeout: float | None = 300.0
    """Seconds after which idle workers above ``min_idle`` are ended. None: never."""
    max_lifetime: float | None = 3600.0
    """Seconds after which an idle worker is replaced. None: never."""
    memory_budget_mb: int | None = None
    """Mebibytes of all workers together; above that, idle workers are ended. None: no limit."""
    health_check_interval: float = 30.0
    """Seconds between two checks that the idle workers answer."""
    breaker_threshold: int = 3
    """The number of failed starts in a row after which the pool pauses before the next one."""
    breaker_backoff: float = 0.5
    """Seconds of the first pause; it doubles with every further failure."""
    breaker_backoff_limit: float = 30.0
    """Seconds of the longest pause."""
    drain_timeout: float = 5.0
    """Seconds that workers in use may continue when the pool closes."""

    def __post_init__(self) -> None:
        if self.min_idle < 0 or self.max_sessions < 1 or self.min_idle > self.max_sessions:
            raise InvalidInput("a pool needs 0 <= min_idle <= max_sessions, and max_sessions >= 1")
        for name in (
            "idle_timeout", "max_lifetime", "memory_budget_mb", "health_check_interval", "breaker_threshold",
            "breaker_backoff", "breaker_backoff_limit", "drain_timeout",
        ):  # fmt: skip
            _require_positive(name, getattr(self, name))
        if self.max_waiting < 0:
            raise InvalidInput("max_waiting must not be negative")
