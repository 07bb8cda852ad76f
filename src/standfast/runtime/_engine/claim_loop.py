"""The claim loop: fill the capacity of a runtime from the queues of its agents."""

import asyncio
import random
import time
from contextlib import suppress

from msgspec import MsgspecError

from standfast.base.errors import StandfastError
from standfast.base.log import get_logger
from standfast.runtime._engine.context import OLD_QUEUE
from standfast.runtime._engine.run_cipher import is_locked
from standfast.runtime._engine.scheduler import Scheduler
from standfast.store.records import CLAIMABLE_RUN_STATUSES, RunRecord

MIN_PAGE, MAX_PAGE = 16, 100
MAX_AT_ONCE = 16
FRESH_SECONDS = 0.1
"""How long runs that were found are claimed without looking again, unless something has changed."""
CONTESTED_SECONDS = 10.0
MIN_SPREAD, MAX_SPREAD = 0.02, 1.0
"""Seconds over which runtimes spread their reactions to a hint. One that found no run waits longer next time."""

_log = get_logger(__name__)


class ClaimLoop:
    """Claims runs while there is capacity: when a run ends here, when another runtime announces one, and by polling."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.ctx = scheduler, scheduler.ctx
        self._woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._spread = MIN_SPREAD
        self._last_share: str | None = None
        """Whose run was claimed last: the next turn is that of the share after it."""
        self._contested_until = 0.0
        self._found: list[RunRecord] = []
        self._found_all = False
        self._found_at = -FRESH_SECONDS
        """When they were found; long ago if there may be others by now that precede them."""

    def wake(self) -> None:
        """Look for runs now: one has become runnable."""
        self._found_at = -FRESH_SECONDS
        self._woken.set()

    def wake_with_capacity(self) -> None:
        """Claim more runs: one has ended here."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Look for runs after a short random delay: another runtime has one that it cannot execute."""
        self._found_at = -FRESH_SECONDS
        if self._timer is None and self.scheduler.has_capacity():
            self._timer = asyncio.get_running_loop().call_later(random.uniform(0, self._spread), self._answer_hint)

    def _answer_hint(self) -> None:
        self._timer = None
        self.wake()

    async def run(self) -> None:
        """Claim runs until cancelled."""
        try:
            while True:
                self._woken.clear()
                try:
                    found = await self.claim_runs()
                    self._spread = MIN_SPREAD if found else min(self._spread * 2, MAX_SPREAD)
                except (StandfastError, MsgspecError) as problem:
                    _log.warning("runs could not be claimed, retrying: %s", problem)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.ctx.poll_interval * random.uniform(0.8, 1.2)):
                        await self._woken.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def claim_runs(self) -> bool:
        """Claim runs until there is no capacity or none is left; return whether one was claimed."""
        claimed_any, refused = False, set[str]()
        while self.scheduler.has_capacity():
            is_fresh = time.monotonic() < self._found_at + FRESH_SECONDS
            if not is_fresh or not (self._found or self._found_all):
                self._found = await self._find_runs(refused)
            if not self._found:
                break
            count, lost = min(self._count_free(), MAX_AT_ONCE), self.scheduler.lost_claims
            some, self._found = self._found[:count], self._found[count:]
            claimed = await asyncio.gather(*map(self._claim, some))
            refused.update(record.run_id for record, done in zip(some, claimed, strict=True) if not done)
            claimed_any = claimed_any or any(claimed)
            if self.scheduler.lost_claims != lost:
                self._contested_until = time.monotonic() + CONTESTED_SECONDS
        return claimed_any

    async def _find_runs(self, refused: set[str]) -> list[RunRecord]:
        """Return the runs to claim next, in their order.

        Where other runtimes take the same ones, each begins at a place of its own.
        """
        self._found_at = time.monotonic()
        is_contested = self._found_at < self._contested_until
        limit = MAX_PAGE if is_contested else min(max(4 * self._count_free(), MIN_PAGE), MAX_PAGE)
        limit += len(refused)
        queues = [*random.sample(own := self.ctx.list_queues(), len(own)), OLD_QUEUE]
        records = await self.ctx.backend.list_claimable(queues=queues, limit=limit, after=self._last_share)
        self._found_all = len(records) < limit
        refused &= {record.run_id for record in records}  # the others have been claimed elsewhere
        found = [record for record in records if record.run_id not in refused]
        return sorted(random.sample(found, len(found)), key=_get_precedence) if is_contested else found

    def _count_free(self) -> int:
        if self.ctx.max_runs is None:
            return MAX_PAGE
        return max(self.ctx.max_runs - len(self.scheduler.executors), 1)

    async def _claim(self, record: RunRecord) -> bool:
        if is_locked(record) or not self.scheduler.has_agent(record):
            return False
        if not await self.scheduler.claim(record):
            return False
        self._last_share = record.share
        return True


def _get_precedence(record: RunRecord) -> tuple[int, int]:
    return -record.priority, CLAIMABLE_RUN_STATUSES.index(record.status)
