"""A database that is away for a while: reads are made again until it answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from standfast.base.errors import StoreUnavailable
from standfast.store.contract import Backend, Op, OpResult

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Backoff:
    """Pauses that grow from ``first`` to ``most`` seconds."""

    def __init__(self, *, initial: float = 0.02, maximum: float = 1.0) -> None:
        self.initial, self.maximum, self.delay = initial, maximum, initial

    def next_delay(self) -> float:
        now, self.delay = self.delay, min(self.delay * 2, self.maximum)
        return now

    def reset(self) -> None:
        self.delay = self.initial

    async def sleep(self) -> None:
        await asyncio.sleep(self.next_delay())


class RetryControl:
    """Whether to wait for a database that is away: as long as the runtime is open."""

    stopped = False


async def retry_unavailable(work: Callable[[], Awaitable[T]], retry: RetryControl) -> T:
    """What the work gives once the store answers. Only for work that may be done more than once."""
    backoff = Backoff()
    while True:
        try:
            return await work()
        except StoreUnavailable as problem:
            if retry.stopped:
                raise
            _log.warning("the store does not answer, trying again: %s", problem)
            await backoff.sleep()


class RetryingBackend:
    """A backend whose reads wait for the database to come back. What becomes of a write is its caller's business."""

    def __init__(self, backend: Backend, retry: RetryControl) -> None:
        self._backend, self._retry = backend, retry
        self.indexes_words = backend.indexes_words

    async def commit(self, *ops: Op) -> list[OpResult]:
        return await self._backend.commit(*ops)

    async def close(self) -> None:
        await self._backend.close()

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._backend, name)

        async def again(*args: Any, **kwargs: Any) -> Any:
            return await retry_unavailable(lambda: read(*args, **kwargs), self._retry)

        setattr(self, name, again)
        return again
