"""The search index of an SQLite file: concurrent writers, failures, deleted items."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from standfast import open_store
from standfast.base.errors import StoreUnavailable
from standfast.history.store import Store
from standfast.store.operations import Splice
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import closing_backend


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def make_items(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def count_indexed(path: Path, word: str) -> int:
    """The number of items under a word in the index, after an integrity check."""
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("INSERT INTO standfast_search (standfast_search, rank) VALUES ('integrity-check', 1)")
        (count,) = raw.execute(
            "SELECT COUNT(*) FROM standfast_search WHERE standfast_search MATCH ?", (word,)
        ).fetchone()
        return int(count)


async def search(store: Store, query: str) -> list[tuple[str, int]]:
    return [(hit.session_id, hit.position) for hit in await store.search(query, limit=10_000)]


class TestConcurrentWriters:
    async def test_a_long_history_is_indexed_in_batches(self, path: Path) -> None:
        weights = [0]

        class Weighed(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if sql == "BEGIN IMMEDIATE":
                    weights.append(0)
                return super().execute(sql, *args)

            def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:  # type: ignore[override]
                if "standfast_search_rows" in sql:
                    weights[-1] += sum(len(row["words"]) for row in rows)
                return super().executemany(sql, rows)

        async with closing_backend(SqliteBackend(path, connect=partial(sqlite3.connect, factory=Weighed))) as backend:
            store = Store(backend)
            for name in "abc":
                await store.session(name).add_items(make_items(*(f"{name} word {n} {'x' * 9_000}" for n in range(200))))
            assert len(await search(store, "word")) == 600
        assert sum(weights) > 600 * 9_000
        assert max(weights) < 1_000_000

    async def test_a_writer_polls_the_lock_of_another_process(self, path: Path) -> None:
        attempts = 0
        often = threading.Event()

        class Counted(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                nonlocal attempts
                attempts += sql == "BEGIN IMMEDIATE"
                if attempts > 30:
                    often.set()
                return super().execute(sql, *args)

        connect = partial(sqlite3.connect, factory=Counted)
        async with closing_backend(SqliteBackend(path, connect=connect, inline_commits=False)) as backend:
            await backend.open()
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                writing = asyncio.create_task(backend.commit(Splice(session_id="s", add=(b"{}",))))
                assert await asyncio.to_thread(often.wait, 10)
                other.execute("ROLLBACK")
                await writing

    async def test_a_search_ends_while_another_process_keeps_writing(self, path: Path) -> None:
        class Overtaken(sqlite3.Connection):
            """Another process writes whenever this one looks for new items."""

            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                if "LEFT JOIN standfast_searched" in sql:
                    with closing(sqlite3.connect(path)) as other, other:
                        other.execute(
                            "INSERT INTO standfast_items SELECT tape, next_seq, ? FROM standfast_sessions",
                            (b'{"content": "word"}',),
                        )
                        other.execute("UPDATE standfast_sessions SET next_seq = next_seq + 1, length = length + 1")
                return super().execute(sql, *args)

        async with closing_backend(SqliteBackend(path, connect=partial(sqlite3.connect, factory=Overtaken))) as backend:
            await Store(backend).session("s").add_items(make_items("word"))
            async with asyncio.timeout(120):
                assert await search(Store(backend), "word") == [("s", 1), ("s", 0)]

    async def test_concurrent_indexing_by_two_processes_indexes_everything_once(self, path: Path) -> None:
        async with closing_backend(SqliteBackend(path)) as ours, closing_backend(SqliteBackend(path)) as theirs:
            for name in "abc":
                await Store(ours).session(name).add_items(make_items(*(f"word {n} {'x' * 900}" for n in range(500))))
            found = await asyncio.gather(*(search(Store(one), "word") for one in (ours, theirs, ours)))
        assert [len(each) for each in found] == [1_500] * 3
        assert count_indexed(path, "word") == 1_500


class TestIndexing:
    async def test_a_search_in_one_session_indexes_that_session_only(self, path: Path) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            parent, other = store.session("parent"), store.session("other")
            await parent.add_items(make_items("word 1", "word 2", "word 3"))
            await other.add_items(make_items("word"))
            fork = await parent.fork(2, "fork")
            await fork.add_items(make_items("word of the fork"))
            assert [hit.position for hit in await fork.search("word")] == [2, 1, 0]
            assert count_indexed(path, "word") == 3
            assert len(await store.search("word")) == 7
            assert count_indexed(path, "word") == 5

    async def test_deleted_and_cleared_items_are_removed_from_the_index(self, path: Path) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            for name in ("deleted", "cleared", "kept"):
                await store.session(name).add_items(make_items("word one", "word two"))
            assert len(await store.search("word")) == 6
            await store.delete("deleted")
            await store.session("cleared").clear_session()
            assert count_indexed(path, "word") == 2
            await store.session("cleared").add_items(make_items("a new word"))
            assert await search(store, "word") == [("cleared", 0), ("kept", 1), ("kept", 0)]

    @pytest.mark.parametrize("filling", ["filling ", "füllung "], ids=["ascii", "other"])
    async def test_long_texts_and_long_words_are_found(self, path: Path, filling: str) -> None:
        async with open_store(f"sqlite:///{path}") as store:
            await store.session("s").add_items(
                make_items(filling * 3_000 + "End", f"{filling}{'Long' * 30}, {filling}")
            )
            for query, position in (("end", 0), ("LONG" * 30, 1), ("long" * 20, 1)):
                assert await search(store, query) == [("s", position)]
            assert await search(store, "long" * 10 + "x") == []


async def test_an_interrupted_indexing_is_finished_by_the_next_search(path: Path) -> None:
    parts = 0

    class Failing(sqlite3.Connection):
        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:  # type: ignore[override]
            nonlocal parts
            parts += "INTO standfast_search (" in sql
            if parts == 3:
                raise sqlite3.OperationalError("disk I/O error")
            return super().executemany(sql, rows)

    async with closing_backend(SqliteBackend(path, connect=partial(sqlite3.connect, factory=Failing))) as backend:
        store = Store(backend)
        for name in "abc":
            await store.session(name).add_items(make_items(*(f"word {n} {'x' * 9_000}" for n in range(100))))
        with pytest.raises(StoreUnavailable):
            await store.search("word")
        assert 0 < count_indexed(path, "word") < 300
        parts = 4
        assert len(await search(store, "word")) == 300
    assert count_indexed(path, "word") == 300


async def test_an_index_of_an_earlier_version_is_rebuilt(path: Path) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await store.session("a").add_items(make_items("hello", "world"))
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.executescript(
            """
            CREATE TABLE standfast_search_rows
                (id INTEGER PRIMARY KEY, tape INTEGER NOT NULL, seq INTEGER NOT NULL, words TEXT NOT NULL);
            CREATE TABLE standfast_searched (tape INTEGER PRIMARY KEY, upto INTEGER NOT NULL);
            CREATE VIRTUAL TABLE standfast_search
                USING fts5(words, content='standfast_search_rows', content_rowid='id');
            CREATE TRIGGER standfast_search_forgets AFTER DELETE ON standfast_items BEGIN
                DELETE FROM standfast_search_rows WHERE tape = old.tape AND seq = old.seq;
            END;
            """
        )
    async with open_store(f"sqlite:///{path}") as store:
        assert await search(store, "world") == [("a", 1)]
        await store.delete("a")
    assert count_indexed(path, "world") == 0
