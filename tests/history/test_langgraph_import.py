"""Threads that LangGraph stored are imported without LangGraph."""

import base64
import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from standfast.base.errors import InvalidInput
from standfast.history.imports.copies import copy_sessions
from standfast.history.imports.langgraph import decode_value, read_langgraph
from standfast.history.store import open_store

(GOLDEN,) = (Path(__file__).parents[1] / "golden" / "langgraph").glob("checkpoints_*.json.gz")
MADE = json.loads(gzip.decompress(GOLDEN.read_bytes()))
ANN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 3 + 4?"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        "status": "completed",
    },
    {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 3, "b": 4}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "7"},
]
BOB = [
    {"type": "input_text", "text": "Look"},
    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "checkpoints.db")) as db:
        db.executescript("\n".join(MADE["sqlite"]["sql"]))
    return f"sqlite:///{tmp_path}/checkpoints.db"


async def restore_postgres(url: str) -> None:
    """Create the tables of PostgresSaver, as far as they are read."""
    columns = {
        "checkpoints": {"checkpoint": "JSONB", "metadata": "JSONB"},
        "checkpoint_blobs": {"blob": "BYTEA"},
    }
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        for table, rows in MADE["postgres"]["tables"].items():
            types = [f"{name} {columns[table].get(name, 'TEXT')}" for name in rows[0]]
            await connection.execute(sqlalchemy.text(f"CREATE TABLE {table} ({', '.join(types)})"))
            for row in rows:
                values = {name: restore_value(value) for name, value in row.items()}
                casts = [f"CAST(:{name} AS {columns[table].get(name, 'TEXT')})" for name in row]
                insert = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(casts)})"
                await connection.execute(sqlalchemy.text(insert), values)
    await engine.dispose()


def restore_value(value: Any) -> Any:
    if isinstance(value, dict) and list(value) == ["base64"]:
        return base64.b64decode(value["base64"])
    return json.dumps(value) if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_threads_become_sessions(kind: str, sqlite_url: str, postgres_url: str) -> None:
    if kind == "postgres":
        await restore_postgres(postgres_url)
    url = sqlite_url if kind == "sqlite" else postgres_url
    async with open_store("memory://") as store:
        report = {
            entry.session_id: entry for entry in await copy_sessions(read_langgraph(url), store, framework="langgraph")
        }
        assert {name: (entry.outcome, entry.items) for name, entry in report.items()} == {
            "ann": ("copied", 8),
            "bob": ("copied", 2),
        }
        assert "1 parts of the kind 'reasoning' are left out" in report["ann"].note
        items = await store.session("ann").get_items()
        assert items[:5] == ANN
        texts = [item["content"][0]["text"] for item in items if item.get("role") == "assistant"]
        assert texts == [text for role, text in MADE[kind]["threads"]["ann"] if role == "ai"]
        assert (await store.session("bob").get_items())[0]["content"] == BOB


async def test_what_is_no_conversation_is_named(sqlite_url: str, tmp_path: Path) -> None:
    (ann, _) = [source async for source in read_langgraph(sqlite_url, channel="documents")]
    assert ann.problem is not None
    assert "it has messages" in ann.problem.replace("branch:to:answer, ", "")
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(InvalidInput, match="no table 'checkpoints'"):
        [source async for source in read_langgraph(f"sqlite:///{tmp_path}/empty.db")]


def test_values_of_earlier_versions_are_read() -> None:
    human = {"lc": 1, "type": "constructor", "id": ["HumanMessage"], "kwargs": {"type": "human", "content": "Hi"}}
    assert decode_value("json", json.dumps([human]).encode()) == [{"type": "human", "content": "Hi"}]
    with pytest.raises(ValueError, match="encrypted"):
        decode_value("msgpack+aes", b"")


def make_state(*messages: Any) -> bytes:
    return msgspec.msgpack.encode({"channel_values": {"messages": messages}})


MALFORMED = [
    b"\xc1",
    msgspec.msgpack.encode([1]),
    msgspec.msgpack.encode(None),
    msgspec.msgpack.encode({"x": 1}),
    msgspec.msgpack.encode({"channel_values": [1]}),
    make_state({"type": "ai", "content": "", "tool_calls": [{"name": "x"}]}),
    make_state({"type": "ai", "content": "", "tool_calls": 5}),
    make_state({"type": "ai", "content": [5]}),
    make_state({"type": "tool"}),
    make_state({"type": "human", "content": [{"type": "image_url"}]}),
]


async def test_a_malformed_thread_is_refused_and_the_others_are_copied(sqlite_url: str, tmp_path: Path) -> None:
    threads = {f"bad-{number}": data for number, data in enumerate(MALFORMED)}
    threads |= {"x" * 300: make_state({"type": "human", "content": "hi"}), "no\nline": make_state()}
    with closing(sqlite3.connect(tmp_path / "checkpoints.db")) as db, db:
        for thread, data in threads.items():
            db.execute(
                "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, type, checkpoint, metadata)"
                " VALUES (?, '', '1', 'msgpack', ?, '{}')",
                (thread, data),
            )
    async with open_store("memory://") as store:
        report = await copy_sessions(read_langgraph(sqlite_url), store, framework="langgraph")
        outcomes = {entry.session_id: entry.outcome for entry in report}
        assert {outcomes[thread] for thread in threads} == {"refused"}
        assert outcomes["ann"] == "copied"
        assert not any(entry.note.strip() == "" for entry in report if entry.outcome == "refused")
