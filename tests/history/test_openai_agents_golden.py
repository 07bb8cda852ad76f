"""Sessions that published versions of openai-agents stored are read as openai-agents reads them."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from standfast import (
    AdvancedSQLiteSession,
    AsyncSQLiteSession,
    EncryptedSession,
    RedisSession,
    SQLAlchemySession,
    SQLiteSession,
)
from standfast.base.ids import new_id
from standfast.history.imports.adoption import adopt

GOLDEN = Path(__file__).parents[1] / "golden" / "openai_agents"
PACKAGES = ["0.8.4", "0.17.7", "0.24.0"]


def load(package: str, name: str) -> dict[str, Any]:
    made = json.loads(gzip.decompress((GOLDEN / f"sessions_{package}.json.gz").read_bytes()))
    found: dict[str, Any] = made[name]
    return found


def restore(golden: dict[str, Any], path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("\n".join(golden["sql"]))
    return path


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ["sqlite", "async_sqlite", "encrypted"])
async def test_sessions_in_a_file(package: str, name: str, tmp_path: Path) -> None:
    golden = load(package, name)
    kind = AsyncSQLiteSession if name == "async_sqlite" else SQLiteSession
    stored = kind("ann", restore(golden, tmp_path / "old.db"))
    session: Any = EncryptedSession("ann", stored, golden["key"]) if "key" in golden else stored
    assert await session.get_items() == golden["items"]
    assert (await session.check()).ok
    closed = stored.close()
    if closed is not None:
        await closed


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ["sqlalchemy", "encrypted_sqlalchemy"])
async def test_sessions_in_a_database_of_sqlalchemy(package: str, name: str, tmp_path: Path) -> None:
    golden = load(package, name)
    path = restore(golden, tmp_path / "old.db")
    stored = SQLAlchemySession.from_url("ann", url=f"sqlite+aiosqlite:///{path}", create_tables=True)
    session: Any = EncryptedSession("ann", stored, golden["key"]) if "key" in golden else stored
    assert await session.get_items() == golden["items"]
    await stored.close()


@pytest.mark.parametrize("package", PACKAGES)
async def test_branches_and_usage(package: str, tmp_path: Path) -> None:
    golden = load(package, "advanced")
    path = restore(golden, tmp_path / "old.db")
    await adopt(f"sqlite:///{path}")
    session = AdvancedSQLiteSession(session_id="ann", db_path=path)
    assert {name: await session.get_items(branch_id=name) for name in golden["branches"]} == golden["branches"]
    assert [entry["branch_id"] for entry in await session.list_branches()] == list(golden["branches"])
    assert await session.get_session_usage() == golden["usage"]
    session.close()


@pytest.mark.parametrize("package", PACKAGES)
async def test_sessions_in_redis(package: str, redis_url: str) -> None:
    golden = load(package, "redis")
    client, prefix = Redis.from_url(redis_url), new_id("prefix")
    for command, key, *values in golden["commands"]:
        await client.execute_command(command, key.replace("golden", prefix, 1), *values)
    session = RedisSession("ann", redis_client=client, key_prefix=prefix)
    assert await session.get_items() == golden["items"]
    await client.aclose()
