"""The seccomp filter of every architecture, run by a small BPF interpreter."""

import os
import re
import socket

import pytest

from standfast.workers.child.sandbox import seccomp, syscalls
from standfast.workers.child.sandbox.confinement import get_socket_families
from standfast.workers.wire.control import SandboxSpec

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
ALLOWED, KILLED = "allowed", "killed"
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def verdict(program, *, number, audit, arguments=()):
    """Return what the kernel would do with one call."""
    words = {0: number, 4: audit, 8: 0, 12: 0}
    for at in range(6):
        value = arguments[at] if at < len(arguments) else 0
        words[16 + 8 * at], words[20 + 8 * at] = value & 0xFFFFFFFF, value >> 32
    at = loaded = 0
    while True:
        step = program[at]
        at += 1
        match step.code:
            case 0x20:
                loaded = words[step.operand]
            case 0x15:
                at += step.jump_if_true if loaded == step.operand else step.jump_if_false
            case 0x35:
                at += step.jump_if_true if loaded >= step.operand else step.jump_if_false
            case 0x45:
                at += step.jump_if_true if loaded & step.operand else step.jump_if_false
            case 0x54:
                loaded &= step.operand
            case 0x06 if step.operand == 0x7FFF0000:
                return ALLOWED
            case 0x06 if step.operand == 0x80000000:
                return KILLED
            case 0x06 if step.operand >> 16 == 5:
                return step.operand & 0xFFFF
            case _:
                raise AssertionError(f"no such instruction: {step}")


@pytest.fixture(params=[(arch, level) for arch in ARCHITECTURES for level in ("locked", "namespaces")], ids="-".join)
def judge(request):
    arch, level = request.param
    column, audit = ARCHITECTURES[arch]
    program = seccomp.build_program(
        families=get_socket_families(SandboxSpec(level=level)), arch=arch, namespaces=level == "namespaces"
    )

    def judged(number, *arguments, audit=audit):
        return verdict(program, number=number, audit=audit, arguments=arguments)

    judged.arch, judged.column, judged.is_locked, judged.program = arch, column, level == "locked", program
    return judged


def test_denied_calls_fail_and_all_others_are_allowed(judge):
    denied = {numbers[judge.column] for numbers in seccomp.DENIED.values()} - {-1}
    if judge.is_locked:
        denied |= {numbers[judge.column] for numbers in seccomp.DENIED_WITHOUT_NAMESPACES.values()} - {-1}
    absent = {numbers[judge.column] for numbers in seccomp.ABSENT.values()}
    special = list_checked_calls(judge.column) - denied
    assert not denied & absent
    assert not (denied | absent) & special
    for number in set(range(600)) - special:
        expected = 1 if number in denied else 38 if number in absent or number > 469 else ALLOWED
        assert judge(number) == judge(number, *[0xFFFFFFFFFFFFFFFF] * 6) == expected, number


def list_checked_calls(column: int) -> set[int]:
    """Return the calls whose arguments decide."""
    tables = (
        seccomp.MODE_ARGUMENTS,
        seccomp.OPEN_ARGUMENTS,
        seccomp.ONLY_SELF,
        seccomp.ONLY_SELF_WITHOUT_NAMESPACES,
    )
    calls = {entry[0][column] for table in tables for entry in table.values()}
    others = (seccomp.CLONE, seccomp.SOCKET, seccomp.SOCKET_PAIR, seccomp.SOCKET_OPTION)
    return calls | {numbers[column] for numbers in others}


def test_no_file_gets_a_set_user_id_bit(judge):
    for name, (numbers, argument) in seccomp.MODE_ARGUMENTS.items():
        if numbers[judge.column] >= 0:
            before = [0] * argument
            for bits in (0o4755, 0o2755, 0o6000, 0o106755):
                assert judge(numbers[judge.column], *before, bits) == 1, name
            if name not in seccomp.DENIED_WITHOUT_NAMESPACES or not judge.is_locked:
                assert judge(numbers[judge.column], *before, 0o100755) == ALLOWED, name
    for numbers, flags, mode in seccomp.OPEN_ARGUMENTS.values():
        if numbers[judge.column] >= 0:
            for flag, bits, expected in (
                (os.O_CREAT | os.O_WRONLY, 0o4755, 1),
                (os.O_TMPFILE | os.O_RDWR, 0o2700, 1),
                (os.O_CREAT, 0o1777, ALLOWED),
                (os.O_RDONLY, 0o6000, ALLOWED),
            ):
                arguments = [0] * 4
                arguments[flags], arguments[mode] = flag, bits
                assert judge(numbers[judge.column], *arguments) == expected


def test_limits_and_priorities_of_other_processes_are_left_alone(judge):
    tables = seccomp.ONLY_SELF | seccomp.ONLY_SELF_WITHOUT_NAMESPACES
    for name, (numbers, values) in tables.items():
        number = numbers[judge.column]
        assert judge(number, *values) == ALLOWED
        expected = 1 if judge.is_locked or name in seccomp.ONLY_SELF else ALLOWED
        for at, value in enumerate(values):
            assert judge(number, *values[:at], value + 1, *values[at + 1 :]) == expected, name


