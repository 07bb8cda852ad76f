"""What the tests of workers share."""

import asyncio
import os
from collections.abc import Callable


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(word) for word in file.read().split()}


async def until(condition: Callable[[], bool], *, within: float = 5.0) -> None:
    """Wait for something that another process brings about."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
