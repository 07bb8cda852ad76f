"""A durable run on a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from standfast.client.event_stream import follow_run
from standfast.runtime.types import CancelMode, Event, RunInfo, RunOutcome

if TYPE_CHECKING:
    from standfast.client.client import Client
    from standfast.runtime.handle import Until


class RemoteRun:
    """A durable run on a server, with the methods of a :class:`RunHandle`. Dropping it does not affect the run."""

    def __init__(self, client: "Client", run_id: str) -> None:
        self._client, self.run_id = client, run_id

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run_id

    async def info(self) -> RunInfo:
        """Return the status of the run."""
        return await self._client.get_run_info(self.run_id)

    async def events(self, after: int = 0, *, until: "Until" = "pause") -> AsyncIterator[Event]:
        """Yield every event with a ``seq`` above ``after``, then new ones, until the run ends or waits.

        A lost connection is made again, also to another server on the same store: no event is lost or repeated.
        """
        followed = follow_run(self._client.connection, self.run_id, after=after, until=until)
        async with aclosing(followed) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def wait(self) -> RunOutcome:
        """Wait until the run has ended or waits for a person, and return its outcome."""
        seen = 0
        while True:
            async for event in self.events(seen):
                seen = event.seq or seen
            outcome = await self._client.get_outcome(self.run_id)
            if outcome.status not in ("queued", "running"):
                return outcome
            await asyncio.sleep(0.05)  # it was resumed between the two answers

    async def cancel(self, mode: CancelMode = "after_turn") -> None:
        """Cancel the run after its turn, or at once. Its progress is kept."""
        await self._client.cancel(self.run_id, mode=mode)

    async def state(self, *, at: int | None = None) -> dict[str, Any]:
        """Return the run as portable JSON for :meth:`RunState.from_json`."""
        return await self._client.state(self.run_id, at=at)
