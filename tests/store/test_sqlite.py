"""The SQLite backend beyond the store contract: closing, blocking, sharing of a file, damaged rows."""

import asyncio
import gc
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast import EncryptedSession, Session, open_store
from standfast.base.errors import Closed, SessionDamaged
from standfast.history.compat.sqlite import AsyncSQLiteSession, SQLiteSession
from standfast.history.stored_session import StoredSession
from standfast.store.operations import Annotate, Op, PutBlob, Splice
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import closing_backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def hold_write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock, as another process in a transaction would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def list_open_files(path: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [name for name in found if name.startswith(str(path))]


def append(data: bytes = b"{}", session_id: str = "s") -> Splice:
    return Splice(session_id=session_id, add=(data,))


async def make_inline_ready(backend: SqliteBackend) -> None:
    """Commit so often that the next commit is made inline."""
    for _ in range(3):
        await backend.commit(append())


class SlowDisk(sqlite3.Connection):
    def execute(self, sql, *params):
        if sql == "COMMIT":
            time.sleep(0.01)
        return super().execute(sql, *params)


class TestClosing:
    async def test_closing_finishes_submitted_commits_and_releases_the_file(self, path: Path) -> None:
        backend = SqliteBackend(path)
        await make_inline_ready(backend)
        commits = [asyncio.create_task(backend.commit(append())) for _ in range(3)]
        await asyncio.sleep(0)  # they wait for the next iteration of the loop
        await backend.close()
        await asyncio.gather(*commits)
        assert list_open_files(path) == []
        async with closing_backend(SqliteBackend(path)) as again:
            assert (await again.get_session("s")).length == 6

    async def test_closing_finishes_commits_that_a_slow_disk_moved_to_the_thread(self, path: Path) -> None:
        backend = SqliteBackend(path, connect=partial(sqlite3.connect, factory=SlowDisk))
        await make_inline_ready(backend)
        await backend.commit(append())  # so slow that commits are not made inline for some seconds
        commits = [asyncio.create_task(backend.commit(append())) for _ in range(3)]
        await asyncio.sleep(0)
        await backend.close()
        await asyncio.gather(*commits)

    async def test_a_commit_during_close_sync_is_refused_and_opens_no_file(self, path: Path) -> None:
        backend = SqliteBackend(path)
        await make_inline_ready(backend)
        commits = asyncio.create_task(backend.commit(append()))
        await asyncio.sleep(0)
        backend.close_sync()
        with pytest.raises(Closed):
            await commits
        assert list_open_files(path) == []

    async def test_a_read_that_waits_while_the_store_closes_opens_no_file(self, path: Path) -> None:
        backend = SqliteBackend(path)
        reading = asyncio.create_task(backend.get_session("s"))
        await asyncio.sleep(0)
        await backend.close()
        with suppress(Closed):  # unless the read came first
            assert await reading is None
        assert list_open_files(path) == []

    async def test_closing_does_not_block_the_loop_while_another_process_holds_the_lock(self, path: Path) -> None:
        backend = SqliteBackend(path, busy_timeout=5)
        await make_inline_ready(backend)
        with hold_write_lock(path) as other:
            big = asyncio.create_task(backend.commit(append(b"x" * 100_000)))
            await asyncio.sleep(0)
            closes = asyncio.create_task(backend.close())
            await asyncio.sleep(0)
            other.execute("ROLLBACK")  # only reached in time if the loop is not blocked
            await closes
        await big

    async def test_closing_an_async_session_does_not_block_the_loop(self, path: Path) -> None:
        session = AsyncSQLiteSession("s", path)
        await session.get_items()
        with hold_write_lock(path) as other:
            big = asyncio.create_task(session.add_items([{"role": "user", "content": "x" * 100_000}]))
            await asyncio.sleep(0)
            closes = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
            await closes
        await big
        await session.close()

    async def test_closing_a_store_twice_does_not_close_the_file_for_other_users(self, path: Path) -> None:
        async with open_store(f"sqlite:///{path}") as theirs:
            async with open_store(f"sqlite:///{path}") as ours:
                await ours.close()
            await theirs.session("s").add_items([{"role": "user", "content": "still here"}])


class TestBlocking:
    async def test_the_first_read_of_an_open_store_does_not_block_on_a_writer(self, path: Path) -> None:
        async with closing_backend(SqliteBackend(path, busy_timeout=0)) as backend:
            await make_inline_ready(backend)
            with hold_write_lock(path):
                assert (await backend.get_session("s")).length == 3

    async def test_a_search_without_new_items_does_not_block_on_a_writer(self, path: Path) -> None:
        async with open_store(f"sqlite:///{path}", busy_timeout=0) as store:
            await store.session("s").add_items([{"role": "user", "content": "needle"}])
            assert len(await store.search("needle")) == 1
            with hold_write_lock(path):
                assert len(await store.search("needle")) == 1

    async def test_a_locked_file_on_an_inline_connection_is_left_to_the_writer_thread(self, path: Path) -> None:
        def connect(*args: Any, timeout: float, **kwargs: Any) -> sqlite3.Connection:
            if not timeout:  # the inline connection
                raise sqlite3.OperationalError("database is locked")
            return sqlite3.connect(*args, timeout=timeout, **kwargs)

        async with closing_backend(SqliteBackend(path, connect=connect)) as backend:
            await make_inline_ready(backend)
            assert (await backend.get_session("s")).length == 3

    @pytest.mark.parametrize(
        "ops",
        [
            [[Splice(session_id="s", add=(b"{}",) * 5_000)]],
            [[append(b"x" * 30_000, f"s{n}")] for n in range(50)],
            [[Annotate(session_id="s", metadata={"notes": "x" * 100_000})]],
            [[append(b"x" * 30_000) for _ in range(10)]],
        ],
        ids=["many small items", "many callers", "an annotation", "many operations"],
    )
    async def test_large_commits_are_made_on_the_writer_thread(self, path: Path, ops: list[list[Op]]) -> None:
        writers: set[int] = set()

        def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            raw = sqlite3.connect(*args, **kwargs)
            raw.set_trace_callback(
                lambda statement: statement.startswith(("INSERT", "UPDATE")) and writers.add(threading.get_ident())
            )
            return raw

        async with closing_backend(SqliteBackend(path, connect=connect)) as backend:
            await make_inline_ready(backend)
            assert threading.get_ident() in writers
            writers.clear()
            await asyncio.gather(*(backend.commit(*batch) for batch in ops))
            assert threading.get_ident() not in writers

    async def test_the_log_shrinks_after_a_slow_reader_has_ended(self, path: Path) -> None:
        log = path.with_name("store.db-wal")
        async with closing_backend(SqliteBackend(path)) as backend:
            await make_inline_ready(backend)
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT COUNT(*) FROM standfast_items").fetchone()
                for _ in range(6):
                    await backend.commit(append(b"x" * 4_000_000))
                assert log.stat().st_size > 20_000_000
            for _ in range(600):
                await backend.commit(append())
            assert log.stat().st_size < 20_000_000


FORKING = """
import asyncio, os, sqlite3, sys
from standfast import SQLiteSession

def item(text): return {"role": "user", "content": text}
def add(text): asyncio.run(asyncio.wait_for(session.add_items([item(text)]), 60))
def texts(): return [one["content"] for one in asyncio.run(asyncio.wait_for(session.get_items(), 60))]

path = sys.argv[1]
session = SQLiteSession("s", path)
for text in "abc":
    add(text)
assert texts() == ["a", "b", "c"]
written, wrote = os.pipe()
alone, left = os.pipe()
child = os.fork()
if not child:
    add("d")
    assert texts() == ["a", "b", "c", "d"]
    os.write(wrote, b"x")
    os.read(alone, 1)  # until the parent has closed the file, and another connection has opened and closed it
    add("e")
    sys.exit(0)
os.read(written, 1)
session.close()
other = sqlite3.connect(path)
other.execute("SELECT COUNT(*) FROM agent_messages").fetchone()
other.close()
os.write(left, b"x")
assert os.waitpid(child, 0)[1] == 0
session = SQLiteSession("s", path)
assert texts() == ["a", "b", "c", "d", "e"], texts()
"""


class TestSharing:
    def test_a_forked_process_continues_the_session_of_its_parent(self, path: Path) -> None:
        source = str(Path(standfast.__file__).parents[1])
        subprocess.run(
            [sys.executable, "-c", FORKING, str(path)], check=True, timeout=60, env={**os.environ, "PYTHONPATH": source}
        )

    async def test_a_fork_keeps_the_file_of_the_session_that_it_came_from(self, path: Path) -> None:
        async def branch() -> StoredSession:
            session = SQLiteSession("s", path)
            await session.add_items([{"role": "user", "content": "one"}])
            child = await session.fork()
            return await child.fork()

        grandchild = await branch()
        gc.collect()
        await grandchild.add_items([{"role": "user", "content": "two"}])
        assert len(await grandchild.get_items()) == 2

    async def test_a_session_on_a_replaced_file_writes_to_the_new_file(self, path: Path) -> None:
        old = SQLiteSession("s", path)
        await old.add_items([{"role": "user", "content": "old"}])
        for leftover in path.parent.iterdir():
            leftover.unlink()
        new = SQLiteSession("s", path)
        await new.add_items([{"role": "user", "content": "new"}])
        assert [item["content"] for item in await new.get_items()] == ["new"]
        old.close()
        assert [item["content"] for item in await new.get_items()] == ["new"]
        new.close()


class TestDamagedRows:
    @pytest.mark.parametrize(
        "damage",
        [
            "closed = 'junk'",
            "closed = '[[1, 2]]'",
            "closed = '[[1, 5, 2]]'",
            "next_seq = -5",
            "tape = 'x'",
            "version = 'x'",
        ],
    )
    async def test_an_unreadable_session_does_not_hide_others(self, path: Path, damage: str) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            for name in ("before", "bad", "behind"):
                await store.session(name).add_items([{"role": "user", "content": f"word {name}"}])
            with closing(sqlite3.connect(path)) as raw, raw:
                raw.execute(f"UPDATE standfast_sessions SET {damage} WHERE session_id = 'bad'")
            assert [info.session_id for info in await store.sessions()] == ["behind", "before"]
            assert [hit.session_id for hit in await store.search("word")] == ["behind", "before"]
            for call in (store.describe("bad"), store.session("bad").get_items(), store.session("bad").check()):
                with pytest.raises(SessionDamaged, match="bad"):
                    await call
            await store.delete("bad")
            assert await store.session("bad").get_items() == []

    @pytest.mark.parametrize("metadata", ["junk", "[1]", b"\xff"])
    async def test_unreadable_metadata_does_not_hide_the_history(self, path: Path, metadata: str | bytes) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.session("s").add_items([{"role": "user", "content": "word"}])
            with closing(sqlite3.connect(path)) as raw, raw:
                raw.execute("UPDATE standfast_sessions SET metadata = ?", (metadata,))
            assert len(await store.session("s").get_items()) == len(await store.search("word")) == 1
            assert (await store.describe("s")).metadata == {}
            with pytest.raises(SessionDamaged, match="metadata"):
                await store.annotate("s", {"title": "new"})
            with closing(sqlite3.connect(path)) as raw:
                assert raw.execute("SELECT metadata FROM standfast_sessions").fetchone() == (metadata,)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite+aiosqlite", "encrypted"])
async def test_a_cancelled_write_does_not_arrive_behind_a_later_one(path: Path, kind: str) -> None:
    async with open_store(f"{'sqlite' if kind == 'encrypted' else kind}:///{path}") as store:
        for number in range(10):
            session: Session = store.session(f"s{number}")
            if kind == "encrypted":
                session = EncryptedSession(f"s{number}", session, "a key of good length, number one")
            await session.add_items([make_message(0)])
            with hold_write_lock(path) as other:
                cancelled = asyncio.ensure_future(session.add_items([make_message(1)]))
                for _ in range(50):  # iterations of the loop, until the write waits for the lock
                    await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.wait([cancelled])
                other.execute("ROLLBACK")
                await session.add_items([make_message(2)])
            stored = [item["content"] for item in await session.get_items()]
            assert stored in (["0", "1", "2"], ["0", "2"])  # without the cancelled one if it had not begun


def make_message(number: int) -> dict[str, Any]:
    return {"role": "user", "content": str(number)}


async def test_large_content_reaches_the_database_at_the_end_of_its_block(tmp_path):
    """While it is written, no commit copies the log, which would wait for the disk; a reader thread does it then."""
    path, log = tmp_path / "store.db", tmp_path / "store.db-wal"
    backend = SqliteBackend(path)
    await backend.open()
    content = [random.Random(number).randbytes(1 << 20) for number in range(12)]
    async with backend.large_writes:
        for number, data in enumerate(content):
            await backend.commit(PutBlob(digest=f"{number}", size=len(data), data=data))
        assert path.stat().st_size < 1 << 20
        assert log.stat().st_size > 12 << 20
    assert path.stat().st_size > 12 << 20
    assert [await backend.read_blob((await backend.find_blobs([f"{number}"]))[0]) for number in range(12)] == content
    await backend.commit(PutBlob(digest="last", size=1 << 20, data=bytes(1 << 20)))
    assert log.stat().st_size <= 16 << 20  # it was begun anew
    await backend.close()


async def test_large_content_of_two_writers_is_put_off_until_the_last_has_ended(tmp_path):
    path = tmp_path / "store.db"
    backend = SqliteBackend(path)
    await backend.open()
    async with backend.large_writes:
        async with backend.large_writes:
            await backend.commit(PutBlob(digest="a", size=6 << 20, data=random.Random(1).randbytes(6 << 20)))
        assert path.stat().st_size < 1 << 20
    assert path.stat().st_size > 6 << 20
    await backend.close()
