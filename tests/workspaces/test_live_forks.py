"""A fork of a conversation whose worker is here gets large contents from memory, and shares nothing it could change."""

import gc
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast import open_store
from standfast.workers import PoolConfig, PythonSessions, SandboxPolicy, SessionConfig, SessionPool

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs sealed memory files")
pytest.importorskip("numpy")

MAKE = """
import numpy
numbers = numpy.arange(1_000_000.0)
same = numbers[:10]
text = "x" * 3_000_000
open("big", "wb").write(b"y" * 2_000_000)
"""
LOOK = "float(numbers.sum()), float(same[1]), len(text), len(open('big').read())"
SEEN = "(499999500000.0, 1.0, 3000000, 2000000)"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    config = SessionConfig(preload=("numpy",), sandbox=SandboxPolicy(memory_mb=512))
    async with SessionPool(PoolConfig(session=config, min_idle=0, max_sessions=6)) as pool:
        yield pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


class Talk:
    """A session whose calls are in its history, so that a fork at some item has the workspace of that item."""

    def __init__(self, sessions: PythonSessions, session: Any) -> None:
        self.sessions, self.session, self.count = sessions, session, 0

    async def call(self, code: str) -> str:
        self.count += 1
        name = f"c{self.count}"
        call = await self.sessions.run(code, key=self.session.conversation_key, origin=f"run:{name}")
        await self.session.add_items(
            [
                {"type": "function_call", "call_id": name, "name": "run_python", "arguments": "{}"},
                {"type": "function_call_output", "call_id": name, "output": "done"},
            ]
        )
        return call.as_text().splitlines()[-1]

    async def save(self) -> None:
        await self.sessions.save(self.session.conversation_key)

    async def fork(self, at: int | None = None) -> "Talk":
        return Talk(self.sessions, await self.session.fork(at=at))


def drop_large_blobs(path: Path) -> int:
    """Delete the stored chunks of large contents: what works without them does not read them."""
    with closing(sqlite3.connect(path)) as raw, raw:
        return raw.execute("DELETE FROM standfast_blob_data WHERE LENGTH(data) > 500000").rowcount


def count_memory_files() -> int:
    gc.collect()
    return sum("standfast-content" in _read_link(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


async def test_a_fork_gets_large_contents_from_memory(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        talk = Talk(PythonSessions(pool, store=store, live_snapshots=2), store.session("first"))
        await talk.call(MAKE.replace("arange(1_000_000.0)", "random.default_rng(1).random(1_000_000)"))
        await talk.save()
        expected = await talk.call("float(numbers.sum())")
        await talk.save()
        assert drop_large_blobs(path) >= 7
        assert await (await talk.fork()).call("float(numbers.sum())") == expected
        talk.sessions.close()


async def test_a_fork_and_its_origin_do_not_see_each_others_changes(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        talk = Talk(PythonSessions(pool, store=store, live_snapshots=2), store.session("first"))
        await talk.call(MAKE)
        await talk.save()
        forks = [await talk.fork() for _ in range(3)]
        for number, fork in enumerate(forks):
            assert await fork.call(LOOK) == SEEN
            await fork.call(f"numbers[:] = {number}; _ = open('big', 'w').write('{number}')")
        assert await talk.call(LOOK) == SEEN
        await talk.call("numbers[:] = 9; _ = open('big', 'w').write('')")
        for number, fork in enumerate(forks):
            assert await fork.call("numbers.min(), numbers.max(), same[0], open('big').read()") == (
                f"(np.float64({number}.0), np.float64({number}.0), np.float64({number}.0), '{number}')"
            )
        second = await talk.fork(at=2)
        assert await second.call(LOOK) == SEEN
        talk.sessions.close()


async def test_forks_of_forks_and_restarted_workers_find_the_same(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=1)
        talk = Talk(sessions, store.session("first"))
        await talk.call(MAKE)
        for _ in range(4):
            await talk.call("numbers[3] += 1; numbers[3] -= 1; numbers[0] = 0")
            await talk.save()
            sessions.end_conversation(talk.session.conversation_key)
            assert await talk.call(LOOK) == SEEN
            talk = await talk.fork()
            assert await talk.call(LOOK) == SEEN
        sessions.close()


async def test_a_fork_has_no_descriptor_of_what_it_maps(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        talk = Talk(PythonSessions(pool, store=store, live_snapshots=1), store.session("first"))
        await talk.call(MAKE)
        await talk.save()
        fork = await talk.fork()
        await fork.call("import os, contextlib")
        code = """
found = []
for fd in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
mapped = any("standfast-content" in line for line in open("/proc/self/maps"))
print(mapped, any("memfd" in one for one in found))
"""
        assert await fork.call(code) == "True False"
        talk.sessions.close()


async def test_what_is_kept_in_memory_ends_with_the_conversations(path: Path, pool: SessionPool) -> None:
    before = count_memory_files()
    async with open_store(f"sqlite:///{path}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=3)
        talk = Talk(sessions, store.session("first"))
        await talk.call(MAKE)
        for _ in range(6):
            await talk.call("numbers += 1")
            await talk.save()
        assert 0 < count_memory_files() - before <= 7
        for _ in range(3):
            fork = await talk.fork()
            await fork.call("numbers *= 2")
            await fork.save()
        del fork
        sessions.close()
        assert count_memory_files() == before


async def test_a_mapped_array_that_is_changed_counts_once(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        sessions = PythonSessions(pool, store=store, live_snapshots=1)
        talk = Talk(sessions, store.session("first"))
        await talk.call("import numpy\nnumbers = numpy.ones(25_000_000)")
        await talk.save()
        sessions.end_conversation(talk.session.conversation_key)
        fork = await talk.fork()
        await fork.call("numbers[:] = 2")
        await fork.save()
        async with sessions.session(fork.session.conversation_key) as worker:
            assert 190 << 20 < worker.usage().memory < 300 << 20
        sessions.close()


async def test_without_live_snapshots_nothing_is_kept_in_memory(path: Path, pool: SessionPool) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        talk = Talk(PythonSessions(pool, store=store), store.session("first"))
        await talk.call(MAKE)
        await talk.save()
        before = count_memory_files()
        assert await (await talk.fork()).call(LOOK) == SEEN
        assert count_memory_files() == before
        talk.sessions.close()
