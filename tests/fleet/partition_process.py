"""A program of a fleet that tells its test what happens to one conversation, line by line.

python partition_process.py STORE RAY_ADDRESS
"""

import asyncio
import json
import sys
from typing import Any

from standfast import open_store
from standfast.fleet import RayPool
from standfast.workers import PoolConfig, PythonSessions

LABELS = {"standfast-pool": "workers"}
CONFIG = PoolConfig(min_idle=0, max_sessions=4, drain_timeout=1)


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def main(store_url: str, address: str) -> None:
    async with RayPool(CONFIG, address=address, labels=LABELS) as pool, open_store(store_url) as store:
        async with asyncio.timeout(240):
            while len(pool.list_reports()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        sessions = PythonSessions(pool, store=store, timeout=60)
        await sessions.run("count = 1", key="ann")
        await sessions.save("ann")
        [(_, info)] = pool.list_sessions()
        running = asyncio.create_task(sessions.run("count += 1\nimport time; time.sleep(600)", key="ann", timeout=600))
        addresses = {link.node.node_id: link.node.address for link in pool._links.values()}
        tell(node=addresses[info.metadata["node"]])
        lost = await running
        tell(state=lost.result.state, cause=lost.result.error.cause, text=lost.as_text())
        again = await sessions.run("count += 1\nprint(count)", key="ann", timeout=600)
        [(_, info)] = pool.list_sessions()
        tell(stdout=again.result.stdout, text=again.as_text(), node=addresses[info.metadata["node"]])
        await asyncio.to_thread(sys.stdin.readline)  # the node can be reached again
        last = await sessions.run("count += 1\nprint(count)", key="ann", timeout=600)
        tell(stdout=last.result.stdout, lost=pool.metrics["nodes_lost"])
        sessions.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
