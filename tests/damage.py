"""Overwrite the stored bytes of an item without using the backend; ``None`` deletes it."""

import sqlite3
from contextlib import closing

import sqlalchemy

from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.records import Row
from standfast.store.sqlalchemy.backend import SqlBackend
from standfast.store.sqlite.backend import SqliteBackend


async def damage_memory(backend: MemoryBackend, session_id: str, position: int, data: bytes | None) -> None:
    row = await read_row(backend, session_id, position)
    backend.tables.tapes[row.tape, row.seq] = data


async def damage_sqlite(backend: SqliteBackend, session_id: str, position: int, data: bytes | None) -> None:
    row = await read_row(backend, session_id, position)
    with closing(sqlite3.connect(backend.path)) as raw, raw:
        raw.execute(build_statement(backend.names.items, data), {"tape": row.tape, "seq": row.seq, "data": data})


async def damage_sql(backend: SqlBackend, session_id: str, position: int, data: bytes | None) -> None:
    row = await read_row(backend, session_id, position)
    values = {"tape": row.tape, "seq": row.seq, **({} if data is None else {"data": data})}
    async with backend.engine.begin() as raw:
        await raw.execute(sqlalchemy.text(build_statement("standfast_items", data)), values)


def build_statement(table: str, data: bytes | None) -> str:
    verb = f"DELETE FROM {table}" if data is None else f"UPDATE {table} SET data = :data"
    return f"{verb} WHERE tape = :tape AND seq = :seq"


async def read_row(backend: Backend, session_id: str, position: int) -> Row:
    page = await backend.read(session_id, start=position, stop=position + 1)
    assert page is not None
    return page.rows[0]
