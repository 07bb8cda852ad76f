"""Fixtures that start real worker processes."""

import dataclasses
import os
import sys
import tempfile
import venv
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession, fork_server

# Long, so that code on a busy machine has time to react to an interrupt.
GRACE = 20.0
READY_TIMEOUT = 120.0


@pytest.fixture(params=["fork-namespaces", "fork-plain", "spawn"])
def config(request) -> SessionConfig:
    if request.param == "spawn":
        return SessionConfig(
            mode="spawn", sandbox=SandboxPolicy(require="plain"), grace=GRACE, ready_timeout=READY_TIMEOUT
        )
    level = request.param.removeprefix("fork-")
    return SessionConfig(
        mode="fork", sandbox=SandboxPolicy(level=level, require=level), grace=GRACE, ready_timeout=READY_TIMEOUT
    )


in_one_mode = pytest.mark.parametrize("config", ["fork-namespaces"], indirect=True)
"""For tests of what happens inside a running worker, or in the host alone: both are the same code in each mode.

Tests of starting, ending, signals, streams, processes and copies need every mode.
"""


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


@pytest.fixture
def readable_python() -> Iterator[str]:
    """An interpreter that every user can read, without which the level ``locked`` does not start for root."""
    base = os.path.realpath(sys.executable)
    if os.geteuid() != 0 or all(path.stat().st_mode & 1 for path in Path(base).parents):
        yield sys.executable
        return
    other = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(other):
        pytest.skip(f"only root can read {base}")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        context = venv.EnvBuilder(symlinks=True).ensure_directories(f"{name}/env")
        packages = Path(context.env_dir, "lib", f"python3.{sys.version_info.minor}", "site-packages")
        packages.mkdir(parents=True, exist_ok=True)
        Path(context.bin_path, "python").symlink_to(other)
        Path(context.env_dir, "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        (packages / "dependencies.pth").write_text(str(Path(msgspec.__file__).parents[1]))
        yield f"{context.bin_path}/python"


@pytest.fixture
async def locked(readable_python) -> AsyncIterator[Starter]:
    """Sessions without namespaces."""
    policy = SandboxPolicy(level="locked", require="locked")
    async with AsyncExitStack() as owned:
        yield Starter(SessionConfig(sandbox=policy, grace=GRACE, python=readable_python), owned)
