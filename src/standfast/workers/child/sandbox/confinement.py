"""Confine the worker process itself: resource limits, capabilities, Landlock and seccomp."""

import contextlib
import ctypes
import functools
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Iterable

from standfast.workers.child.sandbox import seccomp
from standfast.workers.child.sandbox.namespaces import DEVICES
from standfast.workers.child.sandbox.syscalls import drop_capabilities, prctl, syscall
from standfast.workers.wire.control import SandboxSpec

# The system calls and rights of Landlock.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE

# The number of file system rights in each version of the interface.
_RIGHTS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_TCP_BIND_CONNECT = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_MAX_PENDING_SIGNALS = 1024


@functools.cache
def get_landlock_version() -> int:
    """Return the version of Landlock in the kernel; 0 when it has none. Workers inherit it from the fork server."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_QUERY), action="landlock version")
    except (OSError, AttributeError):
        return 0


def check_availability(spec: SandboxSpec) -> None:
    """Raise OSError where workers could not be confined as their level requires."""
    if spec.level == "plain":
        return
    if get_landlock_version() < 1:
        raise OSError(
            "the kernel does not support Landlock (Linux 5.13, with landlock in its list of security modules)"
        )
    if not seccomp.is_available():
        raise OSError("there is no list of system calls for this processor")


def enter_landlock(readable: Iterable[str], writable: Iterable[str], *, tcp: bool) -> int:
    """Restrict this thread and its descendants irrevocably. Returns the version in use; see ``describe_landlock_gaps``.

    It must be called before any thread is started. Paths that do not exist are skipped.
    """
    version = get_landlock_version()
    rights = (1 << _RIGHTS_BITS.get(version, 16)) - 1
    attributes = struct.pack("QQQ", rights, 0 if tcp else _TCP_BIND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = syscall(_CREATE, attributes[:size], ctypes.c_size_t(size), ctypes.c_uint32(0), action="landlock")
    try:
        for path in readable:
            _allow(ruleset, path, _READ & rights)
        for path in writable:
            _allow(ruleset, path, rights)
        prctl(38, 1)
        syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0), action="landlock restrict")
    finally:
        os.close(ruleset)
    return version


def describe_landlock_gaps(version: int, *, namespaces: bool, own_network: bool) -> tuple[str, ...]:
    """Return what this version does not prevent and no namespace prevents either."""
    gaps = (
        (3, namespaces, "files elsewhere from being emptied"),
        (6, namespaces, "signals inside the sandbox"),
        (6, own_network, "abstract sockets of other programs out of reach"),
    )
    return tuple(
        f"Landlock {version} does not keep {what}"
        for since, prevented, what in gaps
        if version < since and not prevented
    )


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _FILE_RIGHTS
            rule = struct.pack("=Qi", rights, fd)
            syscall(
                _ADD,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                rule,
                ctypes.c_uint32(0),
                action=f"landlock rule for {path}",
            )
        finally:
            os.close(fd)


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
        readable, private = ("/",), (directory, *(("/dev/pts",) if spec.terminals else ()))
    else:
        readable, private = (*readable, f"/proc/{os.getpid()}"), (directory,)
    allow_tcp = spec.network == "host" or own_namespaces
    version = enter_landlock(readable, (*spec.writable, *devices, *private), tcp=allow_tcp)
    seccomp.install_filter(families=get_socket_families(spec), namespaces=own_namespaces)
    return notes + describe_landlock_gaps(
        version, namespaces=own_namespaces, own_network=own_namespaces and spec.network != "host"
    )


def get_socket_families(spec: SandboxSpec) -> tuple[int, ...]:
    """Return the socket families that a worker may use: never vsock or packet, which no namespace isolates.

    Without namespaces a socket of the family AF_UNIX could connect to every service of the user.
    """
    families = [socket.AF_UNIX] if spec.level == "namespaces" else []
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
    if sys.platform.startswith("linux"):
        # Queued signals and timers count for the user, also those of other workers and of the program.
        _set_limit(resource.RLIMIT_SIGPENDING, _MAX_PENDING_SIGNALS)
        # The program's user may be allowed to use real-time priorities, to which every other process gives way.
        _set_limit(resource.RLIMIT_RTPRIO, 0)
        _set_limit(resource.RLIMIT_NICE, 0)
    _set_limit(resource.RLIMIT_FSIZE, spec.file_size)
    if spec.file_size is not None and not own_user_namespace:
        notes.append("the disk limit applies to each file: all files together are not limited")
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
