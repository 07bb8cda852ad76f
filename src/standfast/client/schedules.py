"""The schedules of a server, with the methods of those of a runtime."""

from datetime import timedelta
from typing import Any, cast

from standfast.base.items import Item
from standfast.client.connection import Connection, make_path
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runtime.types import Schedule


class RemoteSchedules:
    """The schedules of a server, see :class:`Schedules`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        """Create a schedule, or replace the one with this name."""
        body = {
            "agent": agent,
            "input": input,
            "cron": cron,
            "every": every.total_seconds() if isinstance(every, timedelta) else every,
            "timezone": timezone,
            "session_id": session_id,
            "owner": owner,
            "max_turns": max_turns,
            "overlap": overlap,
        }
        return await self._request("PUT", make_path("schedules", name), body=body)

    async def get(self, name: str) -> Schedule:
        """Return the schedule with this name, or raise :class:`NotFound`."""
        return await self._request("GET", make_path("schedules", name))

    async def pause(self, name: str) -> Schedule:
        """Start no runs until :meth:`resume`."""
        return await self._request("POST", make_path("schedules", name, "pause"))

    async def resume(self, name: str) -> Schedule:
        """Continue a paused schedule with its next time."""
        return await self._request("POST", make_path("schedules", name, "resume"))

    async def delete(self, name: str) -> None:
        """Delete a schedule. Its runs stay."""
        await self._connection.request("DELETE", make_path("schedules", name))

    async def list(self) -> list[Schedule]:
        """Return all schedules by name."""
        return cast("list[Schedule]", await self._connection.request("GET", "/schedules", list[Schedule]))

    async def _request(self, method: str, path: str, **options: Any) -> Schedule:
        return cast(Schedule, await self._connection.request(method, path, Schedule, **options))
