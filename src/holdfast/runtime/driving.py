"""The runs that this process drives: taking them up, and handing them back when it closes."""

import asyncio
import logging
from contextlib import suppress

from holdfast.base.errors import StoreUnavailable
from holdfast.lifecycle.scope import Scope
from holdfast.runtime import queueing
from holdfast.runtime.executing import Execution
from holdfast.runtime.home import Home
from holdfast.runtime.records import IN_LINE, header_of
from holdfast.store.contract import RunRecord

GRACE = 5.0
"""Seconds that tools may go on when a runtime closes. After that they are cancelled, and their calls are uncertain."""

_log = logging.getLogger(__name__)


class Driving:
    """Tasks that drive runs, inside the scope of their runtime."""

    def __init__(self, home: Home, scope: Scope) -> None:
        self.home, self._scope = home, scope
        self.local: dict[str, Execution] = {}
        self._taking: set[str] = set()

    async def take_up(self, record: RunRecord) -> bool:
        """Drive the run here, if it is its turn and nobody else does."""
        run_id = record.run_id
        if self.home.closing or run_id in self.local or run_id in self._taking:
            return False
        self._taking.add(run_id)
        try:
            found = await queueing.take_up(self.home, record)
        except StoreUnavailable as problem:  # the reaper will try again
            _log.warning("run %s could not be taken up yet: %s", run_id, problem)
            return False
        finally:
            self._taking.discard(run_id)
        if found is None:
            return False
        owned, hold = found
        if self.home.closing:
            await self.home.backend.commit(*hold.releases())
            return False
        execution = self.local[run_id] = Execution(self.home, owned, hold)
        self._scope.start(self._drive(execution), name=f"run {run_id}")
        return True

    async def go_on(self, run_id: str) -> None:
        """Take the run up if it is ready and its agent is known here."""
        record = await self.home.record(run_id)
        if record.status in ("woken", *IN_LINE) and header_of(record).agent in self.home.graphs:
            await self.take_up(record)

    async def next(self, session_id: str | None) -> None:
        """Let the next run of a session begin, if it is free."""
        if session_id is None or self.home.closing:
            return
        with suppress(StoreUnavailable):
            following = await queueing.first_in_line(self.home.backend, session_id)
            if following is not None and header_of(following).agent in self.home.graphs:
                await self.take_up(following)

    async def _drive(self, execution: Execution) -> None:
        run_id = execution.record.run_id
        try:
            await execution.run()
        except Exception:  # noqa: BLE001 - one run must not end the others
            # Its leases run out, and it is taken up again: by this runtime or another.
            _log.exception("driving the run %s failed", run_id)
        finally:
            self.local.pop(run_id, None)
        await self.next(execution.record.session_id)

    async def hand_back(self) -> None:
        """Stop driving: after what is under way, or after a while."""
        self.home.patience.over = True
        tasks = {one.task for one in self.local.values() if one.task is not None}
        for execution in list(self.local.values()):
            execution.close()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)
