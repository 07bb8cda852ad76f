"""Long runs: no message is lost, and no memory, process or descriptor leaks."""

import asyncio
import dataclasses
import os
import random
import time

import pytest

from factories.workers import list_child_pids, wait_until
from standfast.base.errors import StandfastError
from standfast.workers import ExecuteMessage, OutputMessage, SandboxPolicy, SessionConfig, WorkerSession, fork_server

pytestmark = pytest.mark.soak
CONFIG = SessionConfig(sandbox=SandboxPolicy(require="namespaces"), output_limit=None)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def test_ten_thousand_executions_and_a_hundred_megabytes_leave_memory_flat():
    async with WorkerSession(CONFIG) as session:
        for n in range(500):
            await session.run(f"{n}")
        ours, theirs = resident(), session.usage().pss
        for n in range(10_000):
            assert (await session.run(f"x = {n}; x")).value == n
        total, tail = 0, ""
        async for message in session.execute(
            ExecuteMessage(code="for i in range(1_000_000): print(f'{i:099d}')"), timeout=None
        ):
            if isinstance(message, OutputMessage):
                expected = total // 100
                assert tail or message.data.startswith("0")
                total += len(message.data)
                tail = message.data[-100:]
                assert expected <= 1_000_000
        assert total == 100_000_000
        assert tail == f"{999_999:099d}\n"
        assert resident() - ours < 20 << 20
        assert session.usage().pss - theirs < 8 << 20


async def test_three_hundred_sessions_live_at_once_and_answer():
    async with fork_server(CONFIG):
        sessions = [WorkerSession(CONFIG) for _ in range(300)]
        try:
            for at in range(0, 300, 10):
                await asyncio.gather(*(session.start() for session in sessions[at : at + 10]))
            answers = await asyncio.gather(*(session.run(f"{n} + 1") for n, session in enumerate(sessions)))
            assert [answer.value for answer in answers] == [n + 1 for n in range(300)]
        finally:
            await asyncio.gather(*(session.terminate() for session in sessions))


async def test_hundreds_of_snapshots_and_rollbacks_leave_nothing():
    async with WorkerSession(CONFIG) as session:
        await session.run("n = 0")
        for _ in range(200):
            point = await session.snapshot()
            await session.run("n += 1")
            await session.rollback(point)
            await session.drop(point)
        assert (await session.run("n")).value == 0
        await wait_until(lambda: session.usage().processes == 2)


CODES = (
    "1 + 1", "print('x' * 1000)", "import time; time.sleep(0.05)", "input()", "1 / 0", "import os; os._exit(1)",
    "while True: pass", "display([1])", "import subprocess; subprocess.run(['echo', 'a'])", "import os; os.fork()",
    "import threading; threading.Thread(target=print, args=('t',)).start()", "for n in range(20_000): print(n)",
    "await __import__('asyncio').sleep(0.02)",
)  # fmt: skip


class RandomCaller:
    """Calls random methods of one session, with random timeouts."""

    def __init__(self, session: WorkerSession, chance: random.Random) -> None:
        self.session, self.chance = session, chance
        self.points = []

    async def call_randomly(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(self.chance.choice([0.05, 0.3, 2, 10])):
                    await self.chance.choice(
                        [self.run] * 7 + [self.snapshot, self.rollback, self.look, self.fork, self.stop, self.restart]
                    )()
                    if not self.session.is_alive:
                        await self.session.restart()
            except (StandfastError, TimeoutError):
                continue

    async def run(self):
        policy = self.chance.choice(["commit_always", "commit_always", "rollback_on_failure", "rollback_always"])
        timeout = self.chance.choice([0.05, 0.2, 1])
        await self.session.run(self.chance.choice(CODES), timeout=timeout, transaction=policy)

    async def snapshot(self):
        self.points.append(await self.session.snapshot())

    async def rollback(self):
        if self.points:
            await self.session.rollback(self.chance.choice(self.points))

    async def look(self):
        await self.session.namespace()
        await self.session.heartbeat()
        await self.session.checkpoint()
        await self.session.files.write("a", b"x")

    async def fork(self):
        fork = await self.session.fork()
        try:
            await fork.run("1", timeout=1)
        finally:
            await fork.terminate()

    async def stop(self):
        await self.session.interrupt()

    async def restart(self):
        if self.chance.random() < 0.3:
            await self.session.restart()


@pytest.mark.parametrize("seed", range(4))
async def test_anything_at_any_time_from_any_task_neither_hangs_nor_leaks(seed):
    config = dataclasses.replace(CONFIG, grace=0.2, shutdown_timeout=2, input_timeout=0.3, output_limit=1 << 20)
    before = len(os.listdir("/proc/self/fd")), list_child_pids()
    session = WorkerSession(config)
    await session.start()
    callers = [RandomCaller(session, random.Random(f"{seed} {n}")) for n in range(6)]
    async with asyncio.timeout(60):
        end = time.monotonic() + 4
        await asyncio.gather(*(caller.call_randomly(end) for caller in callers))
        if not session.is_alive:
            await session.restart()
        assert (await session.run("6 * 7", timeout=60)).value == 42
        await session.terminate()
    assert (len(os.listdir("/proc/self/fd")), list_child_pids()) == before
