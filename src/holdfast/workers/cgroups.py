"""Control groups, where this process may make them: exact limits for a worker and all its processes.

Version 2 with delegation, or version 1 as root. Where neither is to be had, nothing is done: resource
limits and namespaces hold all the same.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.workers.config import MB, SandboxPolicy

_ROOT = "/sys/fs/cgroup"


class Groups:
    """The groups of one worker: its keeper is admitted before it forks anything.

    ``notes`` name what was asked for and cannot be had here.
    """

    def __init__(self, paths: tuple[str, ...], notes: tuple[str, ...] = ()) -> None:
        self.paths, self.notes = paths, notes

    def admit(self, pid: int) -> None:
        for path in self.paths:
            with open(f"{path}/cgroup.procs", "w") as file:
                file.write(str(pid))

    @property
    def killed_for_memory(self) -> bool:
        """Whether the kernel killed something in here because memory ran out."""
        for path in self.paths:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError), open(f"{path}/{name}") as file:
                    facts = dict(line.split() for line in file if len(line.split()) == 2)
                    if int(facts.get("oom_kill", 0)) > 0:
                        return True
        return False


@asynccontextmanager
async def made_for(policy: SandboxPolicy, name: str) -> AsyncIterator[Groups]:
    """Make the groups this machine allows; they are removed at the end, when their processes are gone."""
    made: list[str] = []
    notes: list[str] = []
    try:
        wanted = _wanted(policy, f"holdfast-{name}") if policy.cgroup else []
        for path, settings in wanted:
            problem = _make(path, settings)
            if problem is None:
                made.append(path)
            else:
                notes.append(f"no control group for {', '.join(settings)}: {problem}")
        if policy.cgroup and not wanted:
            notes.append("no control group: this process is in none of its own")
        yield Groups(tuple(made), tuple(notes))
    finally:
        for path in made:
            await _remove(path)


async def _remove(path: str) -> None:
    """A group can be removed once its last process has been collected, which takes a moment."""
    for _ in range(200):
        try:
            os.rmdir(path)
        except OSError:
            await asyncio.sleep(0.005)
        else:
            return


def _wanted(policy: SandboxPolicy, name: str) -> list[tuple[str, dict[str, int]]]:
    whole = policy.whole_memory_mb * MB if policy.whole_memory_mb else None
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        base = _own_group()
        limits = {"memory.max": whole, "memory.swap.max": 0, "pids.max": policy.processes}
        return [(f"{base}/{name}", {k: v for k, v in limits.items() if v is not None})] if base else []
    found: list[tuple[str, dict[str, int]]] = []
    if whole is not None:
        found.append((f"{_ROOT}/memory/{name}", {"memory.limit_in_bytes": whole}))
    if policy.processes is not None:
        found.append((f"{_ROOT}/pids/{name}", {"pids.max": policy.processes + 2}))
    return found


def _own_group() -> str:
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2)[2] for line in file if line.startswith("0::")]
    except OSError:
        return ""
    return f"{_ROOT}{lines[0]}".rstrip("/") if lines else ""


def _make(path: str, settings: dict[str, int]) -> OSError | None:
    """Make a group with these limits, all of them or none. Returns why it cannot be made."""
    try:
        os.mkdir(path)
    except OSError as problem:
        return problem
    try:
        for name, value in settings.items():
            with open(f"{path}/{name}", "w") as file:
                file.write(str(value))
    except OSError as problem:
        os.rmdir(path)
        return problem
    return None
