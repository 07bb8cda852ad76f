"""The loop that starts the runs of schedules when they are due."""

import asyncio
import random
from contextlib import suppress

from msgspec import MsgspecError
from msgspec.structs import replace

from standfast.base.errors import Conflict, MissingExtra, StandfastError, StoreUnavailable
from standfast.base.log import get_logger
from standfast.runtime._engine.control import build_request, start_run
from standfast.runtime._engine.records import ENDED_STATUSES
from standfast.runtime._engine.schedule_records import (
    SCHEDULE_KIND,
    compute_next_time,
    decode_schedule,
    encode_schedule,
    iterate_schedules,
)
from standfast.runtime._engine.scheduler import Scheduler, make_run_ids
from standfast.runtime.types import RunProblem, Schedule
from standfast.store.operations import PutDocument
from standfast.store.records import DocumentRecord

POLL_SECONDS = 15.0
"""Seconds after which schedules of other runtimes are noticed."""

_log = get_logger(__name__)


class ScheduleLoop:
    """Starts what is due, and sleeps until something will be. Every runtime does so; the first commit counts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.ctx = scheduler, scheduler.ctx
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Read the schedules now, because this runtime has changed one."""
        self._woken.set()

    async def run(self) -> None:
        """Start runs until cancelled."""
        while True:
            self._woken.clear()
            delay = POLL_SECONDS * random.uniform(0.8, 1.0)
            try:
                delay = min(delay, await self.start_due_runs())
            except (StandfastError, MsgspecError) as problem:
                _log.warning("schedules could not be read, retrying: %s", problem)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._woken.wait()

    async def start_due_runs(self) -> float:
        """Start the runs that are due; return the seconds until the next one is."""
        now, delay = await self.ctx.backend.get_time(), POLL_SECONDS
        async for document in iterate_schedules(self.ctx.backend):
            schedule = decode_schedule(document, self.ctx.cipher)
            if schedule.next_at is None or schedule.agent not in self.ctx.graphs:
                continue
            try:
                if schedule.next_at <= now:
                    schedule = await self._start_or_skip(document, schedule, schedule.next_at, now)
            except MissingExtra as problem:
                _log.warning("schedule %r is left to other runtimes: %s", schedule.name, problem)
                continue
            delay = min(delay, (schedule.next_at or now) - now)
        return max(delay, 0.0)

    async def _start_or_skip(self, document: DocumentRecord, schedule: Schedule, due: float, now: float) -> Schedule:
        """Start the run of a time in the commit that sets the next time, unless another runtime was faster."""
        following = replace(schedule, next_at=compute_next_time(schedule, after=now), problem=None)
        try:
            if not schedule.overlap and await self._is_active(schedule.last_run_id):
                await self._save(document, replace(following, skipped=schedule.skipped + 1))
                return following
            key = f"schedule {schedule.name} {schedule.created_at:.6f} {due:.6f}"
            run_id = make_run_ids(self.ctx, key)[0]
            following = replace(following, last_at=due, last_run_id=run_id, skipped=0)
            session_id = schedule.session_id
            if session_id is None and schedule.owner is not None:
                session_id = f"{schedule.name} {run_id}"
            request = build_request(
                schedule.agent, schedule.input, session_id, None, schedule.max_turns, key, "enqueue", schedule.owner
            )
            await start_run(self.scheduler, request, self._build_save(document, following))
        except Conflict:
            pass  # another runtime has started it, or the schedule was changed
        except StoreUnavailable:
            raise
        except StandfastError as error:
            _log.warning("schedule %r: no run could be started: %s", schedule.name, error)
            problem = RunProblem(error.code, str(error))
            with suppress(Conflict):
                await self._save(document, replace(following, last_run_id=schedule.last_run_id, problem=problem))
        return following

    async def _is_active(self, run_id: str | None) -> bool:
        record = None if run_id is None else await self.ctx.backend.get_run(run_id)
        return record is not None and record.status not in ENDED_STATUSES

    async def _save(self, document: DocumentRecord, schedule: Schedule) -> None:
        await self.ctx.backend.commit(self._build_save(document, schedule))

    def _build_save(self, document: DocumentRecord, schedule: Schedule) -> PutDocument:
        data = encode_schedule(schedule, self.ctx.cipher)
        return PutDocument(kind=SCHEDULE_KIND, key=document.key, data=data, expected=document.revision)
