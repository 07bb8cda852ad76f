"""Limits on memory, processes and disk, with and without control groups."""

import asyncio
import dataclasses
import os
import sys

import pytest

from factories.workers import run_refused
from standfast.workers import SandboxPolicy, StartFailed
from standfast.workers._host.cgroups import create_cgroups

FORKS = (
    "import os, time\nmade = 0\n"
    "try:\n    for _ in range(500):\n        if os.fork() == 0:\n            time.sleep(60)\n        made += 1\n"
    "except BlockingIOError: pass\nmade"
)


async def test_a_fork_bomb_stops_at_the_limit_and_does_not_affect_others(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", processes=20))
    neighbour = await sandboxed(sandbox=SandboxPolicy(require="namespaces", processes=20))
    assert 0 < (await session.run(FORKS)).value <= 20
    assert (await neighbour.run("import subprocess; subprocess.run(['echo', 'fine']).returncode")).value == 0


async def test_a_memory_bomb_is_an_error_of_the_code(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", memory_mb=200))
    assert await run_refused(session, "x = bytearray(3 << 30)") == "MemoryError"
    assert await run_refused(session, "x = []\nwhile True: x.append(bytearray(1 << 20))") == "MemoryError"
    await session.run("del x")
    assert (await session.run("len(bytearray(50 << 20))")).value == 50 << 20


BOMBS = {
    "shared": "import mmap\nheld = []\nwhile True:\n    held.append(mmap.mmap(-1, 8 << 20)); held[-1].write(bytes(8 << 20))",
    "processes": (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        block = bytearray(80 << 20); time.sleep(60)\n"
        "time.sleep(60)"
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
async def test_memory_of_all_processes_above_the_limit_kills_the_worker_with_that_cause(start, kind):
    session = await start(sandbox=dataclasses.replace(start.config.sandbox, memory_mb=100, cgroup=False))
    result = await session.run(BOMBS[kind], timeout=60)
    assert (result.state, result.error.cause) == ("lost", "memory-limit")
    assert "the limit is 150 MB" in result.reason
    assert session.info.cause.kind == "memory-limit"


async def test_pages_that_processes_share_are_counted_once(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", memory_mb=100))
    code = (
        "import os, time\nblock = bytearray(80 << 20)\nchildren = []\nfor _ in range(6):\n    pid = os.fork()\n"
        "    if pid == 0:\n        time.sleep(1); os._exit(0)\n    children.append(pid)\n"
        "[os.waitpid(pid, 0)[1] for pid in children]"
    )
    assert (await session.run(code)).value == [0] * 6


@pytest.fixture
async def grouped(sandboxed, readable_python):
    """Sessions whose memory and processes a control group counts."""
    async with create_cgroups(SandboxPolicy(), f"test-{os.getpid()}") as groups:
        if groups.notes:
            pytest.skip(f"no control groups to be had here: {groups.notes}")

    async def begin(level="namespaces", **policy):
        policy = SandboxPolicy(level=level, require=level, cgroup=True, **policy)
        return await sandboxed(sandbox=policy, python=readable_python)

    return begin


FILLS = (
    "x = bytearray(60 << 20)\nwith open(tempfile.gettempdir() + '/fill', 'wb') as f:\n"
    "    for _ in range(300): f.write(bytes(1 << 20))"
)


async def test_memory_and_files_together_are_limited_by_a_control_group(grouped):
    session = await grouped(memory_mb=100, disk_mb=400)
    result = await session.run(f"import tempfile\n{FILLS}", timeout=60)
    assert (result.state, result.error.cause) == ("lost", "memory-limit")


async def test_a_process_killed_by_the_control_group_ends_its_worker(grouped):
    session = await grouped(memory_mb=100, disk_mb=400)
    code = f"import os, tempfile, time\nif os.fork():\n    time.sleep(60)\n{FILLS}"
    result = await session.run(code, timeout=60)
    assert (result.state, result.error.cause) == ("lost", "memory-limit")
    assert session.info.cause.kind == "memory-limit"


SOCKETS = """
import os, socket, time
for _ in range(7):
    if os.fork() == 0: break
held = []
while len(held) < 250:
    held.append(socket.socketpair())
    for end in held[-1]:
        end.setblocking(False)
        try:
            while True: end.send(bytes(65536))
        except BlockingIOError: pass
time.sleep(60)
"""


async def test_memory_of_sockets_is_limited_by_a_control_group(grouped):
    session = await grouped(memory_mb=100)
    result = await session.run(SOCKETS, timeout=60)
    assert (result.state, result.error.cause) == ("lost", "memory-limit")


@pytest.mark.parametrize("level", ["plain", "locked"])
async def test_without_namespaces_a_control_group_limits_the_processes(grouped, level):
    session = await grouped(level=level, processes=20)
    assert (await session.run(FORKS)).value == 20
    assert not any("number of processes" in note for note in session.info.metadata["sandbox_notes"])


async def test_the_disk_limit_holds(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", disk_mb=8))
    code = (
        "import tempfile\nplaces = ['.', tempfile.gettempdir()]\nfor n in range(100):\n"
        "    with open(f'{places[n % 2]}/{n}', 'wb') as f: f.write(bytes(1 << 20))"
    )
    assert await run_refused(session, code) == "OSError"
    assert (await session.run("import os; os.statvfs('.').f_blocks * os.statvfs('.').f_frsize")).value == 8 << 20


async def test_control_groups_that_cannot_be_created_are_noted():
    async with create_cgroups(SandboxPolicy(), "no-such-parent/group") as groups:
        assert groups.paths == ()
        assert all(note.startswith("no control group") for note in groups.notes)
        assert groups.notes
    async with create_cgroups(SandboxPolicy(cgroup=False), "no-such-parent/group") as groups:
        assert (groups.paths, groups.notes) == ((), ())


async def test_groups_of_a_program_that_was_killed_are_removed_by_the_next_one():
    async with create_cgroups(SandboxPolicy(), "probe") as groups:
        if groups.notes:
            pytest.skip(f"no control groups to be had here: {groups.notes}")
        parents = {os.path.dirname(path) for path in groups.paths}
    program = (
        "import asyncio, os, signal\nfrom standfast.workers import SandboxPolicy\n"
        "from standfast.workers._host.cgroups import create_cgroups\n"
        "async def main():\n    async with create_cgroups(SandboxPolicy(), 'killed') as groups:\n"
        "        print(*groups.paths, flush=True)\n        os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(main())"
    )

    async def run_killed() -> list[str]:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode().split()

    left = await run_killed()
    assert {os.path.dirname(path) for path in left} == parents
    assert all(map(os.path.isdir, left))
    later = await run_killed()
    assert not any(map(os.path.exists, left))
    for path in later:
        os.rmdir(path)


async def test_control_groups_that_are_demanded_and_cannot_be_created_are_an_error():
    with pytest.raises(StartFailed, match="no control group"):
        async with create_cgroups(SandboxPolicy(cgroup=True), "no-such-parent/group"):
            pass


async def test_a_session_uses_control_groups_by_default_or_notes_why_not(sandboxed):
    session = await sandboxed()
    groups = session._worker.resources.process_group.cgroups
    noted = [note for note in session.info.metadata["sandbox_notes"] if "no control group" in note]
    assert bool(groups.paths) != bool(noted)
