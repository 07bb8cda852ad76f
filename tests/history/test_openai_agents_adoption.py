"""Tables of openai-agents are used together with their owner until they are adopted, and can be given back.

openai-agents runs in a process of its own. ``OPENAI_AGENTS_PYTHONS`` may name the interpreters of other environments,
separated by colons, to do the same with other versions.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast import AdvancedSQLiteSession, EncryptedSession, SQLAlchemySession, SQLiteSession
from standfast.base.errors import HistoryMoved, InvalidInput, NotAdopted
from standfast.history.imports.adoption import adopt, is_adopted, undo_adoption
from standfast.history.store import open_store

PYTHONS = [sys.executable, *filter(None, os.environ.get("OPENAI_AGENTS_PYTHONS", "").split(":"))]
KEY = "your-secret-encryption-key"


def make_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Program:
    """A process with openai-agents."""

    def __init__(self, python: str) -> None:
        program = Path(__file__).with_name("openai_agents_program.py")
        self.process = subprocess.Popen([python, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate()


class TheirSession:
    """A session that the other process uses."""

    def __init__(self, program: Program, place: "Place", session_id: str, key: str | None = None) -> None:
        self.program, self.session = program, [place.kind, session_id, place.for_them, key]

    def call(self, method: str, *args: Any) -> Any:
        answer = self.ask(method, *args)
        assert "error" not in answer, answer
        return answer["result"]

    def ask(self, method: str, *args: Any) -> dict[str, Any]:
        return self.program.ask(session=self.session, call=[method, *args])


@pytest.fixture(scope="module", params=PYTHONS)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    started = Program(request.param)
    yield started
    started.close()


class Place:
    """A database, and sessions of standfast in it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url, self.opened = kind, url, list[Any]()

    @property
    def for_them(self) -> str:
        return self.url.removeprefix("sqlite:///") if self.kind == "sqlite" else self.url

    def open(self, session_id: str, key: str | None = None) -> Any:
        plain: Any
        if self.kind == "sqlite":
            plain = SQLiteSession(session_id, self.for_them)
        else:
            plain = SQLAlchemySession.from_url(session_id, url=self.url)
        self.opened.append(plain)
        return EncryptedSession(session_id, plain, key) if key else plain

    async def close(self) -> None:
        for session in self.opened:
            closed = session.close()
            if closed is not None:
                await closed


