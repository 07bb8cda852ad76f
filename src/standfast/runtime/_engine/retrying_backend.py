"""Retry reads while the database is unavailable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from standfast.base.backoff import Backoff
from standfast.base.errors import StoreUnavailable
from standfast.store.backend import Backend
from standfast.store.operations import Op, OpResult

T = TypeVar("T")

_log = logging.getLogger(__name__)


class RetryControl:
    """Retries continue until ``stopped`` is set, when the runtime closes."""

    stopped = False


async def retry_unavailable(work: Callable[[], Awaitable[T]], retry: RetryControl) -> T:
    """Return the result of ``work``, repeating it while the store is unavailable. It must be safe to repeat."""
    backoff = Backoff()
    while True:
        try:
            return await work()
        except StoreUnavailable as problem:
            if retry.stopped:
                raise
            _log.warning("the store is unavailable, retrying: %s", problem)
            await asyncio.sleep(backoff.next_delay())


class RetryingBackend:
    """A backend that retries reads. Writes are not retried: only their caller knows whether that is safe."""

    def __init__(self, backend: Backend, retry: RetryControl) -> None:
        self._backend, self._retry = backend, retry
        self.indexes_words = backend.indexes_words

    async def commit(self, *ops: Op) -> list[OpResult]:
        return await self._backend.commit(*ops)

    async def close(self) -> None:
        await self._backend.close()

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._backend, name)

        async def retry_read(*args: Any, **kwargs: Any) -> Any:
            return await retry_unavailable(lambda: read(*args, **kwargs), self._retry)

        setattr(self, name, retry_read)
        return retry_read
