"""Server-sent events, without gaps or repetitions over any number of connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from standfast.base.errors import StandfastError
from standfast.base.time import Backoff
from standfast.client.connection import Connection, decode_content, make_path
from standfast.client.errors import ServerUnreachable
from standfast.runtime.types import Approval, ApprovalChange, Event

MAX_FAILURES = 30
"""Connections in a row without an event or a sign of life, after which the server counts as lost: a few minutes."""
_FIELDS = ("id", "event", "data")
RETRIED_STATUSES = (429, 502, 503, 504)


@dataclass(frozen=True)
class StreamEvent:
    """A server-sent event."""

    id: str
    name: str
    data: str


async def follow_stream(
    connection: Connection, path: str, *, params: dict[str, Any], after: str | None, max_failures: int = MAX_FAILURES
) -> AsyncIterator[StreamEvent]:
    """Yield the events of a stream until the event ``end``, reconnecting whenever the connection is lost."""
    seen, failures, backoff = after, 0, Backoff(maximum=10.0)
    while True:
        try:
            async with aclosing(read_events(connection, path, params, seen)) as events:  # type: ignore[type-var]
                async for event in events:
                    failures = 0
                    backoff.reset()
                    if event is None:
                        continue
                    if event.name == "end":
                        return
                    seen = event.id or seen
                    yield event
        except ServerUnreachable as problem:
            if failures >= max_failures:
                raise ServerUnreachable(f"{path} cannot be read: {problem}") from problem
        except StandfastError as problem:
            if getattr(problem, "status", None) not in RETRIED_STATUSES or failures >= max_failures:
                raise
        failures += 1
        await asyncio.sleep(backoff.next_delay())


async def read_events(
    connection: Connection, path: str, params: dict[str, Any], after: str | None
) -> AsyncIterator[StreamEvent | None]:
    """Yield the events of one connection, and ``None`` for a comment, by which the server shows that it is there."""
    headers = {} if after is None else {"last-event-id": after}
    async with connection.stream(path, params=params, headers=headers) as lines:
        fields: dict[str, str] = {}
        async for line in lines:
            if line.startswith(":"):
                yield None
            elif line:
                name, _, value = line.partition(": ")
                if name in _FIELDS:
                    fields[name] = value
            elif "data" in fields:
                yield StreamEvent(fields.get("id", ""), fields.get("event", ""), fields["data"])
                fields = {}


async def follow_run(connection: Connection, run_id: str, *, after: int, until: str) -> AsyncIterator[Event]:
    """Yield the events of a run until it ends or waits."""
    path = make_path("runs", run_id, "events")
    followed = follow_stream(connection, path, params={"until": until}, after=str(after))
    async with aclosing(followed) as events:  # type: ignore[type-var]
        async for event in events:
            yield decode_content(event.data, Event)


async def follow_approvals(
    connection: Connection, *, after: str | None, owner: str | None
) -> AsyncIterator[ApprovalChange]:
    """Yield the approvals that wait, and then every change, without end."""
    params = {} if owner is None else {"owner": owner}
    followed = follow_stream(connection, "/approvals/events", params=params, after=after)
    async with aclosing(followed) as events:  # type: ignore[type-var]
        async for event in events:
            yield ApprovalChange(decode_content(event.data, Approval), event.id)
