"""A program that has a worker on a node make whatever could be unpickled on its way.

python trust_process.py RAY_ADDRESS
"""

import asyncio
import sys

from standfast.fleet import RayPool
from standfast.workers import PoolConfig

CODE = """
import os
class Trap:
    def __reduce__(self):
        return os.getcwd, ()
class TrapError(Exception):
    def __reduce__(self):
        return os.getcwd, ()
trap = Trap()
print(trap)
trap
"""


async def main(address: str) -> None:
    config = PoolConfig(min_idle=0, max_sessions=4, drain_timeout=1)
    async with (
        RayPool(config, address=address) as pool,
        pool.acquire(120) as one,
        pool.acquire(120) as two,
    ):
        assert (await one.run(CODE)).ok
        assert (await one.run("raise TrapError('trap')")).error is not None
        checkpoint = await one.checkpoint()
        await two.restore(checkpoint)
        async with await one.capture() as capture:
            chunks = {digest: data async for digest, data in capture}
        await two.restore_workspace(capture.manifest, lambda digest: asyncio.sleep(0, chunks[digest]))
        twin = await one.fork()
        await twin.terminate()
    print("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
