"""Real processes throughout. Every test is checked for what it leaves behind."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from holdfast.workers import SandboxPolicy, SessionConfig, WorkerSession, fork_server


def children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(word) for word in file.read().split()}


def descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    gc.collect()
    processes, open_before = children(), len(descriptors())
    yield
    gc.collect()
    deadline = time.monotonic() + 3
    while children() - processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children() <= processes, "a process was left behind"
    # The test's event loop is closed after its fixtures: three descriptors of grace.
    assert len(descriptors()) <= open_before + 3, "descriptors were left open"


LEVELS = ("plain", "locked", "namespaces")


@pytest.fixture(params=["fork-namespaces", "fork-plain", "spawn"])
def config(request) -> SessionConfig:
    if request.param == "spawn":
        return SessionConfig(mode="spawn")
    level = request.param.removeprefix("fork-")
    return SessionConfig(mode="fork", sandbox=SandboxPolicy(level=level, require=level))


class Starter:
    """Starts sessions and shuts them down after the test."""

    def __init__(self, config: SessionConfig, owned: AsyncExitStack) -> None:
        self.config, self.owned = config, owned

    async def __call__(self, **changes) -> WorkerSession:
        import dataclasses

        session = WorkerSession(dataclasses.replace(self.config, **changes))
        await self.owned.enter_async_context(session)
        return session


@pytest.fixture
async def start(config) -> AsyncIterator[Starter]:
    async with AsyncExitStack() as owned:
        if config.mode == "fork":
            await owned.enter_async_context(fork_server(config))
        yield Starter(config, owned)


@pytest.fixture
async def session(start) -> WorkerSession:
    return await start()


@pytest.fixture
async def jailed() -> AsyncIterator[Starter]:
    """Sessions with the full sandbox."""
    policy = SandboxPolicy(require="namespaces")
    async with AsyncExitStack() as owned:
        yield Starter(SessionConfig(sandbox=policy), owned)


async def until(condition, *, within: float = 5.0) -> None:
    """Wait for something that another process brings about."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.002)
