"""Long runs: nothing lost, nothing grows."""

import asyncio

import pytest

from holdfast.workers import ExecuteMessage, OutputMessage, SandboxPolicy, SessionConfig, WorkerSession, fork_server
from worker_kit import until

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
        await until(lambda: session.usage().processes == 2)
