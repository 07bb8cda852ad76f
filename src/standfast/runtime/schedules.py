"""Schedules: runs that start at given times, in whichever runtime of the store is alive then."""

from collections.abc import Callable
from datetime import timedelta

import msgspec

from standfast.base.errors import Conflict, InvalidInput, NotFound
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.control import build_request
from standfast.runtime._engine.schedules import (
    SCHEDULE_KIND,
    compute_next_time,
    decode_schedule,
    encode_schedule,
    iterate_schedules,
    require_readable,
)
from standfast.runtime.types import Schedule
from standfast.store.operations import DeleteDocument, PutDocument
from standfast.store.records import DocumentRecord

MAX_NAME_LENGTH = 100
MIN_SECONDS, MAX_SECONDS = 1.0, 366 * 86_400.0


class Schedules:
    """The schedules of a store, as ``runtime.schedules``.

    A run that is due is created in the same commit that sets the next time, so that it starts once, however many
    runtimes there are and whichever of them die. Any runtime that has the agent starts it. One that was opened
    before a schedule was made elsewhere notices it within 15 seconds.
    """

    def __init__(self, ctx: RuntimeContext, on_changed: Callable[[], None]) -> None:
        self._ctx, self._on_changed = ctx, on_changed

    async def set(
        self,
        name: str,
        agent: str,
        input: str | list[Item],
        *,
        cron: str | None = None,
        every: timedelta | float | None = None,
        timezone: str = "UTC",
        session_id: str | None = None,
        owner: str | None = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        overlap: bool = False,
    ) -> Schedule:
        """Create a schedule, or replace the one with this name. Pass ``cron`` or ``every``.

        ``cron`` has five fields and is read in ``timezone``; it needs the extra ``schedules``. ``every`` is a number of
        seconds or a timedelta, the first time after that time. While the last run has not ended, the next
        times are skipped and counted, unless ``overlap``. Of the times at which no runtime was alive, one is made up
        for.

        The runs of a schedule with a ``session_id`` share that session. With only an ``owner`` each run has a session
        of its own, which belongs to the owner.
        """
        if self._ctx.graphs:
            self._ctx.get_graph(agent)
        if validate_name("schedule", name) and len(name) > MAX_NAME_LENGTH:
            raise InvalidInput(f"the name of a schedule has at most {MAX_NAME_LENGTH} characters, got {len(name)}")
        request = build_request(agent, input, session_id, None, max_turns, None, "enqueue", owner)
        now = await self._ctx.backend.get_time()
        schedule = Schedule(
            name=name,
            agent=validate_name("agent", agent),
            input=request.input,
            cron=cron,
            every=None if every is None else _to_seconds(every),
            timezone=timezone,
            session_id=request.session_id,
            owner=request.owner,
            max_turns=max_turns,
            overlap=bool(overlap),
            created_at=now,
        )
        schedule = msgspec.structs.replace(schedule, next_at=compute_next_time(schedule, after=now))
        data = encode_schedule(schedule, self._ctx.cipher)
        await self._ctx.backend.commit(PutDocument(kind=SCHEDULE_KIND, key=name, data=data))
        self._on_changed()
        return schedule

    async def list(self) -> list[Schedule]:
        """Return all schedules by name."""
        return [decode_schedule(one, self._ctx.cipher) async for one in iterate_schedules(self._ctx.backend)]

    async def get(self, name: str) -> Schedule:
        """Return the schedule with this name, or raise :class:`NotFound`."""
        return decode_schedule(await self._get_document(name), self._ctx.cipher)

    async def pause(self, name: str) -> Schedule:
        """Start no runs until :meth:`resume`. Runs that were started continue."""
        return await self._update(name, lambda schedule, _: msgspec.structs.replace(schedule, next_at=None))

    async def resume(self, name: str) -> Schedule:
        """Continue a paused schedule with its next time. The times in between are not made up for."""

        def resume(schedule: Schedule, now: float) -> Schedule:
            if not schedule.is_paused:
                return schedule
            return msgspec.structs.replace(schedule, next_at=compute_next_time(schedule, after=now))

        return await self._update(name, resume)

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its runs stay."""
        document = await self._get_document(name)
        await self._ctx.backend.commit(DeleteDocument(kind=SCHEDULE_KIND, key=document.key))

    async def _get_document(self, name: str) -> DocumentRecord:
        found = await self._ctx.backend.get_document(SCHEDULE_KIND, validate_name("schedule", name))
        if found is None:
            raise NotFound("schedule", name)
        return found

    async def _update(self, name: str, change: Callable[[Schedule, float], Schedule]) -> Schedule:
        while True:
            document = await self._get_document(name)
            found = require_readable(decode_schedule(document, self._ctx.cipher))
            changed = change(found, await self._ctx.backend.get_time())
            data = encode_schedule(changed, self._ctx.cipher)
            try:
                await self._ctx.backend.commit(
                    PutDocument(kind=SCHEDULE_KIND, key=document.key, data=data, expected=document.revision)
                )
            except Conflict:
                continue
            self._on_changed()
            return changed


def _to_seconds(every: timedelta | float) -> float:
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise InvalidInput(f"every must be {MIN_SECONDS:g} second to 366 days, not {every!r}")
    return float(seconds)
