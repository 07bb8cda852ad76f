"""A database that is away for a while: reads are made again until it answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.base.errors import StoreUnavailable
from holdfast.store.contract import Backend, Op, Outcome

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Backoff:
    """Pauses that grow from ``first`` to ``most`` seconds."""

    def __init__(self, *, first: float = 0.02, most: float = 1.0) -> None:
        self.first, self.most, self.next = first, most, first

    def grown(self) -> float:
        now, self.next = self.next, min(self.next * 2, self.most)
        return now

    def reset(self) -> None:
        self.next = self.first

    async def pause(self) -> None:
        await asyncio.sleep(self.grown())


class Patience:
    """Whether to wait for a database that is away: as long as the runtime is open."""

    over = False


async def patiently(work: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """What the work gives once the store answers. Only for work that may be done more than once."""
    backoff = Backoff()
    while True:
        try:
            return await work()
        except StoreUnavailable as problem:
            if patience.over:
                raise
            _log.warning("the store does not answer, trying again: %s", problem)
            await backoff.pause()


class PatientBackend:
    """A backend whose reads wait for the database to come back. What becomes of a write is its caller's business."""

    def __init__(self, backend: Backend, patience: Patience) -> None:
        self._backend, self._patience = backend, patience
        self.indexes_words = backend.indexes_words

    async def commit(self, *ops: Op) -> list[Outcome]:
        return await self._backend.commit(*ops)

    async def close(self) -> None:
        await self._backend.close()

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._backend, name)

        async def again(*args: Any, **kwargs: Any) -> Any:
            return await patiently(lambda: read(*args, **kwargs), self._patience)

        setattr(self, name, again)
        return again
