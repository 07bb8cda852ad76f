"""Linux system calls that Python 3.11 does not provide. Each raises OSError with what was attempted."""

import _signal  # type: ignore[import-not-found]
import ctypes
import errno
import functools
import os
import platform
import sys

# signal.signal without its enums, whose memory pages would be copied into every worker.
set_signal = _signal.signal
_SIGCHLD = int(_signal.SIGCHLD)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ANY_NEW_NAMESPACE = 0x7E020080

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME = 1, 4, 15
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE = 22, 36, 38, 41

_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000


@functools.cache
def machine() -> str:
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())


@functools.cache
def libc() -> ctypes.CDLL:
    if not sys.platform.startswith("linux"):
        raise OSError("this system call exists on Linux only")
    return ctypes.CDLL(None, use_errno=True)


def check_result(result: int, action: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object, action: str) -> int:
    return check_result(libc().syscall(ctypes.c_long(number), *arguments), action)


def fork_sibling() -> int:
    """Fork a child of this process's parent, which reaps it. Returns as ``os.fork`` does. Needs a single thread.

    It calls what ``os.fork`` calls before and after, but not the handlers that C libraries have registered: use it for
    a process that computes something and exits.
    """
    # Unlike CDLL, this keeps the interpreter's lock, which a child could not get back.
    python = ctypes.PyDLL(None, use_errno=True)
    number = _CLONE.get(machine())
    if number is None:
        raise OSError(errno.ENOSYS, "clone is not known on this machine")
    python.PyOS_BeforeFork()
    pid: int = python.syscall(ctypes.c_long(number), ctypes.c_long(_CLONE_PARENT | _SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    return check_result(pid, "clone")


def unshare(flags: int) -> None:
    check_result(libc().unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    check_result(libc().setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    check_result(libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def encode(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    result = libc().mount(encode(source), encode(target), encode(kind), ctypes.c_ulong(flags), encode(options))
    check_result(result, f"mount {source or kind} on {target}")


def restrict_mount(target: str, attributes: int, *, recursive: bool = True) -> None:
    """Add attributes such as MOUNT_ATTR_RDONLY to a mount and to everything mounted below it."""
    request = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    syscall(
        _MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(request),
        ctypes.c_size_t(ctypes.sizeof(request)),
        action=f"restrict the mount {target}",
    )


def pivot_into(new_root: str) -> None:
    """Make the mount point ``new_root`` the root directory and unmount the old one."""
    os.chdir(new_root)
    syscall(_PIVOT_ROOT[machine()], b".", b".", action="pivot_root")
    check_result(libc().umount2(b".", ctypes.c_int(MNT_DETACH)), "detach the old root")
    os.chdir("/")


def drop_capabilities() -> None:
    """Drop every capability in this user namespace. With no-new-privileges, exec does not restore them."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    syscall(_CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing), action="capset")


def map_identity(uid: int, gid: int) -> None:
    """Map the user and the group to themselves in a new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        # Not open(), whose buffers would be copied into every worker.
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
