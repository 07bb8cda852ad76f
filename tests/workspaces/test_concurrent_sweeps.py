"""Sweep and prune while checkpoints are written: no content that a checkpoint refers to is deleted."""

import asyncio
from typing import Any

import pytest

from standfast import Store, open_store
from standfast.workers import PoolConfig, PythonSessions, SessionPool
from standfast.workspaces.retention import prune_workspaces

# The same content comes and goes, so that it is swept, stored again and shared while that happens.
CELL = "n += 1; part = bytes([n % 3]) * 100_000; own = {key!r} * 1000 + str(n % 2); len(part)"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'app.db'}"
    return str(request.getfixturevalue("postgres_tables_url"))


async def sweep(store: Store, ended: asyncio.Event) -> int:
    count = 0
    while not ended.is_set():
        await prune_workspaces(store.backend, keep=1, sweep_after=-60)
        count += 1
        await asyncio.sleep(0)
    return count


async def test_what_is_swept_while_checkpoints_are_written_is_not_missed(url: str) -> None:
    ended = asyncio.Event()
    keys = [f"talk-{number}" for number in range(4)]
    async with (
        open_store(url) as store,
        open_store(url) as elsewhere,
        SessionPool(PoolConfig(min_idle=0, max_sessions=5)) as pool,
    ):
        sweeper = asyncio.create_task(sweep(elsewhere, ended))
        sessions = PythonSessions(pool, store=store)

        async def compute(key: str) -> None:
            await sessions.run("n = 0", key=key)
            for _ in range(15):
                await sessions.run(CELL.format(key=key), key=key)
            await sessions.save(key)

        await asyncio.gather(*map(compute, keys))
        ended.set()
        assert await sweeper
        sessions.close()
        again = PythonSessions(pool, store=store)
        for key in keys:
            text = (await again.run("n, set(part), own[:6], own[-1], len(own)", key=key)).as_text()
            assert text.splitlines()[-1] == f"(15, {{0}}, {key!r}, '1', 6001)"
            assert "could not be read" not in text
        again.close()
