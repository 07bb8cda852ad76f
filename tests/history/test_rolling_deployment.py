"""Processes with openai-agents and processes with standfast write to the same sessions at the same time."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, SQLAlchemySession

from mongodb_server import mongodb_url
from redis_server import redis_url

__all__ = ["mongodb_url", "redis_url"]
BATCHES, WRITERS = 8, 2
LIMIT = 64 * 1024 * 1024


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, **command: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return json.loads(await self.process.stdout.readline())


@pytest.fixture
async def processes() -> AsyncIterator[dict[str, Process]]:
    program, started = Path(__file__).with_name("deployed_program.py"), dict[str, Process]()
    for name, library in (("old0", "agents"), ("new0", "standfast"), ("new1", "standfast")):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(program),
            library,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LIMIT,
        )
        started[name] = Process(process)
    for entry in started.values():
        assert entry.process.stdout
        assert json.loads(await entry.process.stdout.readline()) == "ready"
    yield started
    for entry in started.values():
        assert entry.process.stdin
        entry.process.stdin.close()
        await entry.process.wait()


async def make_places(folder: Path, postgres: str, redis: str, mongodb: str) -> dict[str, str]:
    """Return a place for each kind of session; tables are those that openai-agents makes."""
    SQLiteSession("ann", folder / "plain.db").close()
    AdvancedSQLiteSession(session_id="ann", db_path=folder / "branches.db", create_tables=True).close()
    first = SQLAlchemySession.from_url("first", url=postgres, create_tables=True)
    await first.add_items([{"role": "user", "content": "creates the tables"}])
    await first.engine.dispose()
    return {
        "sqlite": str(folder / "plain.db"),
        "branches": str(folder / "branches.db"),
        "sqlalchemy": postgres,
        "redis": redis,
        "mongodb": mongodb,
    }


async def test_nothing_is_lost_and_both_libraries_see_one_order(
    processes: dict[str, Process], tmp_path: Path, postgres_url: str, redis_url: str, mongodb_url: str
) -> None:
    places = await make_places(tmp_path, postgres_url, redis_url, mongodb_url)
    for kind, place in places.items():
        common = {"kind": kind, "place": place, "session": f"rolling-{tmp_path.name}", "batches": BATCHES}
        asked = [entry.ask(name=f"{name}-", writers=WRITERS, **common) for name, entry in processes.items()]
        await asyncio.gather(*asked)
        items, *others = [await entry.ask(name="", writers=0, **common) for entry in processes.values()]
        assert all(other == items for other in others), kind
        writers = [f"{name}-{number}" for name in processes for number in range(WRITERS)]
        for writer in writers:
            texts = [item["content"] for item in items if item["content"].startswith(f"{writer} ")]
            assert texts == [f"{writer} {number}{end}" for number in range(BATCHES) for end in ("", " re")], kind
        assert len(items) == 2 * BATCHES * len(writers), kind
        pairs = zip(items[::2], items[1::2], strict=True)
        assert all(answer["content"] == f"{user['content']} re" for user, answer in pairs), kind
