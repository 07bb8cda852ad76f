"""Histories: the cost of an append and of a read, compared with bare sqlite3 and openai-agents."""

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.competitors.histories import TURN
from bench.environments import AGENTS, Competitor, start_competitors
from bench.figures import (
    Figure,
    Work,
    at_least,
    at_most,
    format_seconds,
    make_timed_round,
    measure_medians,
    not_compared,
)
from bench.progress import show_progress
from bench.quick import pick_size
from standfast.history.stored_session import StoredSession
from standfast.store.sqlite.backend import SqliteBackend

COMPETITOR = "openai-agents"
ROUNDS, CALLERS, LONG_HISTORY = pick_size(12, 3), 32, pick_size(100_000, 10_000)
# Enough that every round includes checkpoints of the write-ahead log, which we make every 256 commits.
CALLS = 300


def make_bare_append(path: Path) -> Callable[[], None]:
    """Return an append as a bare sqlite3 transaction with the same tables, rows and pragmas."""
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


async def create_session(backend: SqliteBackend, name: str, items: int) -> StoredSession:
    session = StoredSession(name, backend)
    for _ in range(0, items, 1000):
        await session.add_items(TURN * (min(items, 1000) // 2))
    return session


class AppendBenchmark:
    """Appends to a bare database, to our history and to that of the competitor, if it is available."""

    def __init__(self, bare: Callable[[], None], ours: StoredSession, competitor: Competitor | None) -> None:
        self.bare, self.ours, self.competitor = bare, ours, competitor

    async def rounds(self, callers: int, calls: int) -> dict[str, float]:
        """Return the seconds per append. The bare database has no concurrency: it runs the appends one by one."""

        async def bare() -> None:
            for _ in range(callers):
                self.bare()

        async def ours() -> None:
            if callers == 1:
                await self.ours.add_items(TURN)
            else:
                await asyncio.gather(*(self.ours.add_items(TURN) for _ in range(callers)))

        async def competitor() -> float:
            assert self.competitor is not None
            return float(self.competitor.ask("append", calls=calls, callers=callers))

        rounds = {
            "bare": make_timed_round(bare, calls=calls, each=callers),
            "ours": make_timed_round(ours, calls=calls, each=callers),
        }
        return await measure_medians(rounds | ({"competitor": competitor} if self.competitor else {}), ROUNDS)


def build_append_figures(name: str, medians: dict[str, float], limit: float) -> Iterable[Figure]:
    ours, bare, competitor = medians["ours"], medians["bare"], medians.get("competitor")
    yield at_most(f"{name}, compared with bare sqlite3", format_seconds(ours), format_seconds(bare), ours / bare, limit)
    if competitor is None:
        yield not_compared(f"{name}, compared with {COMPETITOR}", format_seconds(ours), ">= 3x")
    else:
        yield at_least(
            f"{name}, compared with {COMPETITOR}",
            format_seconds(ours),
            format_seconds(competitor),
            competitor / ours,
            3,
        )


async def measure_lengths(backend: SqliteBackend) -> Iterable[Figure]:
    """Compare reads and appends of a long history with those of a short one."""
    short, long = await create_session(backend, "short", 100), await create_session(backend, "long", LONG_HISTORY)
    empty = StoredSession("fresh", backend)

    async def read(session: StoredSession) -> None:
        assert len(await session.get_items(20)) == 20

    show_progress("history: reads and appends of long and short histories")
    pairs: dict[str, tuple[Work, Work]] = {
        f"last 20 of {LONG_HISTORY:,} over last 20 of 100": (lambda: read(long), lambda: read(short)),
        f"append to {LONG_HISTORY:,} over append to few": (lambda: long.add_items(TURN), lambda: empty.add_items(TURN)),
    }
    rows = []
    for name, works in pairs.items():
        rounds = {end: make_timed_round(work, calls=CALLS) for end, work in zip(("many", "few"), works, strict=True)}
        medians = await measure_medians(rounds, ROUNDS)
        rows.append(
            at_most(
                name,
                format_seconds(medians["many"]),
                format_seconds(medians["few"]),
                medians["many"] / medians["few"],
                1.15,
            )
        )
    return rows


async def measure(folder: Path, bare: Callable[[], None], competitor: Competitor | None) -> list[Figure]:
    backend = SqliteBackend(folder / "ours.db")
    appending = AppendBenchmark(bare, StoredSession("ours", backend), competitor)
    try:
        show_progress("history: appends of one caller")
        one = await appending.rounds(1, CALLS)
        show_progress(f"history: appends of {CALLERS} callers")
        many = await appending.rounds(CALLERS, 10)
        rows = [*build_append_figures("append 2 items, 1 caller", one, 3)]
        rows += build_append_figures(f"append 2 items, {CALLERS} callers", many, 1.5)
        return [*rows, *await measure_lengths(backend)]
    finally:
        await backend.close()


def figures() -> Iterable[Figure]:
    commands = {COMPETITOR: (AGENTS, ("bench.competitors.histories",))}
    with tempfile.TemporaryDirectory() as name, start_competitors(commands) as competitors:
        folder = Path(name)
        yield from asyncio.run(measure(folder, make_bare_append(folder / "bare.db"), competitors.get(COMPETITOR)))
