"""Attempts to end the supervisor, or to outlive it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from factories.workers import run_refused, wait_until
from standfast.workers import SandboxPolicy

SOURCE = Path(__file__).parents[2] / "src"
GARBAGE = (b"\xff", b"", b" ", b"x" * 5000, b"\xff 1", b"t 1", b"t -1", b"t 99999999999999999999", "t ٣".encode())


@pytest.fixture(params=["namespaces", "locked"])
async def session(request, sandboxed, readable_python):
    level = request.param
    return await sandboxed(sandbox=SandboxPolicy(level=level), python=readable_python)


async def test_garbage_does_not_end_it(session):
    point = await session.snapshot()
    code = f"import os, socket\nline = socket.socket(fileno=os.dup(4))\nfor data in {GARBAGE!r}:\n    line.send(data)"
    assert (await session.run(code)).ok
    assert (await session.run("x = 1")).ok
    await session.rollback(point)
    assert await run_refused(session, "x") == "NameError"


async def test_its_socket_can_be_closed(session):
    assert (await session.run("import os; os.close(4)")).ok
    assert (await session.run("6 * 7")).value == 42


async def test_a_flood_does_not_keep_it_from_killing(session):
    code = (
        "import os, socket\nline = socket.socket(fileno=os.dup(4))\n"
        "for _ in range(3):\n    if os.fork() == 0: break\n"
        "while True:\n    try: line.send(b'x')\n    except OSError: pass"
    )
    running = asyncio.create_task(session.run(code, timeout=None))
    await wait_until(lambda: session.usage().processes >= 5)
    await session.terminate()
    assert (await running).state == "lost"


async def test_its_limits_cannot_be_changed(session):
    for kind in ("NOFILE", "CPU", "AS"):
        code = f"import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_{kind}, (1, 1))"
        assert await run_refused(session, code) == "PermissionError"


async def test_as_the_first_process_it_handles_no_signal_that_would_end_it(sandboxed):
    session = await sandboxed()
    status = (await session.run("open('/proc/1/status').read()")).value
    (caught,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM):
        assert not caught & (1 << (number - 1)), number
    await session.run("import os\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass")
    assert (await session.run("6 * 7")).value == 42


RING = """
import ctypes, os, time
libc, deadline = ctypes.CDLL(None), time.monotonic() + 60
if os.fork() == 0:
    os.setsid()
    libc.prctl(15, b"NAME", 0, 0, 0)
    for _ in range(7):
        if os.fork() == 0:
            break
    # Each process forks its successor and exits.
    while time.monotonic() < deadline:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)
    os._exit(0)
"""


def list_processes(name: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if Path(f"/proc/{entry}/comm").read_text().strip() == name:
                    found.append(int(entry))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("end", ["terminate", "garbage"])
async def test_processes_that_fork_and_exit_in_a_ring_do_not_outlive_it(locked, end):
    session = await locked()
    name = uuid.uuid4().hex[:12]
    if end == "garbage":
        await session.run("import os, socket; socket.socket(fileno=os.dup(4)).send(b'\\xff')")
    await session.run(RING.replace("NAME", name))
    await wait_until(lambda: bool(list_processes(name)))
    await session.terminate()
    await wait_until(lambda: not list_processes(name))


HOST = """
import asyncio, sys
sys.path.insert(0, {source!r})
from standfast.workers import WorkerSession, SessionConfig, SandboxPolicy

async def main():
    session = WorkerSession(SessionConfig(sandbox=SandboxPolicy(level="locked"), python={python!r}))
    await session.start()
    await session.run("import os; os.mkdir('d', 0); open('f', 'w')")
    print((await session.run("os.path.dirname(os.getcwd())")).value, flush=True)
    await session.run("while True: pass", timeout=None)

asyncio.run(main())
"""


def test_the_directory_of_a_session_is_removed_after_its_host_was_killed(readable_python):
    program = HOST.format(source=str(SOURCE), python=readable_python)
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    directory = host.stdout.readline().decode().strip()
    assert os.path.isdir(directory)
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 60
    while os.path.exists(directory) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(directory)
