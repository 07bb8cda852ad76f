"""Control groups: exact limits for a worker and all its processes, where this process may create groups.

Supported are version 2 with delegation and version 1 as root. Without them, resource limits and namespaces still
apply.

In version 2, only a group without processes of its own can delegate controllers to its subgroups. A program that is
alone in its group is therefore moved into a subgroup, beside those of its workers.
"""

import asyncio
import contextlib
import errno
import functools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from standfast.workers.config import MB, SandboxPolicy
from standfast.workers.errors import StartFailed

_ROOT = "/sys/fs/cgroup"
_PREFIX = "standfast-"
_HOST_GROUP = f"{_PREFIX}host"


class ControlGroups:
    """The control groups of one worker. The supervisor enters them before it forks the worker.

    ``notes`` lists the limits that were requested and are not available here.
    """

    def __init__(self, paths: tuple[str, ...], notes: tuple[str, ...] = ()) -> None:
        self.paths, self.notes = paths, notes
        self._ignored_oom_kills = 0

    @contextlib.contextmanager
    def open_members(self) -> Iterator[tuple[int, ...]]:
        """Open the lists of members, for the supervisor: a process that writes ``0`` enters the group.

        Moving another process makes the kernel wait for all processors, for milliseconds, and so does ``cgroup.procs``.
        Version 1 has ``tasks``, with which a process moves itself at once.
        """
        fds: list[int] = []
        try:
            for path in self.paths:
                name = "tasks" if os.path.exists(f"{path}/tasks") else "cgroup.procs"
                fds.append(os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC))
            yield tuple(fds)
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def limits_processes(self) -> bool:
        return any(os.path.exists(f"{path}/pids.max") for path in self.paths)

    @property
    def limits_memory(self) -> bool:
        names = ("memory.max", "memory.limit_in_bytes")
        return any(os.path.exists(f"{path}/{name}") for path in self.paths for name in names)

    @property
    def cpu_seconds(self) -> float:
        """The processor time of all processes, exactly, also of those that nothing waited for; 0 if it is unknown."""
        for path in self.paths:
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int(_read(f"{path}/cpu.stat").split()[1]) / 1e6
            with contextlib.suppress(OSError, ValueError):
                return int(_read(f"{path}/cpuacct.usage")) / 1e9
        return 0.0

    @property
    def has_oom_kill(self) -> bool:
        """Whether the kernel killed a process of these groups because they ran out of memory."""
        return self._count_oom_kills() > self._ignored_oom_kills

    def ignore_oom_kills(self) -> None:
        """Do not count what the kernel has killed so far: it was a copy, which the worker can do without."""
        self._ignored_oom_kills = self._count_oom_kills()

    def _count_oom_kills(self) -> int:
        for path in self.paths:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError), open(f"{path}/{name}") as file:
                    counters = dict(line.split() for line in file if len(line.split()) == 2)
                    if int(counters.get("oom_kill", 0)) > 0:
                        return int(counters["oom_kill"])
        return 0


@asynccontextmanager
async def create_cgroups(policy: SandboxPolicy, name: str) -> AsyncIterator[ControlGroups]:
    """Create the groups that this machine allows. They are removed at the end, when their processes have ended.

    Raises StartFailed when the policy demands groups that cannot be created.
    """
    created: list[str] = []
    notes: list[str] = []
    try:
        is_wanted = policy.cgroup is not False and sys.platform.startswith("linux")
        planned = _plan_groups(policy, f"{_PREFIX}{os.getpid()}-{name}") if is_wanted else []
        for parent in {os.path.dirname(path) for path, _ in planned}:
            _remove_abandoned_groups(parent)
        for path, settings in planned:
            problem = _create_group(path, settings)
            if problem is None:
                created.append(path)
            else:
                notes.append(f"no control group for {', '.join(settings) or 'processor time'}: {problem}")
        if is_wanted and not planned and (policy.memory_mb or policy.processes):
            notes.append("no control group: this process does not belong to one")
        if policy.cgroup and notes:
            raise StartFailed(f"the policy demands control groups (cgroup=True): {'; '.join(notes)}")
        yield ControlGroups(tuple(created), tuple(notes))
    finally:
        for path in created:
            await _remove_group(path)


