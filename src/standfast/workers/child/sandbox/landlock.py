"""Landlock: restrict which files may be read and written, in addition to their permissions."""

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from standfast.workers.child.sandbox.syscalls import prctl, syscall

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


def get_abi_version() -> int:
    """Return the version of Landlock in the kernel; 0 when it has none."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_QUERY), action="landlock version")
    except (OSError, AttributeError):
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str], *, tcp: bool) -> int:
    """Restrict this thread and its descendants irrevocably. Returns the version in use; see ``describe_gaps``.

    It must be called before any thread is started. Paths that do not exist are skipped.
    """
    version = get_abi_version()
    if version < 1:
        raise OSError("the kernel does not support Landlock")
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


def describe_gaps(version: int, *, namespaces: bool, own_network: bool) -> tuple[str, ...]:
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
