"""A session history: written in atomic batches, retried, forked, searched, and read by another process."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from standfast import open_store

READ_PROGRAM = """
import asyncio, sys
from standfast import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        for item in await store.session("user-7").get_items():
            text = item.get("content") or item.get("output") or item["name"]
            print("  ", item.get("role", item.get("type")), "|", text)

asyncio.run(main())
"""


async def write_history(url: str) -> None:
    async with open_store(url) as store:
        session = store.session("user-7", owner="ann")
        print("One turn is one atomic batch: a question, a tool call, its output and the answer.")
        turn = [
            {"role": "user", "content": "I want a refund for order 1234."},
            {"type": "function_call", "call_id": "c1", "name": "find_order", "arguments": '{"order": 1234}'},
            {"type": "function_call_output", "call_id": "c1", "output": "delivered on Monday"},
            {"role": "assistant", "content": "It was delivered on Monday. Shall I start a refund?"},
        ]
        await session.add_items(turn, key="turn-1")
        await session.add_items(turn, key="turn-1")
        print(f"Sent twice with the same key, stored once: {await session.head()}.")
        fork = await session.fork(at=1, session_id="user-7-b")
        await fork.add_items([{"role": "assistant", "content": "Refunds take three days."}])
        print(f"A fork at item 1 shares that item and continues on its own: {await fork.head()}.")
        hits = await store.search("refund")
        print(f"A search for 'refund' finds {len(hits)} items in {len({hit.session_id for hit in hits})} sessions.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'app.db'}"
        asyncio.run(write_history(url))
        print("Another process opens the same file and reads:", flush=True)
        subprocess.run([sys.executable, "-c", READ_PROGRAM, url], check=True)
        print("Next: docs/tutorial.md")


if __name__ == "__main__":
    main()
