"""Levels of the sandbox: which to try, what a policy asks of one, and what to do where a level is not available."""

import os
import sys

from standfast.base.log import get_logger
from standfast.workers.config import MB, SessionConfig
from standfast.workers.errors import SandboxUnavailable, StartFailed
from standfast.workers.wire.control import SANDBOX_LEVELS, SandboxLevel, SandboxSpec

_log = get_logger("standfast.workers")
_SETTINGS = (
    ("user/max_user_namespaces", "0", "user namespaces are disabled: sysctl user.max_user_namespaces=15000"),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are disabled for users other than root: sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give the "
        "interpreter a profile with the permission userns",
    ),
)
_CONTAINER = (
    "this is a container, whose runtime may forbid namespaces: start it with --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined (Docker, Podman), or with the equivalent "
    "security context"
)
_LOCKED = "SandboxPolicy(require='locked') reduces privileges, without a boundary between tenants"
_PLAIN = "SandboxPolicy(require='plain') is no sandbox"


def describe_remedies(required: SandboxLevel) -> str:
    """Return what to do where this level, the weakest that a policy accepts, is not available."""
    can_be_locked = required == "namespaces" and sys.platform.startswith("linux")
    less = (_LOCKED, _PLAIN) if can_be_locked else (_PLAIN,)
    return "; ".join((*_find_causes(required), f"or accept less explicitly: {'; '.join(less)}"))


def _find_causes(required: SandboxLevel) -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return ("run the workers on Linux, for example in a container or a virtual machine",)
    if required != "namespaces":
        return ()
    causes = [text for name, value, text in _SETTINGS if _read_setting(name) == value]
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        causes.append(_CONTAINER)
    return tuple(causes)


def _read_setting(name: str) -> str:
    try:
        with open(f"/proc/sys/{name}") as file:
            return file.read().strip()
    except OSError:
        return ""


class LevelUnavailable(StartFailed):
    """A fork server could not set up its level of the sandbox; a weaker one may work."""


def get_writable_paths(config: SessionConfig) -> tuple[str, ...]:
    return (*config.sandbox.writable, *((config.workdir,) if config.workdir else ()))


def build_sandbox_spec(config: SessionConfig, level: SandboxLevel) -> SandboxSpec:
    """Translate the sandbox policy into what the child process needs, at one level."""
    policy = config.sandbox
    network = policy.network if isinstance(policy.network, str) else "proxy"
    return SandboxSpec(
        level=level,
        readable=(*policy.readable, *config.import_path),
        writable=get_writable_paths(config),
        network=network,
        memory=policy.memory_mb * MB if policy.memory_mb else None,
        cpu_seconds=policy.cpu_seconds,
        processes=policy.processes,
        open_files=policy.open_files,
        file_size=policy.disk_mb * MB,
        disk=policy.disk_mb * MB,
        terminals=policy.terminals,
        uid=policy.run_as if os.geteuid() == 0 else None,
    )


def list_candidate_levels(config: SessionConfig) -> tuple[SandboxLevel, ...]:
    """Return the levels to try on this platform, from the policy's ``level`` down to its ``require``."""
    policy = config.sandbox
    strongest, weakest = SANDBOX_LEVELS.index(policy.level), SANDBOX_LEVELS.index(policy.weakest_level)
    levels: tuple[SandboxLevel, ...] = tuple(reversed(SANDBOX_LEVELS[weakest : strongest + 1]))
    if not sys.platform.startswith("linux"):
        levels = tuple(level for level in levels if level == "plain")
        if not levels:
            remedies = describe_remedies(policy.weakest_level)
            raise SandboxUnavailable(policy.weakest_level, "plain", f"this level needs Linux; {remedies}")
    return levels


def check_paths(config: SessionConfig) -> None:
    """Raise StartFailed for a missing path. Otherwise the level would seem unavailable and a weaker one be used."""
    for access, paths in (("readable", config.sandbox.readable), ("writable", get_writable_paths(config))):
        for path in paths:
            if not os.path.isabs(path) or not os.path.exists(path):
                raise StartFailed(f"{access} path {path!r} of the sandbox policy does not exist or is not absolute")


def warn_of_weaker_level(config: SessionConfig, level: SandboxLevel, reasons: list[str]) -> None:
    wanted = config.sandbox.level
    if level != wanted:
        why = "; ".join(reasons) or "it needs Linux"
        _log.warning("workers run at the sandbox level %r instead of %r: %s", level, wanted, why)
