"""The locks of a process on a database: without them, other processes delete the log that it writes to."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing

from standfast import open_store

OPEN_AND_CLOSE = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM standfast_items')"


async def test_opening_a_store_again_keeps_the_locks_of_its_process(tmp_path):
    path = tmp_path / "app.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.session("ann").add_items([{"role": "user", "content": "before"}])
    with closing(sqlite3.connect(path)) as held:
        held.execute("SELECT count(*) FROM standfast_items").fetchall()
        async with open_store(f"sqlite:///{path}") as store:
            await store.session("ann").add_items([{"role": "user", "content": "while it is open"}])
        await asyncio.to_thread(subprocess.run, [sys.executable, "-I", "-c", OPEN_AND_CLOSE, path], check=True)
        assert path.with_name("app.db-wal").exists()
