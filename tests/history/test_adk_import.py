"""Sessions that the Agent Development Kit stored are imported without it."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from standfast.base.errors import InvalidInput
from standfast.history.imports.adk import read_adk
from standfast.history.imports.copies import copy_sessions
from standfast.history.store import open_store

GOLDEN = {
    path.name: json.loads(gzip.decompress(path.read_bytes()))
    for path in sorted((Path(__file__).parents[1] / "golden" / "adk").glob("sessions_*.json.gz"))
}


def make_message(text: str) -> dict[str, object]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed"}


EXPECTED = [
    {"role": "user", "content": "What is 3 + 4?"},
    {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 3, "b": 4}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "7"},
    make_message("It is 7. é"),
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Look"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
        ],
    },
    make_message("A picture."),
]


@pytest.mark.parametrize("golden", GOLDEN)
async def test_sessions_are_copied(tmp_path: Path, golden: str) -> None:
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as db:
        db.executescript("\n".join(GOLDEN[golden]["sql"]))
    async with open_store("memory://") as store:
        source = read_adk(f"sqlite:///{tmp_path}/sessions.db")
        ann, bob = await copy_sessions(source, store, framework="adk")
        assert (ann.session_id, ann.outcome, ann.items) == ("shop/ann/s1", "copied", 6)
        assert "1 parts of the kind 'thought'" in ann.note
        assert "state of the session" in ann.note
        assert (bob.session_id, bob.items) == ("shop/bob/s1", 0)
        assert await store.session("shop/ann/s1").get_items() == EXPECTED


async def test_calls_without_ids_get_some(tmp_path: Path) -> None:
    parts = [
        ("calculator", [{"text": "I add."}, {"function_call": {"name": "add", "args": {"a": 1}}}]),
        ("calculator", [{"function_response": {"name": "add", "response": {"sum": 1, "carry": 0}}}]),
    ]
    with closing(sqlite3.connect(tmp_path / "old.db")) as db, db:
        db.execute("CREATE TABLE sessions (app_name, user_id, id, state, create_time)")
        columns = "id, app_name, user_id, session_id, invocation_id, author, timestamp, content, partial"
        db.execute(f"CREATE TABLE events ({columns})")
        db.execute("INSERT INTO sessions VALUES ('shop', 'ann', 's1', '{}', '2026-01-01 00:00:00')")
        for number, (author, found) in enumerate(parts):
            content = json.dumps({"parts": found})
            row = (f"e{number}", "shop", "ann", "s1", "i", author, number, content, None)
            db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    (session,) = [source async for source in read_adk(f"sqlite:///{tmp_path}/old.db")]
    assert session.items == [
        make_message("I add."),
        {"type": "function_call", "call_id": "e0-1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "e0-1", "output": '{"sum": 1, "carry": 0}'},
    ]
    with closing(sqlite3.connect(tmp_path / "empty.db")), pytest.raises(InvalidInput, match="no table 'events'"):
        [source async for source in read_adk(f"sqlite:///{tmp_path}/empty.db")]


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"parts": 5}', '{"parts": [{"function_call": {"id": "x"}}]}', '{"parts": [1]}']
)
async def test_a_malformed_session_is_refused_and_the_others_are_copied(tmp_path: Path, content: str) -> None:
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as db, db:
        db.execute("CREATE TABLE sessions (app_name, user_id, id, state, create_time)")
        columns = "id, app_name, user_id, session_id, invocation_id, author, timestamp, content, partial"
        db.execute(f"CREATE TABLE events ({columns})")
        for user, parts in (("ann", content), ("bob", '{"parts": [{"text": "hi"}]}')):
            db.execute("INSERT INTO sessions VALUES ('shop', ?, 's', '{}', '2026-01-01 00:00:00')", (user,))
            db.execute("INSERT INTO events VALUES ('e', 'shop', ?, 's', 'i', 'user', 1, ?, NULL)", (user, parts))
    async with open_store("memory://") as store:
        source = read_adk(f"sqlite:///{tmp_path}/sessions.db")
        ann, bob = await copy_sessions(source, store, framework="adk")
    assert (ann.outcome, bob.outcome) == ("refused", "copied")
    assert ann.note.startswith("its events cannot be read: ")
