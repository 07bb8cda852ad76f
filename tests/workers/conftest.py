"""Fixtures that start real worker processes."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession, fork_server

# Long, so that code on a busy machine has time to react to an interrupt.
GRACE = 20.0


@pytest.fixture(params=["fork-namespaces", "fork-plain", "spawn"])
def config(request) -> SessionConfig:
    if request.param == "spawn":
        return SessionConfig(mode="spawn", grace=GRACE)
    level = request.param.removeprefix("fork-")
    return SessionConfig(mode="fork", sandbox=SandboxPolicy(level=level, require=level), grace=GRACE)


class Starter:
    """Starts sessions and shuts them down after the test."""

    def __init__(self, config: SessionConfig, owned: AsyncExitStack) -> None:
        self.config, self.owned = config, owned

    async def __call__(self, **changes) -> WorkerSession:
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
async def sandboxed() -> AsyncIterator[Starter]:
    """Sessions with the full sandbox."""
    policy = SandboxPolicy(require="namespaces")
    async with AsyncExitStack() as owned:
        yield Starter(SessionConfig(sandbox=policy, grace=GRACE), owned)
