"""The stored form of schedules: documents that are encrypted like runs, and the times at which they come due."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from standfast.base.errors import InvalidInput, MissingExtra, WrongKey
from standfast.runtime._engine.run_cipher import MAGIC, RunCipher
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import Schedule
from standfast.store.backend import Backend
from standfast.store.records import DocumentRecord

SCHEDULE_KIND = "schedule"
_PAGE_SIZE = 200


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
