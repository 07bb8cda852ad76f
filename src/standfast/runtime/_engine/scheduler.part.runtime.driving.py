"""The runs that this process drives: taking them up, and handing them back when it closes."""

import asyncio
import logging
from contextlib import suppress

from holdfast.base.errors import StoreUnavailable
from holdfast.lifecycle.scope import Scope
from holdfast.runtime import queueing
from holdfast.runtime.executing import RunExecutor
from holdfast.runtime.home import RuntimeContext
from holdfast.runtime.records import QUEUED_STATUSES, decode_header
from holdfast.store.contract import RunRecord

SHUTDOWN_GRACE = 5.0
"""Seconds that tools may go on when a runtime closes. After that they are cancelled, and their calls are uncertain."""

_log = logging.getLogger(__name__)


class Scheduler:
    """Tasks that drive runs, inside the scope of their runtime."""

    def __init__(self, ctx: RuntimeContext, scope: Scope) -> None:
        self.ctx, self._scope = ctx, scope
        self.executors: dict[str, RunExecutor] = {}
        self._claiming: set[str] = set()

    async def claim(self, record: RunRecord) -> bool:
        """Drive the run here, if it is its turn and nobody else does."""
        run_id = record.run_id
        if self.ctx.closing or run_id in self.executors or run_id in self._claiming:
            return False
        self._claiming.add(run_id)
        try:
            found = await queueing.claim_run(self.ctx, record)
        except StoreUnavailable as problem:  # the reaper will try again
            _log.warning("run %s could not be taken up yet: %s", run_id, problem)
            return False
        finally:
            self._claiming.discard(run_id)
        if found is None:
            return False
        owned, hold = found
        if self.ctx.closing:
            await self.ctx.backend.commit(*hold.build_release_ops())
            return False
        execution = self.executors[run_id] = RunExecutor(self.ctx, owned, hold)
        self._scope.start(self._drive(execution), name=f"run {run_id}")
        return True

    async def claim_if_runnable(self, run_id: str) -> None:
        """Take the run up if it is ready and its agent is known here."""
        record = await self.ctx.get_run(run_id)
        if record.status in ("woken", *QUEUED_STATUSES) and decode_header(record).agent in self.ctx.graphs:
            await self.claim(record)

    async def start_next(self, session_id: str | None) -> None:
        """Let the next run of a session begin, if it is free."""
        if session_id is None or self.ctx.closing:
            return
        with suppress(StoreUnavailable):
            following = await queueing.find_next_queued(self.ctx.backend, session_id)
            if following is not None and decode_header(following).agent in self.ctx.graphs:
                await self.claim(following)

    async def _drive(self, executor: RunExecutor) -> None:
        run_id = executor.record.run_id
        try:
            await executor.run()
        except Exception:  # noqa: BLE001 - one run must not end the others
            # Its leases run out, and it is taken up again: by this runtime or another.
            _log.exception("driving the run %s failed", run_id)
        finally:
            self.executors.pop(run_id, None)
        await self.start_next(executor.record.session_id)

    async def aclose(self) -> None:
        """Stop driving: after what is under way, or after a while."""
        self.ctx.retry.stopped = True
        tasks = {one.task for one in self.executors.values() if one.task is not None}
        for execution in list(self.executors.values()):
            execution.suspend()
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_GRACE)
