"""What PostgreSQL keeps of deleted words, as the page about security says."""

import secrets
from pathlib import Path

import asyncpg
import pytest

from factories.runtime import Refunds, reply, tool_calls, wait_for
from factories.stored_rows import list_rows
from servers import dsn
from standfast import Runtime


async def read_tables(url: str) -> bytes:
    """Return the bytes of the database's files, without the write-ahead log."""
    connection = await asyncpg.connect(dsn(url))
    try:
        await connection.execute("CHECKPOINT")
        folder = Path(await connection.fetchval("SHOW data_directory"))
        number = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
    finally:
        await connection.close()
    return b"".join(file.read_bytes() for file in (folder / "base" / str(number)).iterdir())


async def run(url: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn(url))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_no_query_returns_deleted_text_and_a_full_vacuum_removes_it_from_the_tables(postgres_url: str) -> None:
    word = f"word{secrets.token_hex(8)}"
    agent = Refunds(needs_approval=False).agent(tool_calls(("refund", {"order": word, "amount": 5}, "c1")), reply(word))
    async with Runtime.open(postgres_url, agents=[agent]) as runtime:
        outcome = await wait_for((await runtime.start("support", word, session_id="s")).wait())
        assert outcome.status == "completed"
        assert await runtime.store.search(word)
        assert word in await list_rows(postgres_url)
        try:
            assert word.encode() in await read_tables(postgres_url)
        except (OSError, asyncpg.InsufficientPrivilegeError):
            pytest.skip("the files of this server cannot be read")
        await runtime.store.delete("s")
        assert word not in await list_rows(postgres_url)
        assert word.encode() in await read_tables(postgres_url), "the page says that they stay"
        await run(postgres_url, "VACUUM FULL")
        assert word.encode() not in await read_tables(postgres_url)
