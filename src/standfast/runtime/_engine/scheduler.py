"""Create runs, and start the tasks that execute them."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Literal

from standfast.base.errors import Closed, StoreRefused, StoreUnavailable
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.lifecycle.scope import Scope
from standfast.runtime._engine.claims import ClaimedRun, claim_run, create_claimed, find_next_queued
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.executor import RunExecutor
from standfast.runtime._engine.records import (
    QUEUED_STATUSES,
    JournalEntry,
    RunHeader,
    RunQueued,
    decode_header,
    encode,
    encode_entry,
)
from standfast.runtime._engine.run_cipher import is_locked
from standfast.store.operations import AppendJournal, MoveBehind, Op, SaveRun
from standfast.store.records import RunRecord, SessionTurn

_log = get_logger(__name__)


def make_run_ids(ctx: RuntimeContext, key: str | None) -> list[str]:
    """Return the id of a new run, and others that a run with this key may have. They are the same in every process."""
    if key is None:
        return [new_id("run")]
    if ctx.cipher is not None:
        return ctx.cipher.make_run_ids(key)
    return [f"run_{hashlib.sha256(key.encode()).hexdigest()[:32]}"]


def build_create_ops(
    run_id: str,
    header: RunHeader,
    first: RunQueued,
    *,
    session_id: str | None,
    queue: str,
    priority: int = 0,
    share: str = "",
    status: Literal["next", "queued"] = "queued",
) -> tuple[SaveRun, AppendJournal]:
    """Return the operations that create a queued run."""
    save = SaveRun(
        run_id=run_id,
        expected=0,
        status=status,
        data=encode(header),
        session_id=session_id,
        parent=header.parent,
        queue=queue,
        priority=priority,
        share=share,
    )
    return save, AppendJournal(run_id=run_id, entries=(encode_entry(JournalEntry(first)),))


SHUTDOWN_GRACE = 5.0
"""Seconds that running tools get when a runtime closes. Then they are cancelled, and their calls are uncertain."""


class Scheduler:
    """Starts and owns the tasks that execute runs, inside the scope of their runtime."""

    def __init__(self, ctx: RuntimeContext, scope: Scope) -> None:
        self.ctx, self._scope = ctx, scope
        self.executors: dict[str, RunExecutor] = {}
        self._claiming: set[str] = set()
        self.lost_claims = 0
        """How often another runtime was faster."""
        self.has_rivals = False
        """Whether another runtime that is alive claims runs of the same queues."""
        self.on_runnable: Callable[[], None] = lambda: None
        """Called when a run waits that this runtime may claim."""
        self.on_capacity: Callable[[], None] = lambda: None
        """Called when a run has ended here."""

    def has_capacity(self) -> bool:
        """Return whether this runtime may execute one more run."""
        if self.ctx.closing:
            return False
        return self.ctx.max_runs is None or len(self.executors.keys() | self._claiming) < self.ctx.max_runs

    async def claim(self, record: RunRecord) -> bool:
        """Execute the run here, if it is its turn and no other runtime owns it; return whether it was started."""
        run_id = record.run_id
        if self.ctx.closing or run_id in self.executors or run_id in self._claiming or is_locked(record):
            return False
        if not self.has_capacity():
            self.on_runnable()
            self.ctx.subscriptions.announce_runnable()
            return False
        try:
            started = await self._claim_and_execute(run_id, claim_run(self.ctx, record))
        except (StoreRefused, StoreUnavailable) as problem:  # the recovery loop will retry
            _log.warning("run %s could not be claimed yet: %s", run_id, problem)
            return False
        if not started:
            self.lost_claims += 1
        return started

    async def create(
        self, save: SaveRun, queued: AppendJournal, turn: SessionTurn | None, *, ops: Sequence[Op]
    ) -> bool:
        """Create a run in one commit with ``ops`` and execute it here, if there is capacity and its session is free.

        Otherwise return False, and nothing is written.
        """
        if not self.has_capacity():
            return False
        creating = create_claimed(self.ctx, save, queued, turn, ops=ops)
        return await self._claim_and_execute(save.run_id, creating)

    async def _claim_and_execute(self, run_id: str, claiming: Coroutine[Any, Any, ClaimedRun | None]) -> bool:
        """Execute the run that is being claimed; return False if it could not be claimed."""
        self._claiming.add(run_id)
        try:
            claimed = await claiming
        finally:
            self._claiming.discard(run_id)
        if claimed is None:
            return False
        if self.ctx.closing:
            await self.ctx.backend.commit(*claimed.leases.build_release_ops())
        else:
            executor = self.executors[run_id] = RunExecutor(self.ctx, claimed)
            self.ctx.subscriptions.begin_driving(run_id, claimed.leases.token, claimed.written)
            self._scope.start(self._execute(executor), name=f"run {run_id}")
        return True

    async def claim_if_runnable(self, run_id: str) -> None:
        """Claim the run if it is runnable and this runtime has its agent; else tell the others."""
        record = await self.ctx.get_run(run_id)
        if record.status in ("woken", *QUEUED_STATUSES):
            if self.has_agent(record):
                await self.claim(record)
            else:
                self.ctx.subscriptions.announce_runnable()

    async def start_next(self, session_id: str | None) -> None:
        """Start the next queued run of a session, if the session is free, or offer it to all runtimes.

        A runtime with limited capacity offers it, so that it does not serve one session before all others.
        """
        if session_id is None:
            return
        with suppress(StoreRefused, StoreUnavailable, Closed):
            queued = await find_next_queued(self.ctx.backend, session_id)
            if queued is None:
                return
            has_agent = self.has_agent(queued)
            if has_agent and self.ctx.max_runs is None and await self.claim(queued):
                return
            if queued.behind:
                await self.ctx.backend.commit(MoveBehind(run_id=queued.run_id, behind=False))
            if has_agent:
                self.on_runnable()
            if not has_agent or not self.has_capacity():
                self.ctx.subscriptions.announce_runnable()

    def has_agent(self, record: RunRecord) -> bool:
        """Return whether this runtime can read the run and has its agent."""
        return not is_locked(record) and decode_header(record).agent in self.ctx.graphs

    async def _execute(self, executor: RunExecutor) -> None:
        run_id = executor.record.run_id
        try:
            await executor.run()
        except Exception:  # noqa: BLE001 - one run must not end the others
            # Its leases expire, and this runtime or another one recovers the run.
            _log.exception("run %s: execution failed", run_id)
        finally:
            self.executors.pop(run_id, None)
        if self.ctx.max_runs is not None:
            self.on_capacity()
        await self.start_next(executor.record.session_id)

    async def aclose(self) -> None:
        """Release all runs after their current step, or after ``SHUTDOWN_GRACE`` seconds."""
        self.ctx.shutdown.closing = True
        tasks = {executor.task for executor in self.executors.values() if executor.task is not None}
        for executor in list(self.executors.values()):
            executor.suspend()
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_GRACE)
            self.ctx.subscriptions.announce_runnable()
