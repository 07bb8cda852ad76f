"""Memory and processor time of all processes of a worker together, and what is left of code that was stopped."""

import os

import pytest

from factories.sandboxed_workers import open_launcher
from factories.workers import wait_until
from standfast.workers import ExecuteMessage, OutputMessage, SandboxPolicy, SessionState
from standfast.workers._host.cgroups import create_cgroups
from standfast.workers._host.resource_watch import CpuMeter, ProcessSample

BURN = """
import os, time
def burn(seconds):
    while time.process_time() < seconds: pass
"""


@pytest.fixture
async def launch():
    async with open_launcher() as launch:
        yield launch


# -- memory

SHARED = """
import mmap, time
held = []
for _ in range(40):
    block = mmap.mmap(-1, 8 << 20)
    block.write(b'x' * (8 << 20))
    block.madvise(mmap.MADV_DONTNEED)
    held.append(block)
time.sleep(600)
"""
TABLES = """
import mmap, time
block = mmap.mmap(-1, 80 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
block.madvise(15)  # no huge pages
for at in range(0, 80 << 30, 2 << 20): block[at]
time.sleep(600)
"""


@pytest.mark.parametrize("code", [SHARED, TABLES], ids=["shared memory that is not mapped", "page tables"])
async def test_memory_that_no_process_seems_to_use_is_counted(launch, code):
    session = await launch(policy={"memory_mb": 64, "cgroup": False})
    result = await session.run(code, timeout=60)
    assert (result.state, result.error.cause) == ("lost", "memory-limit")


async def test_what_is_not_counted_without_a_control_group_is_noted(launch):
    session = await launch(policy={"cgroup": False})
    assert any("sockets, pipes" in note and "partly mapped" in note for note in session.info.metadata["sandbox_notes"])
    session = await launch(policy={"cgroup": False, "memory_mb": None})
    assert not any("sockets, pipes" in note for note in session.info.metadata["sandbox_notes"])


async def test_the_usage_of_a_worker_contains_its_shared_memory_once(launch):
    session = await launch()
    code = "import mmap, os, time\nblock = mmap.mmap(-1, 32 << 20)\nfor _ in range(4):\n    if not os.fork(): time.sleep(600)"
    assert (await session.run(code, timeout=60)).ok
    assert 32 << 20 <= session.usage().memory < 100 << 20


async def test_children_of_a_thread_are_counted(launch):
    session = await launch()
    code = "import subprocess, threading\nthreading.Thread(target=lambda: subprocess.run(['sleep', '600'])).start()"
    assert (await session.run(code, timeout=60)).ok
    await wait_until(lambda: session.usage().processes >= 3)


# -- processor time


async def test_the_processor_time_of_all_processes_together_is_limited(launch):
    session = await launch(policy={"cpu_seconds": 2})
    code = "for _ in range(40):\n    pid = os.fork()\n    if not pid: burn(0.5); os._exit(0)\n    os.waitpid(pid, 0)\n"
    result = await session.run(BURN + code, timeout=None)
    assert (result.state, result.error.cause) == ("lost", "cpu-limit")


async def test_the_processor_time_is_limited_between_executions(launch):
    session = await launch(policy={"cpu_seconds": 2})
    code = "for _ in range(4):\n    if not os.fork(): burn(1.2); time.sleep(600)"
    assert (await session.run(BURN + code, timeout=60)).ok
    await wait_until(lambda: session.state is SessionState.ERROR, within=120)
    assert session.info.cause.kind == "cpu-limit"
    assert "the limit is 2 s" in session.info.cause.detail


SHORT_LIVED = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if not os.fork(): burn(0.005); os._exit(0)
    time.sleep(0.002)
