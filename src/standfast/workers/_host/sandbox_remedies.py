"""What this machine lacks for a sandbox level, and what to do about it."""

import os
import sys

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
_LESS = (
    "or accept less explicitly: SandboxPolicy(require='locked') reduces privileges, without a boundary between "
    "tenants; SandboxPolicy(require='plain') is no sandbox"
)


def describe_remedies() -> str:
    """Return what to do where a sandbox level is not available."""
    return "; ".join((*_find_causes(), _LESS))


def _find_causes() -> tuple[str, ...]:
    if not sys.platform.startswith("linux"):
        return ("run the workers on Linux, for example in a container or a virtual machine",)
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
