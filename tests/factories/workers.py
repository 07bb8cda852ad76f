"""Helpers for tests of workers."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from standfast.workers import (
    ExecuteMessage,
    InputMessage,
    Message,
    OutputMessage,
    WorkerSession,
    list_idle_fork_servers,
)

_known_servers: set[int] = set()


def list_child_pids() -> set[int]:
    """Return the child processes of this process, without fork servers that no session uses or that ended unused."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = {int(word) for word in file.read().split()}
    idle = {server.pid for server in list_idle_fork_servers()}
    _known_servers.update(idle)
    return {pid for pid in children - idle if pid not in _known_servers or not _has_ended(pid)}


def _has_ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def wait_until(condition: Callable[[], bool], *, within: float = 120.0) -> None:
    """Wait for a condition that another process brings about."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def collect_messages(session: WorkerSession, code: str, **options: Any) -> list[Message]:
    """Run code to its end and return its messages."""
    return [message async for message in session.execute(ExecuteMessage(code=code), **options)]


async def start_code(session: WorkerSession, code: str, **options: Any) -> "asyncio.Task[list[Message]]":
    """Start code and return the task that collects its messages, once the code runs.

    ``GO`` marks where the code reports that it runs; by default that is its beginning. Code that calls ``input()``
    counts as running when it asks for input.
    """
    is_running = asyncio.Event()
    code = code.replace("GO", "print('go')") if "GO" in code else f"print('go')\n{code}"

    async def collect() -> list[Message]:
        messages: list[Message] = []
        async for message in session.execute(ExecuteMessage(code=code), **options):
            messages.append(message)
            if isinstance(message, InputMessage if "input(" in code else OutputMessage):
                is_running.set()
        return messages

    task = asyncio.create_task(collect())
    await asyncio.wait_for(is_running.wait(), 30)
    return task


async def run_refused(session: WorkerSession, code: str) -> str:
    """Run code that must fail with an error of its own, and return the type of that error."""
    result = await session.run(code, timeout=60)
    assert result.error is not None, f"this should not work: {result}"
    assert result.state == "preserved"
    return result.error.exception_type
