"""The stored form of schedules, and the loop that starts their runs when they are due.

A schedule is a document that is encrypted like a run. Another document has the time at which it comes due.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import MsgspecError
from msgspec.structs import replace

from standfast.base.errors import Conflict, InvalidInput, MissingExtra, StandfastError, StoreUnavailable, WrongKey
from standfast.base.log import get_logger
from standfast.runtime._engine.control import build_request, start_run
from standfast.runtime._engine.records import ENDED_STATUSES
from standfast.runtime._engine.run_cipher import MAGIC, RunCipher
from standfast.runtime._engine.scheduler import Scheduler, make_run_ids
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import RunProblem, Schedule
from standfast.store.backend import Backend
from standfast.store.operations import PutDocument
from standfast.store.records import DocumentRecord

SCHEDULE_KIND = "schedule"
_PAGE_SIZE = 200
POLL_SECONDS = 15.0
"""Seconds after which schedules of other runtimes are noticed."""
_log = get_logger(__name__)


def encode_schedule(schedule: Schedule, cipher: RunCipher | None) -> bytes:
    data = msgspec.json.encode(schedule)
    return data if cipher is None else cipher.encrypt(data, *_locate(schedule.name))


def decode_schedule(document: DocumentRecord, cipher: RunCipher | None) -> Schedule:
    """Return the schedule; a locked one if it is encrypted with another key, or not although it should be."""
    try:
        if cipher is not None:
            return msgspec.json.decode(cipher.decrypt(document.data, *_locate(document.key)), type=Schedule)
        if not document.data.startswith(MAGIC):
            return msgspec.json.decode(document.data, type=Schedule)
    except (WrongKey, RunTampered):
        pass
    return Schedule(name=document.key, agent="", input="", created_at=document.at, locked=True)


def require_readable(schedule: Schedule) -> Schedule:
    if schedule.locked:
        raise WrongKey(f"the schedule {schedule.name!r} was written with another encryption key, or without one")
    return schedule


async def iterate_schedules(backend: Backend) -> AsyncIterator[DocumentRecord]:
    after = ""
    while page := await backend.list_documents(SCHEDULE_KIND, limit=_PAGE_SIZE, after=after):
        for document in page:
            yield document
        after = page[-1].key


def _locate(name: str) -> tuple[str, tuple[str, str]]:
    return f"schedule:{name}", ("schedule", name)


def compute_next_time(schedule: Schedule, *, after: float) -> float:
    """Return the first time of the schedule after this one; raise :class:`InvalidInput` if it has none."""
    if (schedule.cron is None) == (schedule.every is None):
        raise InvalidInput("a schedule needs either cron= or every=")
    if schedule.every is not None:
        begin = schedule.created_at if schedule.next_at is None else schedule.next_at
        return begin + schedule.every * (max((after - begin) // schedule.every, 0) + 1)
    return _compute_next_cron_time(str(schedule.cron), schedule.timezone, after)


def _compute_next_cron_time(cron: str, timezone: str, after: float) -> float:
    library = _import_cronsim()
    try:
        zone = ZoneInfo(timezone)
    except (ValueError, OSError, KeyError, TypeError):  # KeyError: ZoneInfoNotFoundError
        raise InvalidInput(
            f"unknown time zone {timezone!r}; expected a name such as Europe/Berlin (without time zones on this system:"
            " pip install tzdata)"
        ) from None
    try:
        found: datetime = next(library.CronSim(cron, datetime.fromtimestamp(after, zone)))
    except (library.CronSimError, StopIteration, TypeError, AttributeError):
        raise InvalidInput(
            f"{cron!r} is not a cron expression that comes due; expected five fields such as '30 9 * * 1-5'"
        ) from None
    return found.astimezone(UTC).timestamp()


def _import_cronsim() -> Any:
    try:
        import cronsim
    except ImportError as missing:
        raise MissingExtra("schedules", "cron=") from missing
    return cronsim


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
