"""Write ``sessions_PACKAGE.json.gz`` with the installed version of openai-agents: what its sessions store.

Run it with the Python of a virtual environment that has the wanted version with ``aiosqlite``, ``cryptography``,
``sqlalchemy[asyncio]`` and, for Redis, ``redis`` and a running server::

    /tmp/oa/bin/python tests/golden/openai_agents/make_sessions.py unix:///tmp/redis.sock

Databases are kept as SQL, the keys of Redis as commands, and beside them what openai-agents reads from them.
"""

import asyncio
import gzip
import json
import sqlite3
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import agents
from agents.extensions.memory.advanced_sqlite_session import AdvancedSQLiteSession
from agents.extensions.memory.async_sqlite_session import AsyncSQLiteSession
from agents.extensions.memory.encrypt_session import EncryptedSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession

FOLDER = Path(__file__).parent
KEY = "your-secret-encryption-key"
ITEMS: list[Any] = [
    {"role": "user", "content": "I am Ann. é"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "7"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Hello", "annotations": []}]},
]


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def said(*texts: str) -> list[Any]:
    return [{"role": role, "content": text} for text in texts for role in ("user", "assistant")]


async def close(session: Any) -> None:
    closed = session.close()
    if closed is not None:
        await closed


async def make_sqlite(path: Path) -> dict[str, Any]:
    session = agents.SQLiteSession("ann", path)
    await session.add_items(ITEMS)
    session.close()
    return {"items": ITEMS}


async def make_async_sqlite(path: Path) -> dict[str, Any]:
    session = AsyncSQLiteSession("ann", path)
    await session.add_items(ITEMS)
    await session.pop_item()
    await close(session)
    return {"items": ITEMS[:-1]}


async def make_sqlalchemy(path: Path) -> dict[str, Any]:
    session = SQLAlchemySession.from_url("ann", url=f"sqlite+aiosqlite:///{path}", create_tables=True)
    await session.add_items(ITEMS)
    await session.engine.dispose()
    return {"items": ITEMS}


async def make_encrypted(path: Path) -> dict[str, Any]:
    plain = agents.SQLiteSession("ann", path)
    await EncryptedSession("ann", plain, KEY).add_items(ITEMS)
    plain.close()
    return {"items": ITEMS, "key": KEY}


async def make_encrypted_sqlalchemy(path: Path) -> dict[str, Any]:
    plain = SQLAlchemySession.from_url("ann", url=f"sqlite+aiosqlite:///{path}", create_tables=True)
    await EncryptedSession("ann", plain, KEY).add_items(ITEMS)
    await plain.engine.dispose()
    return {"items": ITEMS, "key": KEY}


async def make_advanced(path: Path) -> dict[str, Any]:
    session = AdvancedSQLiteSession(session_id="ann", db_path=path, create_tables=True)
    usage = agents.Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
    run: Any = SimpleNamespace(context_wrapper=SimpleNamespace(usage=usage))
    await session.add_items(said("one", "two"))
    await session.store_run_usage(run)
    await session.create_branch_from_turn(2, "alt")
    await session.add_items(said("two, otherwise"))
    await session.store_run_usage(run)
    read = {name: await session.get_items(branch_id=name) for name in ("main", "alt")}
    total = await session.get_session_usage()
    session.close()
    return {"items": read["main"], "branches": read, "usage": total}


async def make_redis(url: str) -> dict[str, Any]:
    from agents.extensions.memory.redis_session import RedisSession
    from redis.asyncio import Redis

    client = Redis.from_url(url, decode_responses=True)
    session = RedisSession("ann", redis_client=client, key_prefix="golden")
    await session.clear_session()
    await session.add_items(ITEMS)
    commands: list[list[Any]] = []
    async for key in client.scan_iter("golden:*"):
        if await client.type(key) == "list":
            commands.append(["RPUSH", key, *await client.lrange(key, 0, -1)])
        elif await client.type(key) == "hash":
            commands.append(["HSET", key, *(part for pair in (await client.hgetall(key)).items() for part in pair)])
        else:
            commands.append(["SET", key, await client.get(key)])
    await session.clear_session()
    await client.aclose()
    return {"items": ITEMS, "commands": commands}


async def main() -> None:
    made: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for make in (
            make_sqlite,
            make_async_sqlite,
            make_sqlalchemy,
            make_encrypted,
            make_encrypted_sqlalchemy,
            make_advanced,
        ):
            name = make.__name__.removeprefix("make_")
            path = Path(folder) / f"{name}.db"
            made[name] = {**await make(path), "sql": dump(path)}
    if len(sys.argv) > 1:
        made["redis"] = await make_redis(sys.argv[1])
    package = version("openai-agents")
    text = json.dumps(made)
    (FOLDER / f"sessions_{package}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    print(package, len(text), list(made))


if __name__ == "__main__":
    asyncio.run(main())
