"""Looking after the runs of all runtimes: what nobody drives is taken up, and no question stays open for ever."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from msgspec import MsgspecError
from msgspec.structs import replace

from holdfast.base.errors import HoldfastError
from holdfast.runtime.deciding import expire
from holdfast.runtime.driving import Driving
from holdfast.runtime.executing import Execution, unknown_agent
from holdfast.runtime.leases import run_lease
from holdfast.runtime.queueing import holder
from holdfast.runtime.records import Rested, everything, header_of
from holdfast.runtime.steering import change, resume
from holdfast.store.contract import RunRecord

_log = logging.getLogger(__name__)


class Reaper:
    """Looks at the store again and again, at a cost that grows with what is under way, not with what waits."""

    def __init__(self, driving: Driving) -> None:
        self.driving, self.home = driving, driving.home
        self._owned_until: dict[str, float] = {}
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
        """Try runs again that nobody could drive and, once, those that did not fit the code: it may have changed."""
        for record in await everything(self.home.backend, status=("blocked",)):
            header = header_of(record)
            unknown = header.problem is not None and header.problem.code == "agent-unknown"
            if header.agent in self.home.graphs and (unknown or all_of_them):
                await resume(self.driving, record.run_id, accept=False, agent=None)

    async def look(self) -> None:
        """Look once at everything."""
        records = await everything(self.home.backend, status=("queued", "woken", "running"))
        self._forget(records)
        busy = {record.session_id for record in records if record.status != "queued" and record.session_id}
        for record in records:
            if record.status != "queued":
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
        if self._owned_until.get(record.run_id, 0) > self.home.clock():
            return
        lease = await self.home.backend.lease(run_lease(record.run_id))
        if lease is None or not lease.owner or lease.expires_at <= self.home.clock():
            await self._begin(record)
        else:
            self._owned_until[record.run_id] = min(lease.expires_at, self.home.clock() + self.home.lease)

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
        for known in (self._owned_until, self._unknown_since):
            for run_id in known.keys() - present:
                del known[run_id]

    async def _sweep(self) -> None:
        """What need not be done at every look: questions expire, and blocked runs are tried again."""
        now = self.home.clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + self.home.poll * 4
        await self._unblock(all_of_them=False)
        after = ""
        while True:
            page = await self.home.backend.approvals(
                status="pending", run_id=None, session_id=None, limit=200, after=after
            )
            for record in page:
                if record.expires_at is not None and record.expires_at <= now:
                    await self._expire(record.approval_id)
            if len(page) < 200:
                return
            after = page[-1].approval_id

    async def _expire(self, approval_id: str) -> None:
        record = await self.home.backend.approval(approval_id)
        run_id = None if record is None else await expire(self.home, record)
        run = None if run_id is None else await self.home.backend.run(run_id)
        if run is not None and run.status == "woken":
            await self._begin(run)
