"""Histories: what an append and a read cost, against bare sqlite3 and against openai-agents."""

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.competitors.histories import TURN
from bench.environments import AGENTS, Peer, peers_started
from bench.progress import tell
from bench.quick import pick
from bench.figures import Figure, Work, at_least, at_most, clocked, micro, side_by_side, without_peer
from standfast.history.stored_session import StoredSession
from standfast.store.sqlite.backend import SqliteBackend

PEER = "openai-agents"
ROUNDS, CALLERS, MANY = pick(12, 3), 32, pick(100_000, 10_000)
# Enough that every round has its share of the write-ahead log's checkpoints, which ours makes every 256 commits.
CALLS = 300


def bare_append(path: Path) -> Callable[[], None]:
    """One append as a bare sqlite3 transaction: the same tables, rows and pragmas, nothing else."""
    asyncio.run(prepare(path))
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    db.execute("PRAGMA synchronous = NORMAL")
    tape = db.execute("SELECT tape FROM standfast_sessions").fetchone()[0]

    def append() -> None:
        rows = [json.dumps(item).encode() for item in TURN]
        db.execute("BEGIN IMMEDIATE")
        version, length, seq = db.execute(
            "SELECT version, length, next_seq FROM standfast_sessions WHERE session_id = ?", ("bare",)
        ).fetchone()
        db.execute(
            "UPDATE standfast_sessions SET version = ?, length = ?, next_seq = ?, updated_at = ? WHERE session_id = ?",
            (version + 1, length + 2, seq + 2, 1e9 + version, "bare"),
        )
        db.executemany(
            "INSERT INTO standfast_items (tape, seq, data) VALUES (?, ?, ?)",
            [(tape, seq + index, row) for index, row in enumerate(rows)],
        )
        db.execute("COMMIT")

    return append


async def prepare(path: Path) -> None:
    backend = SqliteBackend(path)
    await StoredSession("bare", backend).add_items(TURN)
    await backend.close()


async def filled(backend: SqliteBackend, name: str, items: int) -> StoredSession:
    session = StoredSession(name, backend)
    for _ in range(0, items, 1000):
        await session.add_items(TURN * (min(items, 1000) // 2))
    return session


class Appending:
    """The same appends to a bare database, to a history of ours and to one of the peer, where there is a peer."""

    def __init__(self, bare: Callable[[], None], ours: StoredSession, peer: Peer | None) -> None:
        self.bare, self.ours, self.peer = bare, ours, peer

    async def rounds(self, callers: int, calls: int) -> dict[str, float]:
        """Seconds of one append of each. A bare database has no callers: it does their work one after the other."""

        async def bare() -> None:
            for _ in range(callers):
                self.bare()

        async def ours() -> None:
            if callers == 1:
                await self.ours.add_items(TURN)
            else:
                await asyncio.gather(*(self.ours.add_items(TURN) for _ in range(callers)))

        async def peer() -> float:
            assert self.peer is not None
            return float(self.peer.ask("append", calls=calls, callers=callers))

        rivals = {
            "bare": clocked(bare, calls=calls, each=callers),
            "ours": clocked(ours, calls=calls, each=callers),
        }
        return await side_by_side(rivals | ({"peer": peer} if self.peer else {}), ROUNDS)


def appended(name: str, found: dict[str, float], limit: float) -> Iterable[Figure]:
    ours, bare, peer = found["ours"], found["bare"], found.get("peer")
    yield at_most(f"{name}, beside bare sqlite3", micro(ours), micro(bare), ours / bare, limit)
    if peer is None:
        yield without_peer(f"{name}, beside {PEER}", micro(ours), ">= 3x")
    else:
        yield at_least(f"{name}, beside {PEER}", micro(ours), micro(peer), peer / ours, 3)


async def lengths(backend: SqliteBackend) -> Iterable[Figure]:
    """A history of many items beside one of few: reading the end of it and adding to it."""
    short, long = await filled(backend, "short", 100), await filled(backend, "long", MANY)
    empty = StoredSession("fresh", backend)

    async def read(session: StoredSession) -> None:
        assert len(await session.get_items(20)) == 20

    tell("history: reads and appends of long and short histories")
    pairs: dict[str, tuple[Work, Work]] = {
        f"last 20 of {MANY:,} over last 20 of 100": (lambda: read(long), lambda: read(short)),
        f"append to {MANY:,} over append to few": (lambda: long.add_items(TURN), lambda: empty.add_items(TURN)),
    }
    rows = []
    for name, works in pairs.items():
        rounds = {end: clocked(work, calls=CALLS) for end, work in zip(("many", "few"), works, strict=True)}
        found = await side_by_side(rounds, ROUNDS)
        rows.append(at_most(name, micro(found["many"]), micro(found["few"]), found["many"] / found["few"], 1.15))
    return rows


async def measure(folder: Path, bare: Callable[[], None], peer: Peer | None) -> list[Figure]:
    backend = SqliteBackend(folder / "ours.db")
    appending = Appending(bare, StoredSession("ours", backend), peer)
    try:
        tell("history: appends of one caller")
        one = await appending.rounds(1, CALLS)
        tell(f"history: appends of {CALLERS} callers")
        many = await appending.rounds(CALLERS, 10)
        rows = [*appended("append 2 items, 1 caller", one, 3)]
        rows += appended(f"append 2 items, {CALLERS} callers", many, 1.5)
        return [*rows, *await lengths(backend)]
    finally:
        await backend.close()


def figures() -> Iterable[Figure]:
    wanted = {PEER: (AGENTS, ("bench.competitors.histories",))}
    with tempfile.TemporaryDirectory() as name, peers_started(wanted) as peers:
        folder = Path(name)
        yield from asyncio.run(measure(folder, bare_append(folder / "bare.db"), peers.get(PEER)))
