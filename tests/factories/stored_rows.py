"""Read and change the tables of a store behind its back."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[AsyncConnection]:
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


async def list_rows(url: str, *, without: Collection[str] = ()) -> str:
    """The content of all tables, as text."""
    async with connect(url) as connection:
        names = await connection.run_sync(lambda raw: sqlalchemy.inspect(raw).get_table_names())
        tables = [
            (await connection.execute(sqlalchemy.text(f'SELECT * FROM "{name}"'))).all()
            for name in sorted(names)
            if name not in without
        ]
        return repr([[bytes(one) if isinstance(one, memoryview) else one for one in row] for t in tables for row in t])


async def execute(url: str, statement: str, **values: Any) -> list[Any]:
    """Execute a statement and return its rows, if it has any."""
    async with connect(url) as connection:
        result = await connection.execute(sqlalchemy.text(statement), values)
        return list(result.all()) if result.returns_rows else []
