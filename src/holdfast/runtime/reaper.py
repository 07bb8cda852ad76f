"""Looking after the runs of all runtimes: what nobody drives is taken up, and no question stays open for ever."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from holdfast.base.errors import HoldfastError
from holdfast.runtime.deciding import expire
from holdfast.runtime.executing import Execution, unknown_agent
from holdfast.runtime.home import Home
from holdfast.runtime.leases import run_lease
from holdfast.runtime.queueing import holder
from holdfast.runtime.records import JournalEntry, Rested, encoded, everything, header_of, logged
from holdfast.store.contract import Journal, RunRecord, SaveRun

_log = logging.getLogger(__name__)


class Reaper:
    """Looks at the store again and again, at a cost that grows with what is under way, not with what waits."""

    def __init__(
        self, home: Home, local: dict[str, Execution], take_up: Callable[[RunRecord], Awaitable[bool]]
    ) -> None:
        self.home, self.local, self.take_up = home, local, take_up
        self._owned_until: dict[str, float] = {}
        self._next_sweep = 0.0

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except HoldfastError as problem:
                _log.warning("the runs could not be looked after, trying again: %s", problem)
            await asyncio.sleep(self.home.poll)

    async def look(self) -> None:
        """Look once at everything."""
        records = await everything(self.home.backend, status=("queued", "woken", "running"))
        self._forget(records)
        busy = {record.session_id for record in records if record.status != "queued" and record.session_id}
        for record in records:
            if record.run_id in self.local:
                await self._heed(self.local[record.run_id], record)
            elif record.status == "running":
                await self._recover(record)
            elif record.status == "woken":
                await self._begin(record)
            elif record.session_id is None or record.session_id not in busy:
                if record.session_id is not None:
                    busy.add(record.session_id)
                    if await holder(self.home.backend, record.session_id) is not None:
                        continue
                await self._begin(record)
        await self._sweep()

    async def _heed(self, execution: Execution, record: RunRecord) -> None:
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
            await self.take_up(record)
        elif record.updated_at + 2 * self.home.lease < self.home.clock():
            await self._block(record)

    async def _block(self, record: RunRecord) -> None:
        """Say why a run does not go on that nobody can drive."""
        from msgspec.structs import replace

        header = header_of(record)
        problem = unknown_agent(header.agent)
        save = SaveRun(
            run_id=record.run_id,
            expected=record.revision,
            status="blocked",
            data=encoded(replace(header, problem=problem)),
            session_id=record.session_id,
        )
        entry = logged(JournalEntry(Rested("blocked", problem)))
        await self.home.backend.commit(save, Journal(run_id=record.run_id, entries=(entry,)))
        self.home.feeds.written(record.run_id)

    def _forget(self, records: Collection[RunRecord]) -> None:
        present = {record.run_id for record in records}
        self._owned_until = {run_id: at for run_id, at in self._owned_until.items() if run_id in present}

    async def _sweep(self) -> None:
        """Expire questions. Not at every look: this reads all that are open."""
        now = self.home.clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + self.home.poll * 4
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
