"""Configuration of sessions, their sandbox and pools: frozen values, validated when they are created."""

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from standfast.base.errors import InvalidInput
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
            ipaddress.ip_address(name)
        except ValueError:
            if not _HOST_PATTERN.fullmatch(name):
                raise InvalidInput(
                    f"{name!r} is not a host name; expected for example api.example.org or *.example.org, "
                    "without scheme, port or path"
                ) from None


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

    ``level`` is the strongest sandbox level to use and ``require`` the weakest to accept. By default a session
    takes the strongest level that the machine supports and reports it in ``info``. A session does not start where
    the required level is not available.

    ``memory_mb`` limits each process, which then gets a MemoryError. All processes of a worker together, including
    the memory they share, may use one and a half times as much; above that, the worker is killed shortly after.

    ``cgroup`` adds control groups where this process may create them: exact limits for all processes of a worker
    together, at the cost of a few milliseconds at the start.

    ``network`` is ``none``, ``host``, or a tuple of host names (``api.example.org``, ``*.pypi.org``) that are
    reachable by HTTP through a proxy, while nothing else is. A tuple needs the level ``namespaces``.
    """

    level: SandboxLevel = "namespaces"
    require: SandboxLevel = "plain"
    network: Literal["none", "host"] | tuple[str, ...] = "none"
    memory_mb: int | None = 1024
    cpu_seconds: int | None = None
    processes: int | None = 64
    open_files: int | None = 512
    disk_mb: int = 64
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    run_as: int = 65534
    cgroup: bool = False

    @property
    def total_memory_mb(self) -> int | None:
        """The limit of all processes together.

        It is above the limit of one process, since code can handle a MemoryError but not the end of the worker.
        """
        return None if self.memory_mb is None else self.memory_mb + self.memory_mb // 2

    def __post_init__(self) -> None:
        for name in ("memory_mb", "cpu_seconds", "processes", "open_files", "disk_mb"):
            _require_positive(name, getattr(self, name))
        if self.level not in SANDBOX_LEVELS or self.require not in SANDBOX_LEVELS:
            raise InvalidInput(f"unknown sandbox level; expected one of {', '.join(SANDBOX_LEVELS)}")
        if SANDBOX_LEVELS.index(self.require) > SANDBOX_LEVELS.index(self.level):
            raise InvalidInput(f"cannot require level {self.require!r} with level {self.level!r}, which is weaker")
        for name in ("readable", "writable"):
            _check_paths(name, getattr(self, name))
        if isinstance(self.network, tuple):
            _check_hosts(self.network)
        elif self.network not in ("none", "host"):
            raise InvalidInput(f"network must be 'none', 'host' or a tuple of host names, got {self.network!r}")
        if isinstance(self.network, tuple) and self.require != "namespaces":
            object.__setattr__(self, "require", "namespaces")
            if self.level != "namespaces":
                raise InvalidInput("a tuple of host names as network needs the level 'namespaces'")


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The interpreter, sandbox, limits and timeouts of one session. All times are seconds, all sizes bytes."""

    sandbox: SandboxPolicy = field(default_factory=SandboxPolicy)
    mode: Literal["fork", "spawn"] = "fork" if sys.platform.startswith("linux") else "spawn"
    python: str = sys.executable
    preload: tuple[str, ...] = ()
    import_path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    warmup_code: str | None = None

    ready_timeout: float = 10.0
    shutdown_timeout: float = 5.0
    default_execute_timeout: float | None = 30.0
    grace: float = 0.5

    allow_input: bool = True
    input_timeout: float | None = 300.0

    output_limit: int | None = 16 * MB
    output_buffer: int = 1 * MB
    frame_limit: int = DEFAULT_LIMIT
    repr_limit: int = 100_000
    value_limit: int = 1 * MB
    general_queue: int = 1000

    heartbeat_interval: float | None = 5.0
    interceptor_budget: float = 0.010
    interceptor_strikes: int = 5
    enable_metrics: bool = False

    def __post_init__(self) -> None:
        for name in (
            "ready_timeout", "shutdown_timeout", "default_execute_timeout", "grace", "input_timeout",
            "output_limit", "output_buffer", "frame_limit", "repr_limit", "value_limit", "general_queue",
            "heartbeat_interval", "interceptor_budget", "interceptor_strikes",
        ):  # fmt: skip
            _require_positive(name, getattr(self, name))
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
    min_idle: int = 2
    max_sessions: int = 10
    max_waiting: int = 1000
    idle_timeout: float | None = 300.0
    max_lifetime: float | None = 3600.0
    memory_budget_mb: int | None = None
    health_check_interval: float = 30.0
    breaker_threshold: int = 3
    breaker_backoff: float = 0.5
    breaker_backoff_limit: float = 30.0
    drain_timeout: float = 5.0

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
