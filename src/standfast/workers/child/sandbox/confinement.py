"""Confine the worker process itself: resource limits, capabilities, Landlock and seccomp."""

import contextlib
import os
import resource
import socket

from standfast.workers.child.sandbox import landlock, seccomp
from standfast.workers.child.sandbox.namespaces import DEVICES
from standfast.workers.child.sandbox.syscalls import drop_capabilities
from standfast.workers.wire.control import SandboxSpec


def confine_process(
    spec: SandboxSpec, directory: str, readable: tuple[str, ...], *, processes_counted: bool
) -> tuple[str, ...]:
    """Confine the calling process irrevocably, as its level requires. Returns what could not be enforced.

    ``processes_counted`` says that a control group limits the number of processes.
    """
    own_namespaces = spec.level == "namespaces"
    notes = apply_limits(spec, own_user_namespace=own_namespaces, processes_counted=processes_counted)
    if spec.level == "plain":
        return notes
    drop_capabilities()
    devices = tuple(f"/dev/{name}" for name in DEVICES)
    if own_namespaces:
        # The root contains only what may be read, so it is enough to restrict writing.
        readable, private = ("/",), (directory, "/proc/self")
    else:
        readable, private = (*readable, "/dev"), (directory, f"/proc/{os.getpid()}")
    allow_tcp = spec.network == "host" or own_namespaces
    version = landlock.restrict(readable, (*spec.writable, *devices, *private), tcp=allow_tcp)
    seccomp.install_filter(families=get_socket_families(spec))
    return notes + landlock.describe_gaps(
        version, namespaces=own_namespaces, own_network=own_namespaces and spec.network != "host"
    )


def get_socket_families(spec: SandboxSpec) -> tuple[int, ...]:
    """Return the socket families that a worker may use: never vsock or packet, which no namespace isolates."""
    families = [socket.AF_UNIX]
    if spec.network == "host" or spec.level == "namespaces":
        families += [socket.AF_INET, socket.AF_INET6]
    if spec.network == "host":
        families.append(socket.AF_NETLINK)
    return tuple(int(family) for family in families)


def apply_limits(spec: SandboxSpec, *, own_user_namespace: bool, processes_counted: bool) -> tuple[str, ...]:
    """Set the resource limits of this process and its descendants. Returns what could not be enforced."""
    notes: list[str] = []
    _set_limit(resource.RLIMIT_CORE, 0)
    # Not RLIMIT_AS, since libraries reserve much more address space than they use.
    _set_limit(resource.RLIMIT_DATA, spec.memory)
    _set_limit(resource.RLIMIT_NOFILE, spec.open_files)
    _set_limit(resource.RLIMIT_FSIZE, spec.file_size)
    if spec.cpu_seconds is not None:
        # The soft limit sends SIGXCPU, which names the cause. The hard limit a second later cannot be caught.
        _set_limit(resource.RLIMIT_CPU, spec.cpu_seconds, hard=spec.cpu_seconds + 1)
    if spec.processes is not None:
        if own_user_namespace:
            _set_limit(resource.RLIMIT_NPROC, spec.processes + 2)
        elif not processes_counted:
            notes.append("the number of processes is not limited: this needs a user namespace or a control group")
    return tuple(notes)


def _set_limit(kind: int, soft: int | None, *, hard: int | None = None) -> None:
    if soft is None:
        return
    _, maximum = resource.getrlimit(kind)
    hard = soft if hard is None else hard
    if maximum != resource.RLIM_INFINITY:
        hard = min(hard, maximum)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, hard), hard))
