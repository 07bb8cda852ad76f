"""Erased words are in no byte of an SQLite file or its log, whatever the defaults of SQLite are."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import agents
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from factories.runtime import Refunds, reply, tool_calls, wait_for
from standfast import Runtime, SQLAlchemySession, SQLiteSession, Store, open_store
from standfast.history.imports.openai_agents import write_openai_agents_file
from standfast.store.operations import DeleteDocument, PutDocument
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import closing_backend

WORD, OTHER = "zebrafish", "narwhal"


def connect_insecurely(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    """A connection with SQLite's own default. Debian, for one, compiles SQLite with another."""
    connection = sqlite3.connect(*args, **kwargs)
    connection.execute("PRAGMA secure_delete = OFF")
    return connection


def read_files(path: Path) -> bytes:
    """All bytes of the database and of its log."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def read_modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def count_words(path: Path) -> tuple[int, int]:
    content = read_files(path)
    return content.count(WORD.encode()), content.count(OTHER.encode())


def make_messages(word: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{word}-{number} " * 40} for number in range(30)]


async def fill(store: Store) -> None:
    for session_id, word in (("gone", WORD), ("kept", OTHER)):
        for message in make_messages(word):
            await store.session(session_id).add_items([message])
        await store.session(session_id).rewind(20)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("clear", [False, True])
async def test_the_words_of_an_erased_session_are_in_no_file(tmp_path: Path, searched: bool, clear: bool) -> None:
    path = tmp_path / "app.db"
    async with closing_backend(SqliteBackend(path, connect=connect_insecurely)) as backend:
        store = Store(backend)
        await fill(store)
        if searched:
            assert await store.search(f"{WORD}-3")
        await (store.session("gone").clear_session() if clear else store.delete("gone"))
        gone, kept = count_words(path)
        assert (gone, kept > 0) == (0, True)
        assert await store.search(WORD) == []
        if searched:
            assert len(await store.search(f"{OTHER}-3")) == 1
    assert count_words(path)[0] == 0


async def test_the_words_of_a_session_indexed_in_parts_are_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with closing_backend(SqliteBackend(path, connect=connect_insecurely)) as backend:
        store = Store(backend)
        for message in make_messages(WORD) + make_messages(OTHER):
            await store.session("gone").add_items([message])
            await store.search("anything")
        await store.session("kept").add_items(make_messages(OTHER))
        await store.delete("gone")
        assert count_words(path)[0] == 0
        assert len(await store.search(f"{OTHER}-3", limit=50)) == 1


@pytest.mark.parametrize("prune", [False, True])
async def test_the_words_of_a_deleted_run_are_in_no_file(tmp_path: Path, prune: bool) -> None:
    path = tmp_path / "app.db"
    agent = Refunds(needs_approval=False).agent(
        tool_calls(("refund", {"order": WORD, "amount": 5}, "c1")), reply(f"a {WORD}")
    )
    async with (
        closing_backend(SqliteBackend(path, connect=connect_insecurely)) as backend,
        Runtime.open(Store(backend), agents=[agent]) as runtime,
    ):
        run = await runtime.start("support", f"the {WORD}")
        assert (await wait_for(run.wait())).status == "completed"
        assert count_words(path)[0] > 0
        await (runtime.prune(keep=0) if prune else runtime.delete(run.id))
        assert count_words(path)[0] == 0


async def test_the_words_of_a_deleted_document_are_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with closing_backend(SqliteBackend(path, connect=connect_insecurely)) as backend:
        await backend.commit(PutDocument(kind="note", key="a", data=WORD.encode() * 40))
        assert count_words(path)[0] > 0
        await backend.commit(DeleteDocument(kind="note", key="a"))
        assert count_words(path)[0] == 0


async def test_the_words_of_an_erased_session_are_in_no_file_of_an_engine(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with open_store(f"sqlite:///{path}") as store:
        await fill(store)
        await store.search("anything")
    backend = SqlBackend.from_url(f"sqlite+aiosqlite:///{path}", engine_kwargs={"connect_args": {"factory": Insecure}})
    async with closing_backend(backend):
        await Store(backend).delete("gone")
        gone, kept = count_words(path)
        assert (gone, kept > 0) == (0, True)


class Insecure(sqlite3.Connection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA secure_delete = OFF")


@pytest.mark.parametrize("erase", [False, True])
async def test_a_log_that_another_program_reads_is_emptied_later(tmp_path: Path, erase: bool) -> None:
    path = tmp_path / "app.db"
    async with closing_backend(SqliteBackend(path, connect=connect_insecurely)) as backend:
        await fill(Store(backend))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM standfast_items").fetchone()
            await Store(backend).delete("gone")
            assert count_words(path)[0] > 0
            reader.execute("ROLLBACK")
            await (Store(backend).delete("kept") if erase else backend.close())
            assert count_words(path)[0] == 0


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
async def test_a_new_file_is_readable_by_its_user_only(tmp_path: Path, scheme: str) -> None:
    before = os.umask(0o022)
    try:
        async with open_store(f"{scheme}:///{tmp_path / 'app.db'}") as store:
            await store.session("s").add_items([{"role": "user", "content": "hi"}])
            modes = read_modes(tmp_path)
        assert set(modes.values()) == {0o600}
        assert "app.db-wal" in modes
    finally:
        os.umask(before)


async def test_new_files_of_other_sessions_and_exports_are_readable_by_their_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        url, items = f"sqlite+aiosqlite:///{tmp_path}", [{"role": "user", "content": "hi"}]
        owned = SQLAlchemySession.from_url("s", url=f"{url}/owned.db", create_tables=True)
        await owned.add_items(items)
        engine = create_async_engine(f"{url}/engine.db")
        await SQLAlchemySession("s", engine=engine, create_tables=True).add_items(items)
        async with open_store(f"sqlite:///{tmp_path}/app.db") as store:
            await store.session("s").add_items(items)
            await write_openai_agents_file(tmp_path / "exported.db", store, ["s"])
        modes = read_modes(tmp_path)
        await owned.close()
        await engine.dispose()
        assert {name: oct(mode) for name, mode in modes.items() if mode != 0o600} == {}
        assert {"owned.db", "engine.db", "exported.db"} <= modes.keys()
    finally:
        os.umask(before)


async def test_the_log_of_a_file_of_openai_agents_is_emptied_too(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    theirs = agents.SQLiteSession("gone", path)
    await theirs.add_items([{"role": "user", "content": f"{WORD} {n}"} for n in range(50)])
    theirs.close()
    for session in (
        SQLiteSession("gone", path),
        SQLAlchemySession.from_url("gone", url=f"sqlite+aiosqlite:///{path}", create_tables=True),
    ):
        await session.add_items([{"role": "user", "content": f"{WORD} more"}])
        assert count_words(path)[0] > 0
        await session.clear_session()
        assert count_words(path)[0] == 0
        closed = session.close()
        if closed is not None:
            await closed


async def test_the_permissions_of_an_existing_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.touch()
    path.chmod(0o640)
    async with open_store(f"sqlite:///{path}") as store:
        await store.session("s").add_items([{"role": "user", "content": "hi"}])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
