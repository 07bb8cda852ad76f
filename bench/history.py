"""Histories: what an append and a read cost, against bare sqlite3 and against openai-agents."""

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import SQLiteSession as PeerSession

from bench.rows import Figure, Work, at_least, at_most, micro, side_by_side
from holdfast.history.session import StoredSession
from holdfast.store.sqlite.backend import SqliteBackend

TURN: list[Any] = [
    {"role": "user", "content": "Where is my order 1234? I placed it on Monday and have heard nothing since."},
    {"role": "assistant", "content": "It left our warehouse this morning and should reach you tomorrow before noon."},
]


def bare_append(path: Path) -> Callable[[], None]:
    """One append as a bare sqlite3 transaction: the same tables, rows and pragmas, nothing else."""
    asyncio.run(prepare(path))
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    db.execute("PRAGMA synchronous = NORMAL")
    tape = db.execute("SELECT tape FROM holdfast_sessions").fetchone()[0]

    def append() -> None:
        rows = [json.dumps(item).encode() for item in TURN]
        db.execute("BEGIN IMMEDIATE")
        version, length, seq = db.execute(
            "SELECT version, length, next_seq FROM holdfast_sessions WHERE session_id = ?", ("bare",)
        ).fetchone()
        db.execute(
            "UPDATE holdfast_sessions SET version = ?, length = ?, next_seq = ?, updated_at = ? WHERE session_id = ?",
            (version + 1, length + 2, seq + 2, 1e9 + version, "bare"),
        )
        db.executemany(
            "INSERT INTO holdfast_items (tape, seq, data) VALUES (?, ?, ?)",
            [(tape, seq + index, row) for index, row in enumerate(rows)],
        )
        db.execute("COMMIT")

    return append


async def prepare(path: Path) -> None:
    backend = SqliteBackend(path)
    await StoredSession("bare", backend).add_items(TURN)
    await backend.close()


def repeated(append: Callable[[], None]) -> Work:
    async def work() -> None:
        append()

    return work


def together(session: Any, callers: int) -> Work:
    async def work() -> None:
        await asyncio.gather(*(session.add_items(TURN) for _ in range(callers)))

    return work


async def filled(backend: SqliteBackend, name: str, items: int) -> StoredSession:
    session = StoredSession(name, backend)
    for _ in range(0, items, 1000):
        await session.add_items(TURN * (min(items, 1000) // 2))
    return session


async def measure(folder: Path, bare: Callable[[], None]) -> list[Figure]:
    backend = SqliteBackend(folder / "ours.db")
    ours = StoredSession("ours", backend)
    peer = PeerSession("peer", folder / "peer.db")
    one = await side_by_side(
        {"bare": repeated(bare), "ours": lambda: ours.add_items(TURN), "peer": lambda: peer.add_items(TURN)},
        rounds=15,
        calls=100,
    )
    many = await side_by_side(
        {"bare": repeated(bare), "ours": together(ours, 32), "peer": together(peer, 32)}, rounds=15, calls=5
    )
    ours32, peer32 = many["ours"] / 32, many["peer"] / 32
    short, long = await filled(backend, "short", 100), await filled(backend, "long", 100_000)

    async def read(session: StoredSession) -> None:
        assert len(await session.get_items(20)) == 20

    reads = await side_by_side({"short": lambda: read(short), "long": lambda: read(long)}, rounds=15, calls=100)
    empty = StoredSession("empty", backend)
    appends = await side_by_side(
        {"empty": lambda: empty.add_items(TURN), "long": lambda: long.add_items(TURN)}, rounds=15, calls=100
    )
    await backend.close()
    peer.close()
    return [
        at_most(
            "append 2 items, 1 caller, vs bare sqlite3",
            micro(one["ours"]),
            micro(one["bare"]),
            one["ours"] / one["bare"],
            3,
        ),
        at_least("  ... vs openai-agents", micro(one["ours"]), micro(one["peer"]), one["peer"] / one["ours"], 3),
        at_most(
            "append 2 items, 32 callers, vs bare sqlite3",
            micro(ours32),
            micro(many["bare"]),
            ours32 / many["bare"],
            1.5,
        ),
        at_least("  ... vs openai-agents", micro(ours32), micro(peer32), peer32 / ours32, 3),
        at_most(
            "last 20 of 100,000 vs of 100",
            micro(reads["long"]),
            micro(reads["short"]),
            reads["long"] / reads["short"],
            1.15,
        ),
        at_most(
            "append to 100,000 vs to few",
            micro(appends["long"]),
            micro(appends["empty"]),
            appends["long"] / appends["empty"],
            1.15,
        ),
    ]


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return asyncio.run(measure(folder, bare_append(folder / "bare.db")))
