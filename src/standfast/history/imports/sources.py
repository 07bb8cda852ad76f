"""Conversations of another framework, as they are read before they are copied, and items made from their messages."""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.items import Item

MALFORMED = (LookupError, TypeError, AttributeError, ValueError, RecursionError, msgspec.MsgspecError)
"""What reading a conversation raises whose data are not in the form of their framework."""


class SourceSession(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation. ``problem`` says why it cannot be copied, and ``notes`` what is left out of the copy."""

    session_id: str
    items: list[Item] = []
    created_at: float | None = None
    encrypted: bool = False
    branches: dict[str, list[Item]] = {}
    """The items of each branch, complete; ``main`` has those of the session itself."""
    usage: list[dict[str, Any]] = []
    problem: str | None = None
    notes: tuple[str, ...] = ()


def describe_malformed(error: Exception) -> str:
    """Return one of :data:`MALFORMED` as words."""
    return f"{type(error).__name__}: {error}" if isinstance(error, (LookupError, AttributeError)) else str(error)


Row: TypeAlias = Sequence[Any]
Query: TypeAlias = Callable[[str, Mapping[str, Any]], Any]
"""A coroutine function that returns the rows of a statement with ``:name`` parameters."""


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Query]:
    """Open a database for reading only: an SQLite file, or any URL of an asynchronous SQLAlchemy engine."""
    if url.startswith("sqlite:"):
        with closing(connect_read_only(url)) as file:

            async def query_file(sql: str, params: Mapping[str, Any]) -> list[Row]:
                return file.execute(sql, params).fetchall()

            yield query_file
        return
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:

            async def query_server(sql: str, params: Mapping[str, Any]) -> list[Row]:
                async with connection.begin_nested():  # a table that is missing must not end the transaction
                    return list(await connection.execute(sqlalchemy.text(sql), dict(params)))

            yield query_server
    finally:
        await engine.dispose()


def connect_read_only(url: str) -> sqlite3.Connection:
    """Open the file of ``sqlite:///PATH`` without being able to change it."""
    path = Path(unquote(url.partition("///")[2].partition("?")[0]))
    if not path.is_file():
        raise NotFound("file", str(path))
    file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    file.execute("PRAGMA query_only = 1")
    return file


async def has_table(query: Query, table: str, column: str) -> bool:
    """Return whether a table has a column, by asking for no rows of it."""
    try:
        await query(f"SELECT {column} FROM {table} LIMIT 0", {})
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("sqlite3", "sqlalchemy"):
            raise
        return False
    return True


def validate_identifier(name: str) -> str:
    if not name.isidentifier():
        raise InvalidInput(f"{name!r} is not a table name")
    return name


def make_text_message(text: str) -> Item:
    """Return a message of the assistant."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed"}


def make_call(call_id: str, name: str, arguments: Any) -> Item:
    """Return a call of a function. ``arguments`` are JSON, as a text or a value."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def make_output(call_id: str, output: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def make_image(url: str) -> Item:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def to_text(content: Any) -> str:
    """Return a text as it is, and any other value as JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
