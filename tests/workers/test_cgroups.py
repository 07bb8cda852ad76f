"""Control groups of version 2, in separate mount and control group namespaces."""

import os
import socket
import subprocess
import sys

import pytest

from standfast.workers import StartFailed
from standfast.workers._host.cgroups import ControlGroups
from standfast.workers._host.process_group import ProcessGroup
from standfast.workers.wire.control import StartWorkerCommand

# The program is alone in a group that it sees as the root of a version 2 tree, as with delegation.
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
# Where version 2 is mounted already, it cannot be mounted over itself.
syscalls.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0)
syscalls.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0)

def get_own_group():
    with open("/proc/self/cgroup") as file:
        return next(line for line in file if line.startswith("0::")).strip()
"""
DELEGATES = """
assert get_own_group() == "0::/"
delegate_controllers("/sys/fs/cgroup", controllers)
assert get_own_group() == "0::/standfast-host", get_own_group()
with open("/sys/fs/cgroup/cgroup.subtree_control") as file:
    assert set(file.read().split()) == controllers
os.mkdir("/sys/fs/cgroup/below")
with open("/sys/fs/cgroup/below/cgroup.controllers") as file:
    assert set(file.read().split()) == controllers
delegate_controllers("/sys/fs/cgroup", controllers)
os.rmdir("/sys/fs/cgroup/below")
print("delegated")
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
except OSError as problem:
    print(problem)
assert get_own_group() == "0::/"
try:
    delegate_controllers("/sys/fs/cgroup", {"teleport"})
except OSError as problem:
    print(problem)
"""
UNIT = """
unit = "/sys/fs/cgroup/some.service"
os.makedirs(f"{unit}/below")
for group in (unit, f"{unit}/below"):
    try:
        delegate_controllers(group, set())
    except OSError as problem:
        print(problem)
os.setxattr(unit, "user.delegate", b"1")
for group in (unit, f"{unit}/below"):
    delegate_controllers(group, set())
print("delegated")
"""
LIMITS = """
async def main():
    policy = SandboxPolicy(memory_mb=100, disk_mb=400)
    fill = "x = bytearray(60 << 20)\\nwith open('fill', 'wb') as f:\\n    for _ in range(300): f.write(bytes(1 << 20))"
    async with WorkerSession(SessionConfig(sandbox=policy)) as session:
        print(tuple(note for note in session.info.metadata["sandbox_notes"] if "is not visible" not in note))
        result = await session.run(fill, timeout=60)
        print(result.state, result.error and result.error.cause)
    print([name for name in os.listdir("/sys/fs/cgroup") if name.startswith("standfast") and name != "standfast-host"])

asyncio.run(main())
"""


@pytest.fixture
def delegated():
    """Run a script in a new group with all version 2 controllers that this machine has."""
    with open("/proc/self/mounts") as file:
        roots = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
    if not roots or os.geteuid() != 0 or not os.access(roots[0], os.W_OK):
        pytest.skip("no control groups of version 2 that this user may make")
    root, group = roots[0], f"{roots[0]}/standfast-test-{os.getpid()}"
    with open(f"{root}/cgroup.subtree_control") as file:
        before = set(file.read().split())
    with open(f"{root}/cgroup.controllers") as file:
        controllers = set(file.read().split()) & {"memory", "pids", "hugetlb"}
    if not controllers:
        pytest.skip("no controller is bound to version 2 here")
    try:
        with open(f"{root}/cgroup.subtree_control", "w") as file:
            file.write(" ".join(f"+{name}" for name in controllers))
        os.mkdir(group)
    except OSError as problem:
        pytest.skip(f"no control groups of version 2: {problem}")

    def run(script: str) -> tuple[set[str], list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", DELEGATED + script, group, *controllers],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": "src"},
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return controllers, done.stdout.splitlines()

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
        file.write(" ".join(f"-{name}" for name in controllers - before))


def test_a_program_alone_in_its_group_moves_to_a_subgroup_and_delegates_its_controllers(delegated):
    _, output = delegated(DELEGATES)
    assert output == ["delegated"]


def test_other_processes_are_not_moved_and_a_missing_controller_is_named(delegated):
    _, output = delegated(REFUSES)
    assert "Delegate=yes" in output[0]
    assert "has no teleport" in output[1]


def test_a_group_that_systemd_did_not_delegate_is_left_alone(delegated):
    """systemd would stop the whole unit when a worker is killed for memory."""
    _, output = delegated(UNIT)
    assert len(output) == 3
    assert all("some.service" in line and "Delegate=yes" in line for line in output[:2])
    assert output[2] == "delegated"


def test_the_limits_hold_or_their_absence_is_noted(delegated):
    controllers, output = delegated(LIMITS)
    if {"memory", "pids"} <= controllers:
        assert output == ["()", "lost memory-limit", "[]"]
    else:
        assert "has no memory" in output[0]
        assert output[1:] == ["preserved None", "[]"]


async def test_a_supervisor_enters_its_groups_itself(tmp_path):
    """Moving another process stops the event loop for milliseconds, and process 0 is the process that writes."""
    (tmp_path / "tasks").touch()
    ours, theirs = socket.socketpair()
    with theirs:
        group = ProcessGroup(ours, None, 0, ControlGroups((str(tmp_path),)))
        group.start_worker(StartWorkerCommand(token="t"))
        _, (fd,), _, _ = socket.recv_fds(theirs, 1024, 2)
        assert os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path / "tasks")
        os.close(fd)
        assert (tmp_path / "tasks").read_text() == ""
        (tmp_path / "tasks").unlink()
        with pytest.raises(StartFailed, match="cannot be opened"):
            group.start_worker(StartWorkerCommand(token="t"))
        group.close()