@pytest.fixture(params=["sqlite", "aiosqlite", "postgresql"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> AsyncIterator[Place]:
    urls = {"sqlite": f"sqlite:///{tmp_path}/old.db", "aiosqlite": f"sqlite+aiosqlite:///{tmp_path}/old.db"}
    found = Place(request.param, urls.get(request.param, postgres_url))
    yield found
    await found.close()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_both_programs_use_a_session_in_turn(place: Place, program: Program, key: str | None) -> None:
    them = TheirSession(program, place, "ann", key)
    them.call("add_items", [make_message("1, theirs")])
    ours = place.open("ann", key)
    assert await ours.get_items() == [make_message("1, theirs")]
    await ours.add_items([make_message("2, ours é"), make_message("3, ours")])
    them.call("add_items", [make_message("4, theirs")])
    both = [make_message("1, theirs"), make_message("2, ours é"), make_message("3, ours"), make_message("4, theirs")]
    assert them.call("get_items") == await ours.get_items() == both
    assert them.call("get_items", 2) == await ours.get_items(2) == both[2:]
    assert await ours.pop_item() == both[3]
    assert them.call("pop_item") == both[2]
    head = await ours.head()
    them.call("add_items", [make_message("5, theirs")])
    with pytest.raises(HistoryMoved):
        await ours.add_items([make_message("too late")], expected=head)
    # What openai-agents does by clearing and adding is one transaction here.
    await ours.splice_items(0, 2, [make_message("summary")])
    assert them.call("get_items") == await ours.get_items() == [make_message("summary"), make_message("5, theirs")]
    assert (await ours.check()).ok
    await ours.clear_session()
    assert them.call("get_items") == await ours.get_items() == []
    await ours.add_items([make_message("again")])
    assert them.call("get_items") == [make_message("again")]


async def test_nothing_is_added_to_the_database(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "old.db"

    def list_objects() -> list[str]:
        with closing(sqlite3.connect(path)) as db:
            return [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY name")]

    them = TheirSession(program, Place("sqlite", f"sqlite:///{path}"), "ann")
    them.call("add_items", [make_message("theirs")])
    before = list_objects()
    session = SQLiteSession("ann", path)
    await session.add_items([make_message("ours")])
    await session.search("ours")
    with pytest.raises(NotAdopted, match="standfast adopt URL"):
        await session.fork()
    branching = AdvancedSQLiteSession(session_id="ann", db_path=path)
    with pytest.raises(NotAdopted):
        await branching.get_items()
    with pytest.raises(NotAdopted):
        async with open_store(f"sqlite:///{path}?tables=agent_sessions,agent_messages"):
            pass
    assert list_objects() == before
    session.close()
    branching.close()


async def test_tables_are_adopted_and_given_back(place: Place, program: Program) -> None:
    them = TheirSession(program, place, "ann")
    them.call("add_items", [make_message("theirs")])
    early = place.open("ann")  # is open while the tables are adopted
    await early.add_items([make_message("ours, before")])
    (planned,) = await adopt(place.url, dry_run=True)
    assert (planned.session_id, planned.outcome, planned.items) == ("ann", "adopted", 2)
    assert not await is_adopted(place.url)
    assert await adopt(place.url) == [planned]
    with pytest.raises(InvalidInput, match="already"):
        await adopt(place.url)
    refused = them.ask("add_items", [make_message("lost?")])
    assert "adopted by standfast" in refused["error"]
    assert "error" in them.ask("pop_item")
    assert len(them.call("get_items")) == 2
    await early.add_items([make_message("ours, after")])
    late = place.open("ann")
    assert (
        await late.get_items()
        == await early.get_items()
        == [
            make_message("theirs"),
            make_message("ours, before"),
            make_message("ours, after"),
        ]
    )
    fork = await late.fork(1, "bob")
    await fork.add_items([make_message("in the fork")])
    planned_return = await undo_adoption(place.url, dry_run=True)
    assert {row.session_id: (row.outcome, row.items) for row in planned_return} == {
        "ann": ("returned", 1),
        "bob": ("returned", 2),
    }
    assert await is_adopted(place.url)
    await place.close()
    assert await undo_adoption(place.url) == planned_return
    them.call("add_items", [make_message("theirs again")])
    contents = [item["content"] for item in them.call("get_items")]
    assert contents == ["theirs", "ours, before", "ours, after", "theirs again"]
    them = TheirSession(program, place, "bob")
    assert [item["content"] for item in them.call("get_items")] == ["theirs", "in the fork"]
    again = await adopt(place.url)
    assert [(row.session_id, row.items) for row in again] == [("ann", 4), ("bob", 2)]


async def test_an_encrypted_session_is_adopted_used_and_given_back(place: Place, program: Program) -> None:
    them = TheirSession(program, place, "ann", KEY)
    them.call("add_items", [make_message("theirs")])
    (entry,) = await adopt(place.url)
    assert "key" in entry.note
    ours = place.open("ann", KEY)
    await ours.add_items([make_message("ours")])
    (refused,) = await undo_adoption(place.url)
    assert refused.outcome == "refused"
    assert await is_adopted(place.url)
    await place.close()
    (returned,) = await undo_adoption(place.url, secrets=[KEY])
    assert (returned.outcome, returned.items) == ("returned", 2)
    assert them.call("get_items") == [make_message("theirs"), make_message("ours")]


KILLED = """
import asyncio, os, signal, sqlite3, sys
from standfast.store.sql.connection import TableNames
from standfast.store.sqlite.backend import SqliteBackend

path, after = sys.argv[1], int(sys.argv[2])
count = 0

def trace(statement):
    global count
    count += 1
    if count == after:
        os.kill(os.getpid(), signal.SIGKILL)

def connect(*args, **kwargs):
    raw = sqlite3.connect(*args, **kwargs)
    raw.set_trace_callback(trace)
    return raw

async def main():
    names = TableNames("agent_sessions", "agent_messages")
    backend = SqliteBackend(path, names=names, foreign_tables="adopt", connect=connect)
    await backend.open()
    await backend.close()

asyncio.run(main())
print(count)
"""


async def test_a_process_that_is_killed_while_adopting_leaves_everything_as_it_was(
    tmp_path: Path, program: Program
) -> None:
    path = tmp_path / "old.db"
    them = TheirSession(program, Place("sqlite", f"sqlite:///{path}"), "ann")
    for number in range(5):
        them.call("add_items", [make_message(str(number))])

    def adopt_and_die(after: int, file: Path = path) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(file), str(after)], stdout=subprocess.PIPE, text=True, check=False
        )
        return done.returncode, done.stdout

    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        db.backup(copy)
    statements = int(adopt_and_die(0, tmp_path / "copy.db")[1])
    for after in (statements // 3, statements - 25, statements - 3):
        assert adopt_and_die(after)[0] == -signal.SIGKILL
        assert not await is_adopted(f"sqlite:///{path}")
        them.call("add_items", [make_message(f"after {after}")])
    assert adopt_and_die(0)[0] == 0
    assert await is_adopted(f"sqlite:///{path}")
    assert "error" in them.ask("add_items", [make_message("too late")])
    session = SQLiteSession("ann", path)
    assert await session.get_items() == them.call("get_items")
    session.close()