@functools.cache
def _remove_abandoned_groups(parent: str) -> None:
    """Remove the groups of programs that were killed. A group that has processes is not removed."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            pid = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{parent}/{name}")


async def _remove_group(path: str) -> None:
    """Remove a group. It takes a moment until the kernel has reaped its last process."""
    delay = 0.0005
    while delay < 1.0:
        try:
            os.rmdir(path)
        except OSError:
            await asyncio.sleep(delay)
            delay *= 1.5
        else:
            return


def _plan_groups(policy: SandboxPolicy, name: str) -> list[tuple[str, dict[str, int]]]:
    memory = policy.total_memory_mb * MB if policy.total_memory_mb else None
    # The supervisor and the worker itself do not count.
    processes = None if policy.processes is None else policy.processes + 2
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        base = _find_own_group()
        limits = {"memory.max": memory, "memory.swap.max": memory and 0, "pids.max": processes}
        return [(f"{base}/{name}", {k: v for k, v in limits.items() if v is not None})] if base else []
    groups: list[tuple[str, dict[str, int]]] = []
    if memory is not None:
        groups.append((f"{_ROOT}/memory/{name}", {"memory.limit_in_bytes": memory}))
    if processes is not None:
        groups.append((f"{_ROOT}/pids/{name}", {"pids.max": processes}))
    if policy.cpu_seconds is not None:
        groups.append((f"{_ROOT}/cpuacct/{name}", {}))
    return groups


def _find_own_group() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2)[2] for line in file if line.startswith("0::")]
    except OSError:
        return ""
    return f"{_ROOT}{lines[0]}".rstrip("/").removesuffix(f"/{_HOST_GROUP}") if lines else ""


def delegate_controllers(group: str, controllers: set[str]) -> None:
    """Enable these version 2 controllers for the subgroups of ``group``. Raises OSError with the reason."""
    _check_delegated(group)
    missing = controllers - set(_read(f"{group}/cgroup.subtree_control").split())
    absent = missing - set(_read(f"{group}/cgroup.controllers").split())
    if absent:
        raise OSError(errno.ENODEV, f"the control group {group} has no {' and no '.join(sorted(absent))} controller")
    for _ in range(10):
        if not missing:
            return
        try:
            _write(f"{group}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
            missing = set()
        except OSError as problem:
            if problem.errno != errno.EBUSY:
                raise
            _move_into_subgroup(group)
    raise OSError(errno.EBUSY, f"new processes keep appearing in the control group {group}")


def _check_delegated(group: str) -> None:
    """Raise OSError for a group that systemd did not delegate.

    systemd stops the whole unit when the kernel kills one of its processes for memory.
    """
    unit = group
    while len(unit) > len(_ROOT) and not unit.endswith((".service", ".scope")):
        unit = os.path.dirname(unit)
    if len(unit) <= len(_ROOT):
        return
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(unit, attribute) == b"1":
                return
    raise OSError(
        errno.EPERM, f"the control group {unit} belongs to systemd; run the program in a unit with Delegate=yes"
    )


def _move_into_subgroup(group: str) -> None:
    """Move this process and its descendants into a subgroup. Raises OSError when others are in the group."""
    members = [int(word) for word in _read(f"{group}/cgroup.procs").split()]
    if not all(_is_own_process(pid) for pid in members):
        text = f"other processes are in the control group {group}; run the program in a unit with Delegate=yes"
        raise OSError(errno.EBUSY, text)
    os.makedirs(f"{group}/{_HOST_GROUP}", exist_ok=True)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            _write(f"{group}/{_HOST_GROUP}/cgroup.procs", str(pid))


def _is_own_process(pid: int) -> bool:
    """Whether this is our process or a descendant of it. One that has ended meanwhile counts too."""
    while pid not in (0, 1, os.getpid()):
        try:
            pid = int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except OSError:
            return True
    return pid == os.getpid()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    # Not open(), whose extra calls are on the way of every start.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _create_group(path: str, settings: dict[str, int]) -> OSError | None:
    """Create a group with all of these limits. Returns the error if that fails, and leaves no group then."""
    parent = os.path.dirname(path)
    try:
        if os.path.exists(f"{parent}/cgroup.subtree_control"):
            delegate_controllers(parent, {name.partition(".")[0] for name in settings})
        os.mkdir(path)
    except OSError as problem:
        return problem
    try:
        for name, value in settings.items():
            if name != "memory.swap.max" or os.path.exists(f"{path}/{name}"):
                _write(f"{path}/{name}", str(value))
    except OSError as problem:
        os.rmdir(path)
        return problem
    return None