def test_a_pair_of_sockets_cannot_be_connected_to_another_without_namespaces(judge):
    number = seccomp.SOCKET_PAIR[judge.column]
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK):
            assert judge(number, socket.AF_UNIX, kind | flags) == ALLOWED
            for other in (socket.SOCK_DGRAM, socket.SOCK_RAW):
                assert judge(number, socket.AF_UNIX, other | flags) == (1 if judge.is_locked else ALLOWED)


def test_no_module_is_loaded_for_a_socket(judge):
    families = get_socket_families(SandboxSpec(level="locked" if judge.is_locked else "namespaces"))
    for family in families:
        for protocol in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMPV6):
            assert judge(seccomp.SOCKET[judge.column], family, socket.SOCK_STREAM, protocol) == ALLOWED
        for protocol in (2, 33, 115, 132, 136, 256, 262, 0xFFFFFFFF):
            assert judge(seccomp.SOCKET[judge.column], family, socket.SOCK_STREAM, protocol) == 93
    for family in set(range(50)) - {socket.AF_UNIX}:
        assert judge(seccomp.SOCKET_PAIR[judge.column], family, socket.SOCK_STREAM) == 97
    assert judge(seccomp.SOCKET_OPTION[judge.column], 0, socket.IPPROTO_TCP, 31) == 92


def test_the_buffers_of_a_socket_stay_as_they_are(judge):
    number = seccomp.SOCKET_OPTION[judge.column]
    for name in range(100):
        expected = 0 if name in (socket.SO_SNDBUF, socket.SO_RCVBUF) else ALLOWED
        assert judge(number, 0, socket.SOL_SOCKET, name) == expected
        assert judge(number, 0, socket.SOL_IP, name) == ALLOWED


def test_a_foreign_architecture_kills_the_process(judge):
    for number in (0, 39, 101, 500):
        for audit in (0x40000003, 0xC00000F3, *(a for _, a in ARCHITECTURES.values())):
            if ARCHITECTURES[judge.arch][1] != audit:
                assert judge(number, audit=audit) == KILLED
    if judge.arch == "x86_64":
        assert judge(0x40000000 + 39) == KILLED


def test_processes_and_threads_may_be_made_and_namespaces_not(judge):
    clone = seccomp.CLONE[judge.column]
    for harmless in (17, 0x3D0F00, 0x01200011, 0x4111):
        assert judge(clone, harmless) == ALLOWED
    for name in ("NEWNS", "NEWCGROUP", "NEWUTS", "NEWIPC", "NEWUSER", "NEWPID", "NEWNET"):
        assert judge(clone, getattr(syscalls, f"CLONE_{name}") | 17) == 1


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("network", ["none", "host", "proxy"])
@pytest.mark.parametrize("level", ["locked", "namespaces"])
def test_only_the_socket_families_of_the_policy_are_allowed(arch, network, level):
    column, audit = ARCHITECTURES[arch]
    families = get_socket_families(SandboxSpec(level=level, network=network))
    program = seccomp.build_program(families=families, arch=arch, namespaces=level == "namespaces")
    assert (int(socket.AF_UNIX) in families) == (level == "namespaces")
    assert (int(socket.AF_INET) in families) == (level == "namespaces" or network == "host")
    assert (int(socket.AF_NETLINK) in families) == (network == "host")
    for family in range(64):
        actual = verdict(program, number=seccomp.SOCKET[column], audit=audit, arguments=(family, 1, 0))
        assert actual == (ALLOWED if family in families else 97)


def test_the_kernel_can_take_the_program(judge):
    program = judge.program
    assert len(program) < 4096
    assert all(0 <= step.jump_if_true < 256 and 0 <= step.jump_if_false < 256 for step in program)
    assert program[-1].code == 0x06


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernels_headers(arch):
    if not os.path.exists(HEADERS[arch]):
        pytest.skip("the kernel's headers are not installed")
    with open(HEADERS[arch]) as file:
        known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", file.read())}
    column, _ = ARCHITECTURES[arch]
    ours = {
        **seccomp.DENIED,
        **seccomp.DENIED_WITHOUT_NAMESPACES,
        **seccomp.ABSENT,
        "clone": seccomp.CLONE,
        "socket": seccomp.SOCKET,
        "socketpair": seccomp.SOCKET_PAIR,
        **{name: entry[0] for name, entry in (*seccomp.MODE_ARGUMENTS.items(), *seccomp.OPEN_ARGUMENTS.items())},
        **{name: e[0] for name, e in (*seccomp.ONLY_SELF.items(), *seccomp.ONLY_SELF_WITHOUT_NAMESPACES.items())},
    }
    newer = {name for name, numbers in ours.items() if numbers[column] > max(known.values())}
    assert {name: ours[name][column] for name in ours if name not in newer} == {
        name: known.get(name, -1) for name in ours if name not in newer
    }
