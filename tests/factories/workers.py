"""What the tests of workers share."""

import asyncio
import os
from collections.abc import Callable


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(word) for word in file.read().split()}


async def refused(session, code):
    """The code must end in an error of its own while the session goes on; returns the error's type."""
    result = await session.run(code, timeout=20)
    assert result.error is not None, f"this should not work: {result}"
    assert result.state == "preserved"
    return result.error.exception_type


async def until(condition: Callable[[], bool], *, within: float = 5.0) -> None:
    """Wait for something that another process brings about."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