"""


async def test_processes_that_nothing_waits_for_count_in_a_control_group(launch):
    async with create_cgroups(SandboxPolicy(cpu_seconds=1), f"test-{os.getpid()}") as groups:
        if groups.notes:
            pytest.skip(f"no control groups to be had here: {groups.notes}")
    session = await launch(policy={"cpu_seconds": 2})
    result = await session.run(BURN + SHORT_LIVED, timeout=None)
    assert (result.state, result.error.cause) == ("lost", "cpu-limit")


def test_the_time_of_a_process_counts_once_however_it_ends():
    meter = CpuMeter()
    assert meter.update([ProcessSample((1, 0), 1.0, 0.0, 0), ProcessSample((2, 0), 2.0, 0.0, 0)]) == 3.0
    # Waited for: its time is that of the parent's children now.
    assert meter.update([ProcessSample((1, 0), 1.0, 2.5, 0)]) == 0.5
    # Not waited for: nothing but the meter remembers it. The pid is used again.
    meter = CpuMeter()
    meter.update([ProcessSample((1, 0), 1.0, 0.0, 0), ProcessSample((2, 0), 2.0, 0.0, 0)])
    assert meter.update([ProcessSample((1, 0), 1.0, 0.0, 0), ProcessSample((2, 9), 0.5, 0.0, 0)]) == 0.5
    assert meter.total == 3.5


# -- what stopped code leaves behind

LEAVE = """
import os, time
x = 5
for _ in range(3):
    child = os.fork()
    if not child:
        os.setsid()
        if os.fork(): os._exit(0)
        while True: time.sleep(0.01)
    os.waitpid(child, 0)
print('left', flush=True)
while True: pass
"""
PIDS = """
import os
def is_running(name):
    try: return name.isdigit() and open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError: return False
[int(name) for name in os.listdir('/proc') if is_running(name) and int(name) not in (1, os.getpid())]
"""


async def test_processes_of_code_that_timed_out_are_ended(launch):
    session = await launch()
    result = await session.run(LEAVE, timeout=2.0)
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run(PIDS, timeout=60)).value == []
    assert (await session.run("x", timeout=60)).value == 5


@pytest.mark.parametrize("how", ["interrupt", "leaving"])
async def test_processes_of_code_that_was_stopped_are_ended(launch, how):
    session = await launch()
    stream = session.execute(ExecuteMessage(code=LEAVE), timeout=None)
    async for message in stream:
        if isinstance(message, OutputMessage):
            if how == "leaving":
                break
            await session.interrupt()
    await stream.aclose()
    assert (await session.run(PIDS, timeout=60)).value == []
    assert (await session.run("x", timeout=60)).value == 5


async def test_snapshots_survive_when_the_processes_of_stopped_code_are_ended(launch):
    session = await launch()
    await session.run("x = 1")
    points = [await session.snapshot(), await session.snapshot()]
    assert (await session.run(LEAVE, timeout=2.0)).timed_out
    await session.rollback(points[1])
    assert (await session.run("x", timeout=60)).value == 1
    assert (await session.run(LEAVE, timeout=2.0)).timed_out
    await session.rollback(points[0])
    assert (await session.run("x", timeout=60)).value == 1
    for point in points:
        await session.drop(point)
    assert (await session.run(PIDS, timeout=60)).value == []


async def test_a_rollback_returns_when_the_process_it_replaces_has_ended(launch):
    session = await launch(policy={"memory_mb": None})
    point = await session.snapshot()
    await session.run("block = b'x' * (400 << 20)", timeout=60)  # a process with much memory ends slowly
    await session.rollback(point)
    await session.drop(point)
    assert (await session.run(PIDS, timeout=60)).value == []


async def test_a_stopped_transaction_leaves_no_process(launch):
    session = await launch()
    await session.run("x = 1")
    result = await session.run(LEAVE, timeout=2.0, transaction="rollback_on_failure")
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run(PIDS, timeout=60)).value == []
    assert (await session.run("x", timeout=60)).value == 1


async def test_processes_of_a_fork_of_the_session_are_not_ended(launch):
    session = await launch()
    fork = await session.fork()
    try:
        await fork.run("import subprocess; child = subprocess.Popen(['sleep', '600'])", timeout=60)
        assert (await session.run(LEAVE, timeout=2.0)).timed_out
        assert (await fork.run("child.poll() is None", timeout=60)).value is True
    finally:
        await fork.terminate()


async def test_processes_that_fork_without_end_are_ended(launch):
    session = await launch(policy={"processes": 40})
    ring = (
        "import os, time\nif not os.fork():\n    os.setsid()\n    while True:\n        try:\n"
        "            if os.fork(): os._exit(0)\n        except OSError: pass\n"
        "print('left', flush=True)\nwhile True: pass"
    )
    result = await session.run(ring, timeout=1.0)
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run(PIDS, timeout=60)).value == []
