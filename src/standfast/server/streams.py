"""Server-sent events: numbered, resumable, with heartbeats, encoded once for all readers."""

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from standfast.base.errors import InvalidInput
from standfast.models.prices import compute_cost
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.core.state import UsageRecord
from standfast.runtime.handle import RunHandle, Until
from standfast.runtime.types import Event
from standfast.server.exchange import Exchange
from standfast.server.open_streams import RETRY, OpenStream
from standfast.server.service import Service
from standfast.store.records import ENDED_RUN_STATUSES

MIN_SEND_INTERVAL, STREAM_INTERVAL = 0.002, 0.0001
"""Seconds between two sends, and what each open stream adds to them: 100 ms with a thousand of them."""
ENDED_EVENTS = {f"run.{status}": status for status in ENDED_RUN_STATUSES}
_POSITION = re.compile(r"([0-9]{1,16})(?:/([0-9]{1,30}\.[0-9]{1,30}))?")
_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """A response with events, a comment after a while without events, and a hint to reconnect when the server stops.

    It ends when the credential of the client does, or its access to what the path names. Its iterator is closed soon
    after the client went away.
    """

    def __init__(self, exchange: Exchange, events: AsyncIterator[bytes], *, status: int = 200) -> None:
        # Proxies must neither buffer nor store it.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        self.status_code, self.media_type, self.background = status, "text/event-stream", None
        self.init_headers(headers)
        self._exchange, self._service, self._events = exchange, exchange.service, events
        self._owner = exchange.principal.owner
        self._service.streams.check_limit(self._owner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            if scope["method"] != "HEAD":
                await self._stream(receive, send)
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, receive: Receive, send: Send) -> None:
        running = asyncio.timeout(None)
        try:
            async with running:
                stream = OpenStream(self._exchange, receive, send, running)
                with self._service.metrics.count_stream(), self._service.streams.register(stream, self._owner):
                    try:
                        async for part in self._events:
                            await stream.send_part(part)
                    finally:
                        await stream.close()
        except TimeoutError:
            if not running.expired():
                raise
            if stream.last_part:
                await stream.send_part(stream.last_part)


def format_event(data: bytes, *, event: str | None = None, number: int | str | None = None) -> bytes:
    """Return one server-sent event. JSON has no line breaks, so ``data`` is one line."""
    head = b"" if number is None else b"id: %s\n" % str(number).encode()
    head += b"" if event is None else b"event: %s\n" % event.encode()
    return b"%sdata: %s\n\n" % (head, data)


class StreamPosition(msgspec.Struct, frozen=True):
    """Where a reader stopped: the number of the last stored event, and the place among the live ones after it.

    As the id of an event it is ``12``, or ``12/PLACE`` for a live one.
    """

    after: int = 0
    live: str | None = None

    def advance(self, event: Event) -> "StreamPosition":
        return StreamPosition(self.after, event.position) if event.seq is None else StreamPosition(event.seq)

    def format(self) -> str:
        return str(self.after) if self.live is None else f"{self.after}/{self.live}"

    @classmethod
    def parse(cls, text: str) -> "StreamPosition":
        match = _POSITION.fullmatch(text)
        if match is None or int(match[1]) > 2**53:
            raise InvalidInput(f"the id of the last event must be that of an event of this stream, not {text[:100]!r}")
        return cls(int(match[1]), match[2])


def read_position(exchange: Exchange) -> StreamPosition:
    """Return the position in ``Last-Event-ID``, which browsers send, or that of the query."""
    value = exchange.request.headers.get("last-event-id")
    return StreamPosition.parse(value or str(exchange.query.after))


def get_send_interval(service: Service) -> float:
    """Return the least seconds between two sends in one stream: what happens in between is sent together.

    They grow with the number of streams, so that many readers leave the process time for other work.
    """
    return MIN_SEND_INTERVAL + service.metrics.open_streams * STREAM_INTERVAL


async def stream_run(
    service: Service, run: RunHandle, position: StreamPosition, *, until: Until
) -> AsyncIterator[bytes]:
    """Yield the events of a run after this position, then new ones, then ``end`` with its status."""
    yield RETRY
    await asyncio.sleep(get_send_interval(service))
    followed, ended = run.event_batches(after=position.after, until=until, position=position.live), None
    async with aclosing(followed) as batches:  # type: ignore[type-var]
        async for batch in batches:
            parts = []
            for event in batch:
                position = position.advance(event)
                parts.append(_encoded_events.format(event, position))
            yield b"".join(parts)
            ended = ENDED_EVENTS.get(batch[-1].type)
            if ended is None:
                await asyncio.sleep(get_send_interval(service))
    end: dict[str, Any] = {"status": ended, "steps": position.after}
    if ended is None:
        info = await run.info()
        end = {"status": info.status, "steps": info.steps}
    yield format_event(_encode(end), event="end")


def add_cost(event: Event) -> Event:
    """Add what a response has cost in US dollars to its event, if the price of the model is known."""
    if event.type != "model.answered":
        return event
    usage = from_usage_record(msgspec.convert(event.data["usage"], UsageRecord))
    cost = compute_cost(event.data["model"], usage)
    return event if cost is None else dataclasses.replace(event, data={**event.data, "cost": cost})


class EncodedEvents:
    """The events that were encoded last: all readers of a run get the same ones at about the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._encoded: dict[int, tuple[Event, str, bytes]] = {}

    def format(self, event: Event, position: StreamPosition) -> bytes:
        """Return the event as a server-sent one, whose id is the position after it."""
        known, event_id = self._encoded.get(id(event)), position.format()
        if known is not None and known[0] is event and known[1] == event_id:
            return known[2]
        data = format_event(_encode(add_cost(event)), event=event.type, number=event_id)
        if len(self._encoded) >= self._size:
            self._encoded.pop(next(iter(self._encoded)))
        self._encoded[id(event)] = event, event_id, data
        return data


_encoded_events = EncodedEvents(256)
