"""Control groups of version 2, in a mount and a control group namespace of the test's own."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from standfast.workers import StartFailed
from standfast.workers._host.cgroups import ControlGroups
from standfast.workers._host.process_group import ProcessGroup

# The program is alone in a group that it sees as the root of a version 2 tree: what delegation gives.
DELEGATED = """
import asyncio, os, sys
from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession
from standfast.workers._host.cgroups import delegate_controllers
from standfast.workers.child.sandbox import syscalls

group, controllers = sys.argv[1], set(sys.argv[2:])
with open(f"{group}/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWCGROUP)
syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
# Where version 2 is mounted already, it cannot be mounted right upon itself.
syscalls.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0)
syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0)

def here():
    with open("/proc/self/cgroup") as file:
        return next(line for line in file if line.startswith("0::")).strip()
"""
HANDS_ON = """
assert here() == "0::/"
delegate_controllers("/sys/fs/cgroup", controllers)
assert here() == "0::/standfast-host", here()
with open("/sys/fs/cgroup/cgroup.subtree_control") as file:
    assert set(file.read().split()) == controllers
os.mkdir("/sys/fs/cgroup/below")
with open("/sys/fs/cgroup/below/cgroup.controllers") as file:
    assert set(file.read().split()) == controllers
delegate_controllers("/sys/fs/cgroup", controllers)
os.rmdir("/sys/fs/cgroup/below")
print("handed on")
"""
REFUSES = """
other = os.fork()
if other == 0:
    if os.fork():
        os._exit(0)
    import time
    os.closerange(0, 3)
    time.sleep(60)
    os._exit(0)
os.waitpid(other, 0)
try:
    delegate_controllers("/sys/fs/cgroup", controllers)
except OSError as refused:
    print(refused)
assert here() == "0::/"
try:
    delegate_controllers("/sys/fs/cgroup", {"teleport"})
except OSError as refused:
    print(refused)
"""
UNIT = """
unit = "/sys/fs/cgroup/some.service"
os.makedirs(f"{unit}/below")
for group in (unit, f"{unit}/below"):
    try:
        delegate_controllers(group, set())
    except OSError as refused:
        print(refused)
os.setxattr(unit, "user.delegate", b"1")
for group in (unit, f"{unit}/below"):
    delegate_controllers(group, set())
print("handed on")
"""
LIMITS = """
async def main():
    policy = SandboxPolicy(memory_mb=100, disk_mb=400, cgroup=True)
    fill = "x = bytearray(60 << 20)\\nwith open('fill', 'wb') as f:\\n    for _ in range(300): f.write(bytes(1 << 20))"
    async with WorkerSession(SessionConfig(sandbox=policy)) as session:
        print(session.info.metadata["sandbox_notes"])
        result = await session.run(fill, timeout=20)
        print(result.state, result.error and result.error.cause)
    print([name for name in os.listdir("/sys/fs/cgroup") if name.startswith("standfast") and name != "standfast-host"])

asyncio.run(main())
"""


@pytest.fixture
def delegated():
    """Runs a script in a group of its own that has all controllers of version 2 which this machine can give."""
    with open("/proc/self/mounts") as file:
        roots = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
    if not roots or os.geteuid() != 0 or not os.access(roots[0], os.W_OK):
        pytest.skip("no control groups of version 2 that this user may make")
    root, group = roots[0], f"{roots[0]}/standfast-test-{os.getpid()}"
    with open(f"{root}/cgroup.subtree_control") as file:
        before = set(file.read().split())
    with open(f"{root}/cgroup.controllers") as file:
        given = set(file.read().split()) & {"memory", "pids", "hugetlb"}
    if not given:
        pytest.skip("no controller is bound to version 2 here")
    try:
        with open(f"{root}/cgroup.subtree_control", "w") as file:
            file.write(" ".join(f"+{name}" for name in given))
        os.mkdir(group)
    except OSError as problem:
        pytest.skip(f"no control groups of version 2: {problem}")

    def run(script: str) -> tuple[set[str], list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", DELEGATED + script, group, *given],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": "src"},
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return given, done.stdout.splitlines()

    yield run
    for path, _, _ in sorted(os.walk(group), reverse=True):
        with open(f"{path}/cgroup.kill", "w") as file:
            file.write("1")
        while True:
            try:
                os.rmdir(path)
                break
            except OSError:
                continue
    with open(f"{root}/cgroup.subtree_control", "w") as file:
        file.write(" ".join(f"-{name}" for name in given - before))


def test_a_program_alone_in_its_group_steps_down_and_hands_its_controllers_on(delegated):
    _, said = delegated(HANDS_ON)
    assert said == ["handed on"]


def test_others_are_not_moved_and_what_is_not_there_is_named(delegated):
    _, said = delegated(REFUSES)
    assert "Delegate=yes" in said[0]
    assert "has no teleport" in said[1]


def test_a_group_that_systemd_did_not_delegate_is_left_alone(delegated):
    """It would end the whole unit when a worker is killed for memory."""
    _, said = delegated(UNIT)
    assert len(said) == 3
    assert all("some.service" in line and "Delegate=yes" in line for line in said[:2])
    assert said[2] == "handed on"


def test_the_limits_hold_and_the_cause_is_told_or_their_lack_is_noted(delegated):
    given, said = delegated(LIMITS)
    if {"memory", "pids"} <= given:
        assert said == ["()", "lost memory-limit", "[]"]
    else:
        assert "has no memory" in said[0]
        assert said[1:] == ["preserved None", "[]"]


async def test_a_keeper_that_died_at_the_gate_does_not_put_the_host_into_its_group(tmp_path):
    """To the kernel, process 0 is the one that writes."""
    keeper = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(keeper.pid)
    await keeper.communicate(b"")
    ours, theirs = socket.socketpair()
    with theirs:
        family = ProcessGroup(ours, pidfd, keeper.pid, ControlGroups((str(tmp_path),)))
        with pytest.raises(StartFailed):
            family.enter_cgroups()
        family.close()
    assert not (tmp_path / "cgroup.procs").exists()
