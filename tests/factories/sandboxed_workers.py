"""Sessions with the full sandbox, for tests that attack it."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from standfast.workers import SandboxPolicy, SessionConfig, WorkerSession

# Long, so that code on a busy machine has time to react to an interrupt.
GRACE = 20.0
READY_TIMEOUT = 120.0
Launch = Callable[..., Coroutine[Any, Any, WorkerSession]]


@asynccontextmanager
async def open_launcher() -> AsyncIterator[Launch]:
    """Yield a function that starts sessions: ``policy`` has arguments of the SandboxPolicy, the others are of the
    SessionConfig. They are shut down at the end.
    """
    async with AsyncExitStack() as owned:

        async def launch(*, policy: dict[str, Any] | None = None, **changes: Any) -> WorkerSession:
            sandbox = SandboxPolicy(**{"require": "namespaces", **(policy or {})})
            config = SessionConfig(**{"sandbox": sandbox, "grace": GRACE, "ready_timeout": READY_TIMEOUT, **changes})
            return await owned.enter_async_context(WorkerSession(config))

        yield launch
