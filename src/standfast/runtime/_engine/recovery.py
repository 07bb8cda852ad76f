"""The recovery loop: claim runs whose owner died, offer queued runs that were forgotten, expire approvals."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from msgspec import MsgspecError
from msgspec.structs import replace

from standfast.base.errors import StandfastError
from standfast.base.log import get_logger
from standfast.runtime._engine import crash_loop
from standfast.runtime._engine.approvals import expire_approval
from standfast.runtime._engine.budget_book import USED_UP_CODE
from standfast.runtime._engine.claims import find_session_holder
from standfast.runtime._engine.context import OLD_QUEUE
from standfast.runtime._engine.control import resume_run, update_run
from standfast.runtime._engine.executor import RunExecutor, make_unknown_agent_problem
from standfast.runtime._engine.leases import make_run_lease_name
from standfast.runtime._engine.presence import list_served_queues
from standfast.runtime._engine.records import RunStopped, decode_header, list_runs
from standfast.runtime._engine.run_cipher import is_locked
from standfast.runtime._engine.scheduler import Scheduler
from standfast.store.records import RunRecord

_FORGOTTEN_PAGE = 50
_log = get_logger(__name__)


class RecoveryLoop:
    """Claims runs whose owner died, offers queued runs that were forgotten, and expires approvals.

    It scans the store every ``poll_interval`` seconds. The cost grows with the number of active runs, not with those
    that wait.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.ctx = scheduler, scheduler.ctx
        self._lease_checks: dict[str, tuple[float, float]] = {}
        """By run: when its lease expires (store's clock), and the time of the next check (local monotonic clock)."""
        self._delayed_leases: dict[str, float] = {}
        """By run: the expiry of the lost lease for which the back-off delay was already started."""
        self._agent_unknown_since: dict[str, float] = {}
        self._next_sweep = 0.0
        self._unserved_since: dict[str, float] = {}
        """By queue that no live runtime serves: since when, on the local monotonic clock."""
        self._forgotten_after = 0

    async def run(self) -> None:
        await self._run_logging_errors(partial(self._retry_blocked, include_all=True))
        while True:
            await self._run_logging_errors(self.scan)
            await asyncio.sleep(self.ctx.poll_interval)

    async def _run_logging_errors(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``; log a failure and continue, because the next scan repeats it."""
        try:
            await work()
        except (StandfastError, MsgspecError) as problem:
            _log.warning("recovery of runs failed, retrying: %s", problem)

    async def _retry_blocked(self, *, include_all: bool) -> None:
        """Retry blocked runs whose agent was unknown or whose budget has something left again.

        With ``include_all``, also those that need a change of code.

        Runs in a crash loop are not retried: they could end this process too, so a person has to resume them.
        """
        for record in await list_runs(self.ctx.backend, status=("blocked",)):
            if is_locked(record):
                continue
            header = decode_header(record)
            code = None if header.problem is None else header.problem.code
            retry = code == "agent-unknown" or (include_all and code != crash_loop.CRASH_LOOP_CODE)
            if header.agent not in self.ctx.graphs:
                continue
            if code == USED_UP_CODE:
                retry = await self.ctx.budgets.allows(header.agent, record.session_id)
            if retry:
                await resume_run(self.scheduler, record.run_id, accept=False, agent=None)

    async def scan(self) -> None:
        """Check every run that a process executes once."""
        records = await list_runs(self.ctx.backend, status=("running",))
        self._forget_missing(records)
        for record in records:
            if not is_locked(record):
                await self._run_logging_errors(partial(self._check_run, record))
        await self._sweep()

    async def _check_run(self, record: RunRecord) -> None:
        if record.run_id in self.scheduler.executors:
            self._forward_cancel(self.scheduler.executors[record.run_id], record)
        elif time.monotonic() >= self.ctx.recovery_paused_until:
            await self._recover(record)

    def _forward_cancel(self, executor: RunExecutor, record: RunRecord) -> None:
        """Cancel a run that is executed here if another process has requested it."""
        mode = decode_header(record).cancel
        if mode is not None and mode != executor.cancel_mode:
            executor.cancel(mode)

    async def _recover(self, record: RunRecord) -> None:
        """Claim a run whose owner does not renew its lease."""
        known_expiry, due = self._lease_checks.get(record.run_id, (None, 0.0))
        cancelled = decode_header(record).cancel is not None
        if time.monotonic() < due and not cancelled:
            return
        lease = await self.ctx.backend.get_lease(make_run_lease_name(record.run_id))
        expiry = 0.0 if lease is None or not lease.owner else lease.expires_at
        remaining = min(expiry - self.ctx.clock(), self.ctx.lease_ttl)
        if remaining <= 0 or expiry == known_expiry:
            # Clocks may differ: a lease that was not renewed since the last check may have expired. The store decides.
            delayed = cancelled or self._delayed_leases.get(record.run_id) == expiry
            delay = 0.0 if delayed else await crash_loop.compute_recovery_delay(self.ctx, record)
            self._delayed_leases[record.run_id] = expiry
            if delay:
                remaining = delay
            else:
                await self._claim_or_block(record)
        self._lease_checks[record.run_id] = expiry, time.monotonic() + remaining

    async def _claim_or_block(self, record: RunRecord) -> None:
        if decode_header(record).agent in self.ctx.graphs:
            await self.scheduler.claim(record)
        elif (
            self._agent_unknown_since.setdefault(record.run_id, self.ctx.clock()) + 2 * self.ctx.lease_ttl
            < self.ctx.clock()
        ):
            await self._block(record)

    async def _block(self, record: RunRecord) -> None:
        """Block a run whose agent no runtime has."""
        header = decode_header(record)
        problem = make_unknown_agent_problem(header.agent)
        await update_run(self.ctx, record, replace(header, problem=problem), "blocked", RunStopped("blocked", problem))

    def _forget_missing(self, records: Collection[RunRecord]) -> None:
        present = {record.run_id for record in records}
        for table in (self._lease_checks, self._delayed_leases, self._agent_unknown_since):
            for run_id in table.keys() - present:
                table.pop(run_id)

    async def _sweep(self) -> None:
        """Expire approvals and retry blocked runs; done less often than :meth:`scan`."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + self.ctx.poll_interval * 4
        await self._retry_blocked(include_all=False)
        await self.ctx.sync_clock()
        await self._offer_forgotten()
        await self._block_unserved()
        now, last = self.ctx.clock(), None
        while page := await self.ctx.backend.list_due_approvals(status="pending", at=now, limit=200, after=last):
            for record in page:
                await self._expire(record.approval_id)
            last = page[-1]

    async def _offer_forgotten(self) -> None:
        """Offer the next run of sessions whose last run has ended in a process that died right after that."""
        page = await self.ctx.backend.list_runs(
            status=("queued",), session_id=None, limit=_FORGOTTEN_PAGE, after=self._forgotten_after
        )
        self._forgotten_after = page[-1].order if len(page) == _FORGOTTEN_PAGE else 0
        for session_id in {record.session_id for record in page if record.behind and record.session_id is not None}:
            if await find_session_holder(self.ctx.backend, session_id) is None:
                await self.scheduler.start_next(session_id)

    async def _block_unserved(self) -> None:
        """Block runs whose agent no live runtime has had for twice the lease."""
        waiting = set(await self.ctx.backend.list_waiting_queues()) - {OLD_QUEUE, *self.ctx.list_queues()}
        unserved = waiting - set(await list_served_queues(self.ctx)) if waiting else waiting
        self._unserved_since = {queue: self._unserved_since.get(queue, time.monotonic()) for queue in unserved}
        for queue, since in self._unserved_since.items():
            if since + 2 * self.ctx.lease_ttl < time.monotonic():
                for record in await self.ctx.backend.list_claimable(queues=[queue], limit=_FORGOTTEN_PAGE, after=None):
                    if not is_locked(record):
                        await self._run_logging_errors(partial(self._block, record))

    async def _expire(self, approval_id: str) -> None:
        record = await self.ctx.backend.get_approval(approval_id)
        run_id = None if record is None or is_locked(record) else await expire_approval(self.ctx, record)
        run = None if run_id is None else await self.ctx.backend.get_run(run_id)
        if run is not None and run.status == "woken":
            await self._claim_or_block(run)
