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
            case 0x06 if step.operand == 0x7FFF0000:
                return ALLOWED
            case 0x06 if step.operand == 0x80000000:
                return KILLED
            case 0x06 if step.operand >> 16 == 5:
                return step.operand & 0xFFFF
            case _:
                raise AssertionError(f"no such instruction: {step}")


@pytest.fixture(params=ARCHITECTURES)
def judge(request):
    column, audit = ARCHITECTURES[request.param]
    program = seccomp.build_program(families=get_socket_families(SandboxSpec(level="namespaces")), arch=request.param)

    def judged(number, *arguments, audit=audit):
        return verdict(program, number=number, audit=audit, arguments=arguments)

    judged.arch, judged.column = request.param, column
    return judged


def test_denied_calls_fail_and_all_others_are_allowed(judge):
    denied = {numbers[judge.column] for numbers in seccomp.DENIED.values()} - {-1}
    absent = {numbers[judge.column] for numbers in seccomp.ABSENT.values()}
    special = {seccomp.CLONE[judge.column], seccomp.SOCKET[judge.column]}
    assert not denied & absent
    assert not (denied | absent) & special
    for number in set(range(600)) - special:
        expected = 1 if number in denied else 38 if number in absent else ALLOWED
        assert judge(number) == judge(number, *[0xFFFFFFFFFFFFFFFF] * 6) == expected, number


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
    program = seccomp.build_program(families=families, arch=arch)
    assert int(socket.AF_UNIX) in families
    for family in range(64):
        actual = verdict(program, number=seccomp.SOCKET[column], audit=audit, arguments=(family, 1, 0))
        assert actual == (ALLOWED if family in families else 97)


def test_the_kernel_can_take_the_program(judge):
    program = seccomp.build_program(families=(1, 2, 10, 16), arch=judge.arch)
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
    ours = {**seccomp.DENIED, **seccomp.ABSENT, "clone": seccomp.CLONE, "socket": seccomp.SOCKET}
    newer = {name for name, numbers in ours.items() if numbers[column] > max(known.values())}
    assert {name: ours[name][column] for name in ours if name not in newer} == {
        name: known.get(name, -1) for name in ours if name not in newer
    }
