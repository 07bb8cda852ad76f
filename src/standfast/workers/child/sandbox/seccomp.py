"""Seccomp: a filter of system calls, assembled as a BPF program.

It is a deny list: calls that user code does not need and that kernel exploits use fail with EPERM. Calls that are newer
than this list fail with ENOSYS. A call under a foreign architecture kills the process, since its numbers have other
meanings. Without namespaces, calls that reach other processes, files or sockets of the same user are denied too.
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
    "statmount": (457, 457),
    "listmount": (458, 458),
    "file_setattr": (469, 469),
    # These allocate memory that no limit of a process covers, or what all processes of a user or of the machine share.
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    # Objects of others can be used without opening them: their numbers are small.
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_unlink": (241, 181),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
}
# Landlock does not restrict these, so that without namespaces they would reach every file of the user.
DENIED_WITHOUT_NAMESPACES: dict[str, tuple[int, int]] = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
}
# These fail as if the kernel did not have them, so that libraries use calls that can be checked or limited.
ABSENT = {"clone3": (435, 435), "memfd_create": (319, 279), "openat2": (437, 437)}
CLONE, SOCKET, SOCKET_PAIR, SOCKET_OPTION = (56, 220), (41, 198), (53, 199), (54, 208)
# The default of a family, ICMP, TCP and UDP. The kernel would load a module for many others.
SOCKET_PROTOCOLS = (0, 1, 6, 17, 58)
HIGHEST_KNOWN_NUMBER = 469
# Calls that set a file mode, and which argument it is: set-user-id files would outlive the sandbox in a writable path.
MODE_ARGUMENTS: dict[str, tuple[tuple[int, int], int]] = {
    "chmod": ((90, -1), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
    "mknod": ((133, -1), 1),
    "mknodat": ((259, 33), 2),
    "creat": ((85, -1), 1),
}
# Calls whose mode counts only with a flag that creates a file: the arguments with the flags and with the mode.
OPEN_ARGUMENTS: dict[str, tuple[tuple[int, int], int, int]] = {"open": ((2, -1), 1, 2), "openat": ((257, 56), 2, 3)}
# Calls that are allowed if their first arguments are these: for the calling process only.
ONLY_SELF: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {"prlimit64": ((302, 261), (0,))}
ONLY_SELF_WITHOUT_NAMESPACES: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "sched_setparam": ((142, 118), (0,)),
    "sched_setscheduler": ((144, 119), (0,)),
    "sched_setaffinity": ((203, 122), (0,)),
    "sched_setattr": ((314, 274), (0,)),
    "setpriority": ((141, 140), (0, 0)),
    "ioprio_set": ((251, 30), (1, 0)),
}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_EPERM, _ENOSYS, _ENOPROTOOPT, _EPROTONOSUPPORT, _EAFNOSUPPORT = 1, 38, 92, 93, 97
# Level and name of socket options, and what setting them returns. Larger buffers are memory that no limit of a process
# covers: 0 pretends, as the kernel does above its maximum. TCP_ULP loads modules.
SOCKET_OPTIONS = {(1, 7): 0, (1, 8): 0, (6, 31): _ENOPROTOOPT}
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENT_0 = 0, 4, 16
_MODE_FILTER = 2
_SET_ID_BITS, _CREATING_FLAGS = 0o6000, 0o100 | 0o20000000
_AF_UNIX, _SOCKET_TYPE_BITS, _STREAM, _SEQUENCED_PACKETS = 1, 0xF, 1, 5


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


def build_program(*, families: tuple[int, ...], arch: str, namespaces: bool = True) -> list[BpfInstruction]:
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
    program += [BpfInstruction(_AT_LEAST, HIGHEST_KNOWN_NUMBER + 1, jump_if_false=1), return_errno(_ENOSYS)]
    only_self = ONLY_SELF if namespaces else ONLY_SELF | ONLY_SELF_WITHOUT_NAMESPACES
    bodies: list[tuple[tuple[int, int], list[BpfInstruction]]] = [
        *((numbers, [return_errno(_EPERM)]) for numbers in DENIED.values()),
        *((numbers, [return_errno(_ENOSYS)]) for numbers in ABSENT.values()),
        (CLONE, _deny_bits(0, ANY_NEW_NAMESPACE & ~0x80)),
        (SOCKET, [*_require_value(0, families, _EAFNOSUPPORT), *_allow_values(2, SOCKET_PROTOCOLS, _EPROTONOSUPPORT)]),
        (SOCKET_OPTION, _answer_options()),
        (SOCKET_PAIR, _allow_pairs(datagrams=namespaces)),
        *((numbers, _deny_bits(argument, _SET_ID_BITS)) for numbers, argument in MODE_ARGUMENTS.values()),
        *((numbers, _deny_created_modes(flags, mode)) for numbers, flags, mode in OPEN_ARGUMENTS.values()),
        *((numbers, _require_arguments(values)) for numbers, values in only_self.values()),
    ]
    if not namespaces:
        denied = [(numbers, [return_errno(_EPERM)]) for numbers in DENIED_WITHOUT_NAMESPACES.values()]
        bodies = [*denied, *bodies]
    for numbers, body in bodies:
        if numbers[column] >= 0:
            program += [BpfInstruction(_EQUAL, numbers[column], jump_if_false=len(body)), *body]
    return [*program, BpfInstruction(_RETURN, _ALLOW)]


def _load_argument(index: int) -> BpfInstruction:
    """Load the lower half of an argument, which is all that the kernel uses of an int."""
    return BpfInstruction(_LOAD, _OFFSET_ARGUMENT_0 + 8 * index)


def _deny_bits(argument: int, bits: int) -> list[BpfInstruction]:
    return [
        _load_argument(argument),
        BpfInstruction(_ANY_BIT, bits, jump_if_false=1),
        return_errno(_EPERM),
        BpfInstruction(_RETURN, _ALLOW),
    ]


def _deny_created_modes(flags: int, mode: int) -> list[BpfInstruction]:
    check = _deny_bits(mode, _SET_ID_BITS)
    return [_load_argument(flags), BpfInstruction(_ANY_BIT, _CREATING_FLAGS, jump_if_false=len(check) - 1), *check]


def _require_value(argument: int, values: tuple[int, ...], otherwise: int, *, mask: int = 0) -> list[BpfInstruction]:
    """Return an error unless the argument has one of the values."""
    checks = [BpfInstruction(_EQUAL, value, jump_if_true=len(values) - at) for at, value in enumerate(values)]
    masked = [BpfInstruction(_AND, mask)] if mask else []
    return [_load_argument(argument), *masked, *checks, return_errno(otherwise)]


def _allow_values(argument: int, values: tuple[int, ...], otherwise: int, *, mask: int = 0) -> list[BpfInstruction]:
    return [*_require_value(argument, values, otherwise, mask=mask), BpfInstruction(_RETURN, _ALLOW)]


def _allow_pairs(*, datagrams: bool) -> list[BpfInstruction]:
    of_unix = _require_value(0, (_AF_UNIX,), _EAFNOSUPPORT)
    if datagrams:
        return [*of_unix, BpfInstruction(_RETURN, _ALLOW)]
    # A datagram socket could send to any path, so that a pair of them would be as good as a socket.
    return [*of_unix, *_allow_values(1, (_STREAM, _SEQUENCED_PACKETS), _EPERM, mask=_SOCKET_TYPE_BITS)]


def _answer_options() -> list[BpfInstruction]:
    answers: list[BpfInstruction] = []
    for (level, name), errno in SOCKET_OPTIONS.items():
        answers += [_load_argument(1), BpfInstruction(_EQUAL, level, jump_if_false=3)]
        answers += [_load_argument(2), BpfInstruction(_EQUAL, name, jump_if_false=1), return_errno(errno)]
    return [*answers, BpfInstruction(_RETURN, _ALLOW)]


def _require_arguments(values: tuple[int, ...]) -> list[BpfInstruction]:
    checks: list[BpfInstruction] = []
    for at, value in enumerate(values):
        left = 2 * (len(values) - at - 1) + 1
        checks += [_load_argument(at), BpfInstruction(_EQUAL, value, jump_if_false=left)]
    return [*checks, BpfInstruction(_RETURN, _ALLOW), return_errno(_EPERM)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


@functools.cache
def assemble_program(families: tuple[int, ...], *, namespaces: bool) -> tuple[int, bytes]:
    """Return the number of instructions and their bytes. The fork server calls it, and workers inherit the cache."""
    program = build_program(families=families, arch=machine(), namespaces=namespaces)
    packed = (struct.pack("HBBI", i.code, i.jump_if_true, i.jump_if_false, i.operand) for i in program)
    return len(program), b"".join(packed)


def install_filter(*, families: tuple[int, ...], namespaces: bool) -> None:
    """Install the filter for this thread and its descendants, irrevocably. Sets no-new-privileges."""
    length, packed = assemble_program(families, namespaces=namespaces)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    program = _Program(length, packed)
    result = libc().prctl(22, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program))
    check_result(result, "seccomp filter")
