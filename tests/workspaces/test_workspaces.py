"""Variables and files of a conversation in a store: plain calls, by real workers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast import open_store
from standfast.workers import PoolConfig, PythonSessions, SessionPool


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        yield pool


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


async def run(sessions: PythonSessions, code: str, key: str = "talk") -> str:
    return (await sessions.run(code, key=key)).as_text()


async def test_another_process_continues_with_variables_and_files(url: str, pool: SessionPool) -> None:
    async with open_store(url) as store:
        first = PythonSessions(pool, store=store)
        assert await run(first, "x = [1, 2]; y = x; open('a.txt', 'w').write('hello')") == "5"
        await run(first, "x.append(3)")
        await first.save("talk")
        first.close()
    async with open_store(url) as store:
        second = PythonSessions(pool, store=store)
        text = await run(second, "y, open('a.txt').read(), x is y")
        assert text.splitlines()[-1] == "([1, 2, 3], 'hello', True)"
        assert "restored" in text
        assert await run(second, "len(x)") == "3"
        second.close()
