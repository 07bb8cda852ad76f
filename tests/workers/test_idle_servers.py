"""Fork servers that are kept for the next session."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from standfast.workers import (
    SandboxPolicy,
    SessionConfig,
    WorkerSession,
    close_idle_fork_servers,
    list_idle_fork_servers,
)

CONFIG = SessionConfig(mode="fork", sandbox=SandboxPolicy(level="plain", require="plain"), ready_timeout=120)


@pytest.fixture(autouse=True)
def nothing_idle():
    close_idle_fork_servers()
    yield
    close_idle_fork_servers()


async def run_session(config=CONFIG):
    async with WorkerSession(config) as session:
        assert (await session.run("1 + 1")).value == 2


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_sessions_one_after_the_other_use_one_fork_server():
    await run_session()
    (first,) = list_idle_fork_servers()
    await run_session()
    assert [server.pid for server in list_idle_fork_servers()] == [first.pid]


def test_sessions_of_different_event_loops_use_one_fork_server():
    asyncio.run(run_session())
    (first,) = list_idle_fork_servers()
    asyncio.run(run_session())
    assert [server.pid for server in list_idle_fork_servers()] == [first.pid]


async def test_a_fork_server_in_use_is_not_idle():
    await run_session()
    async with WorkerSession(CONFIG):
        assert list_idle_fork_servers() == []
        close_idle_fork_servers()
    assert len(list_idle_fork_servers()) == 1


async def test_closing_ends_idle_fork_servers_at_once():
    await run_session()
    (server,) = list_idle_fork_servers()
    close_idle_fork_servers()
    assert list_idle_fork_servers() == []
    assert not is_running(server.pid)


async def test_an_idle_fork_server_ends_after_its_time():
    await run_session(SessionConfig(mode="fork", sandbox=CONFIG.sandbox, fork_server_idle=0.01))
    while list_idle_fork_servers():
        await asyncio.sleep(0.01)
    await run_session()


async def test_without_time_nothing_is_kept():
    await run_session(SessionConfig(mode="fork", sandbox=CONFIG.sandbox, fork_server_idle=0))
    assert list_idle_fork_servers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_idle_fork_server_that_is_gone_is_replaced(number):
    await run_session()
    (first,) = list_idle_fork_servers()
    os.kill(first.pid, number)
    await run_session()
    (second,) = list_idle_fork_servers()
    assert second.pid != first.pid
    assert not is_running(first.pid)


async def test_a_directory_that_was_created_again_is_the_new_one(tmp_path):
    directory = tmp_path / "data"
    sandbox = SandboxPolicy(require="namespaces", readable=(str(directory),))
    for text in ("first", "second"):
        directory.mkdir()
        (directory / "file").write_text(text)
        tmp_path.chmod(0o755)
        async with WorkerSession(SessionConfig(sandbox=sandbox)) as session:
            assert (await session.run(f"open({str(directory / 'file')!r}).read()")).value == text
        (directory / "file").unlink()
        directory.rmdir()


async def test_only_a_few_fork_servers_are_kept():
    for number in range(6):
        sandbox = SandboxPolicy(level="plain", require="plain", memory_mb=1000 + number)
        await run_session(SessionConfig(mode="fork", sandbox=sandbox))
    assert len(list_idle_fork_servers()) == 4


PROGRAM = """
import asyncio, logging, os, sys
from standfast.workers import *
config = SessionConfig(mode="fork", sandbox=SandboxPolicy(level="plain", require="plain"))
async def main():
    async with WorkerSession(config) as session:
        assert (await session.run("1 + 1")).value == 2
logging.getLogger("asyncio").setLevel(logging.ERROR)  # debug mode reports what takes long on a busy machine
asyncio.run(main())
print(list_idle_fork_servers()[0].pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)", "import time; time.sleep(600)"])
def test_an_idle_fork_server_ends_with_its_program(end):
    program = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM + end],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = int(program.stdout.readline())
    if "sleep" in end:
        assert is_running(pid)
        program.kill()
    _, errors = program.communicate()
    assert errors == ""
    while is_running(pid):
        time.sleep(0.01)


FORKING = """
child = os.fork()
if child:
    assert len(list_idle_fork_servers()) == 1
    assert os.waitpid(child, 0)[1] == 0
else:
    assert list_idle_fork_servers() == []
asyncio.run(main())
"""


async def test_a_fork_of_the_program_has_fork_servers_of_its_own():
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM + FORKING],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
