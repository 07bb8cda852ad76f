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
MAX_AT_ONCE = 4
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

    def wake(self) -> None:
        """Look for runs now: capacity is free, or a run has become runnable."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Look for runs after a short random delay: another runtime has one that it cannot execute."""
        if self._timer is None and self.scheduler.has_capacity():
            self._timer = asyncio.get_running_loop().call_later(random.uniform(0, self._spread), self._answer_hint)

    def _answer_hint(self) -> None:
        self._timer = None
        self._woken.set()

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
        claimed_any, skipped = False, set[str]()
        while self.scheduler.has_capacity():
            limit = min(max(4 * self._count_free(), MIN_PAGE), MAX_PAGE) + len(skipped)
            queues = [*random.sample(own := self.ctx.list_queues(), len(own)), OLD_QUEUE]
            records = await self.ctx.backend.list_claimable(queues=queues, limit=limit, after=self._last_share)
            fresh = [record for record in records if record.run_id not in skipped]
            claimed = await self._claim_page(fresh, skipped)
            claimed_any = claimed_any or claimed
            if len(records) < limit or (not claimed and not fresh):
                break
        return claimed_any

    def _count_free(self) -> int:
        if self.ctx.max_runs is None:
            return MAX_PAGE
        return max(self.ctx.max_runs - len(self.scheduler.executors), 1)

    async def _claim_page(self, records: list[RunRecord], skipped: set[str]) -> bool:
        """Claim runs of a page, some at a time; return whether one was claimed.

        They are taken in their order. Where other runtimes take the same ones, each begins at a place of its own.
        """
        claimed, contested_until = False, self._contested_until
        if time.monotonic() < contested_until:
            records = sorted(random.sample(records, len(records)), key=_get_precedence)
        while records and self.scheduler.has_capacity():
            count, lost = min(self._count_free(), MAX_AT_ONCE), self.scheduler.lost_claims
            some, records = records[:count], records[count:]
            skipped.update(record.run_id for record in some)
            claimed = any(await asyncio.gather(*map(self._claim, some))) or claimed
            if self.scheduler.lost_claims != lost:
                self._contested_until = time.monotonic() + CONTESTED_SECONDS
        return claimed

    async def _claim(self, record: RunRecord) -> bool:
        if is_locked(record) or not self.scheduler.has_agent(record):
            return False
        if not await self.scheduler.claim(record):
            return False
        self._last_share = record.share
        return True


def _get_precedence(record: RunRecord) -> tuple[int, int]:
    return -record.priority, CLAIMABLE_RUN_STATUSES.index(record.status)
