"""Looking after the runs of all runtimes: what nobody drives is taken up, and no question stays open for ever."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from msgspec import MsgspecError
from msgspec.structs import replace

from holdfast.base.errors import HoldfastError
from holdfast.runtime import setbacks
from holdfast.runtime.deciding import expire
from holdfast.runtime.driving import Driving
from holdfast.runtime.executing import Execution, unknown_agent
from holdfast.runtime.leases import run_lease
from holdfast.runtime.queueing import holder
from holdfast.runtime.records import IN_LINE, Rested, everything, header_of
from holdfast.runtime.steering import change, resume
from holdfast.store.contract import RunRecord

_log = logging.getLogger(__name__)


class Reaper:
    """Looks at the store again and again, at a cost that grows with what is under way, not with what waits."""

    def __init__(self, driving: Driving) -> None:
        self.driving, self.home = driving, driving.home
        self._owned: dict[str, tuple[float, float]] = {}
        """Until when a run has its owner by the store's clock, and when to look again by ours."""
        self._paused: dict[str, float] = {}
        """The leases after which a run was left alone for a while already."""
        self._unknown_since: dict[str, float] = {}
        self._next_sweep = 0.0

    async def run(self) -> None:
        await self._guarded(partial(self._unblock, all_of_them=True))
        while True:
            await self._guarded(self.look)
            await asyncio.sleep(self.home.poll)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (HoldfastError, MsgspecError) as problem:
            _log.warning("the runs could not be looked after, trying again: %s", problem)

    async def _unblock(self, *, all_of_them: bool) -> None:
        """Try runs again that nobody could drive and, once, those that did not fit the code: it may have changed.

        Those that ended their process again and again would do so to this one: a person has to resume them.
        """
        for record in await everything(self.home.backend, status=("blocked",)):
            header = header_of(record)
            code = None if header.problem is None else header.problem.code
            wanted = code == "agent-unknown" or (all_of_them and code != setbacks.CODE)
            if header.agent in self.home.graphs and wanted:
                await resume(self.driving, record.run_id, accept=False, agent=None)

    async def look(self) -> None:
        """Look once at everything."""
        records = await everything(self.home.backend, status=("woken", "running", *IN_LINE))
        self._forget(records)
        busy = {record.session_id for record in records if record.status not in IN_LINE and record.session_id}
        for record in sorted(records, key=lambda record: record.status == "queued"):
            if record.status not in IN_LINE:
                await self._guarded(partial(self._look_at, record))
            elif record.session_id not in busy:
                if record.session_id is not None:
                    busy.add(record.session_id)
                await self._guarded(partial(self._let_begin, record))
        await self._sweep()

    async def _look_at(self, record: RunRecord) -> None:
        if record.run_id in self.driving.local:
            self._heed(self.driving.local[record.run_id], record)
        elif record.status == "running":
            await self._recover(record)
        else:
            await self._begin(record)

    async def _let_begin(self, record: RunRecord) -> None:
        if record.session_id is None or await holder(self.home.backend, record.session_id) is None:
            await self._begin(record)

    def _heed(self, execution: Execution, record: RunRecord) -> None:
        """Others may have asked to cancel a run that is driven here."""
        wish = header_of(record).cancel
        if wish is not None and wish != execution.cancelling:
            execution.cancel(wish)

    async def _recover(self, record: RunRecord) -> None:
        """Take over a run whose owner does not renew its lease."""
        known, due = self._owned.get(record.run_id, (None, 0.0))
        cancelled = header_of(record).cancel is not None
        if time.monotonic() < due and not cancelled:
            return
        lease = await self.home.backend.lease(run_lease(record.run_id))
        until = 0.0 if lease is None or not lease.owner else lease.expires_at
        left = min(until - self.home.clock(), self.home.lease)
        if left <= 0 or until == known:
            # Clocks may differ, so one that was not renewed for so long may have run out: the store decides.
            paused = cancelled or self._paused.get(record.run_id) == until
            pause = 0.0 if paused else await setbacks.pause(self.home, record)
            self._paused[record.run_id] = until
            if pause:
                left = pause
            else:
                await self._begin(record)
        self._owned[record.run_id] = until, time.monotonic() + left

    async def _begin(self, record: RunRecord) -> None:
        if header_of(record).agent in self.home.graphs:
            await self.driving.take_up(record)
        elif self._unknown_since.setdefault(record.run_id, self.home.clock()) + 2 * self.home.lease < self.home.clock():
            await self._block(record)

    async def _block(self, record: RunRecord) -> None:
        """Say why a run does not go on that nobody can drive."""
        header = header_of(record)
        problem = unknown_agent(header.agent)
        await change(self.home, record, replace(header, problem=problem), "blocked", Rested("blocked", problem))

    def _forget(self, records: Collection[RunRecord]) -> None:
        present = {record.run_id for record in records}
        for known in (self._owned, self._paused, self._unknown_since):
            for run_id in known.keys() - present:
                known.pop(run_id)

    async def _sweep(self) -> None:
        """What need not be done at every look: questions expire, and blocked runs are tried again."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + self.home.poll * 4
        await self._unblock(all_of_them=False)
        await self.home.set_clock()
        now, last = self.home.clock(), None
        while page := await self.home.backend.approvals_due(status="pending", at=now, limit=200, after=last):
            for record in page:
                await self._expire(record.approval_id)
            last = page[-1]

    async def _expire(self, approval_id: str) -> None:
        record = await self.home.backend.approval(approval_id)
        run_id = None if record is None else await expire(self.home, record)
        run = None if run_id is None else await self.home.backend.run(run_id)
        if run is not None and run.status == "woken":
            await self._begin(run)
