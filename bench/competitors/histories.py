"""Appends to the SQLiteSession of openai-agents."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.competitors.server import serve

TURN: list[Any] = [
    {"role": "user", "content": "Where is my order 1234? I placed it on Monday and have heard nothing since."},
    {"role": "assistant", "content": "It left our warehouse this morning and should reach you tomorrow before noon."},
]


def main(folder: Path) -> None:
    from agents import SQLiteSession

    session = SQLiteSession("competitor", folder / "competitor.db")

    async def append(calls: int, callers: int) -> float:
        """Return the seconds per append with concurrent callers."""
        start = time.perf_counter()
        for _ in range(calls):
            if callers == 1:
                await session.add_items(TURN)
            else:
                await asyncio.gather(*(session.add_items(TURN) for _ in range(callers)))
        return (time.perf_counter() - start) / calls / callers

    serve({"append": append})
    session.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
