"""Seccomp: a filter of system calls, assembled as a BPF program.

It is a deny list: calls that user code does not need and that kernel exploits use fail with EPERM. A call under a
foreign architecture kills the process, since its numbers have other meanings.
"""

import ctypes
import functools
import struct
from typing import NamedTuple

from standfast.workers.child.sandbox.syscalls import (
    ANY_NEW_NAMESPACE,
    PR_SET_NO_NEW_PRIVS,
    check_result,
    libc,
    machine,
    prctl,
)

# name: (x86_64, aarch64); -1 where the architecture has no such call.
DENIED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "uselib": (134, -1),
    "sysfs": (139, -1),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "open_tree_attr": (467, 467),
    "personality": (135, 92),
    # These allocate memory that no limit of a process covers.
    "shmget": (29, 194),
    "memfd_secret": (447, 447),
}
# These fail as if the kernel did not have them, so that libraries use calls that can be checked or limited.
ABSENT = {"clone3": (435, 435), "memfd_create": (319, 279)}
CLONE, SOCKET = (56, 220), (41, 198)
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENT_0 = 0, 4, 16
_MODE_FILTER = 2


class BpfInstruction(NamedTuple):
    """One BPF instruction. The jumps are numbers of instructions to skip."""

    code: int
    operand: int
    jump_if_true: int = 0
    jump_if_false: int = 0


def is_available() -> bool:
    return machine() in _ARCHITECTURE


def return_errno(errno: int) -> BpfInstruction:
    return BpfInstruction(_RETURN, 0x00050000 | errno)


def build_program(*, families: tuple[int, ...], arch: str) -> list[BpfInstruction]:
    """Return the filter for one architecture, which allows sockets of these address families."""
    column = 0 if arch == "x86_64" else 1
    program = [
        BpfInstruction(_LOAD, _OFFSET_ARCH),
        BpfInstruction(_EQUAL, _ARCHITECTURE[arch], jump_if_true=1),
        BpfInstruction(_RETURN, _KILL),
        BpfInstruction(_LOAD, _OFFSET_NUMBER),
    ]
    if arch == "x86_64":
        program += [BpfInstruction(_AT_LEAST, _X32_BIT, jump_if_false=1), BpfInstruction(_RETURN, _KILL)]
    for numbers in DENIED.values():
        if numbers[column] >= 0:
            program += [BpfInstruction(_EQUAL, numbers[column], jump_if_false=1), return_errno(_EPERM)]
    for numbers in ABSENT.values():
        program += [BpfInstruction(_EQUAL, numbers[column], jump_if_false=1), return_errno(_ENOSYS)]
    program += [
        BpfInstruction(_EQUAL, CLONE[column], jump_if_false=4),
        BpfInstruction(_LOAD, _OFFSET_ARGUMENT_0),
        BpfInstruction(_ANY_BIT, ANY_NEW_NAMESPACE & ~0x80, jump_if_false=1),
        return_errno(_EPERM),
        BpfInstruction(_RETURN, _ALLOW),
    ]
    checks = [
        BpfInstruction(_EQUAL, family, jump_if_true=len(families) - index) for index, family in enumerate(families)
    ]
    body = [BpfInstruction(_LOAD, _OFFSET_ARGUMENT_0), *checks, return_errno(_EAFNOSUPPORT)]
    program += [BpfInstruction(_EQUAL, SOCKET[column], jump_if_false=len(body)), *body]
    return [*program, BpfInstruction(_RETURN, _ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


@functools.cache
def assemble_program(families: tuple[int, ...]) -> tuple[int, bytes]:
    """Return the number of instructions and their bytes. The fork server calls it, and workers inherit the cache."""
    program = build_program(families=families, arch=machine())
    packed = (struct.pack("HBBI", i.code, i.jump_if_true, i.jump_if_false, i.operand) for i in program)
    return len(program), b"".join(packed)


def install_filter(*, families: tuple[int, ...]) -> None:
    """Install the filter for this thread and its descendants, irrevocably. Sets no-new-privileges."""
    length, packed = assemble_program(families)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    program = _Program(length, packed)
    result = libc().prctl(22, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program))
    check_result(result, "seccomp filter")
