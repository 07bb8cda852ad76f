"""Server-sent events: numbered, resumable, with heartbeats, encoded once for all readers."""

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Send

from standfast.base.errors import InvalidInput
from standfast.lifecycle.scope import Scope
from standfast.models.prices import compute_cost
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.core.state import UsageRecord
from standfast.runtime.handle import RunHandle, Until
from standfast.runtime.types import Event
from standfast.server.exchange import Exchange
from standfast.server.service import Service

RETRY = b"retry: 1000\n\n"
"""Tells browsers to reconnect after a second to a server that went away."""

FEW_STREAMS = 100
DELTA_INTERVAL = 0.0001
"""Seconds for each open stream beyond a few: 90 ms with a thousand of them."""
_POSITION = re.compile(r"([0-9]{1,16})(?:/([0-9]{1,30}\.[0-9]{1,30}))?")
_encode = msgspec.json.Encoder().encode


class EventStream(StreamingResponse):
    """A response with events, a comment after a while without events, and a hint to reconnect when the server stops.

    It ends when the credential of the client does, or its access to what the path names. Its iterator is closed as
    soon as the client goes away.
    """

    def __init__(self, exchange: Exchange, events: AsyncIterator[bytes], *, status: int = 200) -> None:
        # Proxies must neither buffer nor store it.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, status, media_type="text/event-stream", headers=headers)
        self._exchange, self._service, self._send_lock = exchange, exchange.service, asyncio.Lock()
        self._last_sent = 0.0

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with self._service.metrics.count_stream():
            async with Scope() as scope:
                comments = scope.start(self._send_comments(send), name="heartbeats")
                try:
                    await self._send_events(send)
                finally:
                    comments.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        stopping = loop.create_task(self._wait_for_end())
        try:
            async with asyncio.timeout(None) as running:

                def expire(task: asyncio.Task[bytes]) -> None:
                    if not task.cancelled():  # the stream has not ended by itself
                        running.reschedule(loop.time())

                stopping.add_done_callback(expire)
                async with aclosing(self.body_iterator) as parts:  # type: ignore[type-var]
                    async for part in parts:
                        await self._send_part(send, part)
        except TimeoutError:
            await self._send_part(send, stopping.result())
        finally:
            stopping.cancel()

    async def _wait_for_end(self) -> bytes:
        """Return the last part of the stream when the server stops, or the client has no access any more."""
        while True:
            try:
                async with asyncio.timeout(self._exchange.access_interval):
                    await self._service.draining.wait()
                    return b": the server is stopping, reconnect\n" + RETRY
            except TimeoutError:
                if not await self._exchange.keeps_access():
                    return b": the access to this stream has ended\n\n"

    async def _send_part(self, send: Send, part: Any) -> None:
        async with self._send_lock:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        self._last_sent = asyncio.get_running_loop().time()

    async def _send_comments(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for a while, so that no proxy takes the stream for dead."""
        interval, loop = self._service.limits.heartbeat, asyncio.get_running_loop()
        self._last_sent = loop.time()
        while True:
            await asyncio.sleep(max(0.0, self._last_sent + interval - loop.time()))
            if loop.time() >= self._last_sent + interval:
                await self._send_part(send, b": alive\n\n")


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


def get_delta_interval(service: Service) -> float:
    """Return the seconds between two sends of live events in one stream.

    They grow with the number of streams, so that many readers leave the process time for other work: the live
    events of an interval are sent together.
    """
    return max(0, service.metrics.open_streams - FEW_STREAMS) * DELTA_INTERVAL


async def stream_run(
    service: Service, run: RunHandle, position: StreamPosition, *, until: Until
) -> AsyncIterator[bytes]:
    """Yield the events of a run after this position, then new ones, then ``end`` with its status."""
    yield RETRY
    followed = run.event_batches(after=position.after, until=until, position=position.live)
    async with aclosing(followed) as batches:  # type: ignore[type-var]
        async for batch in batches:
            parts = []
            for event in batch:
                position = position.advance(event)
                parts.append(_encoded_events.format(event, position))
            yield b"".join(parts)
            if batch[-1].live and (pause := get_delta_interval(service)):
                await asyncio.sleep(pause)
    info = await run.info()
    yield format_event(_encode({"status": info.status, "steps": info.steps}), event="end")


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
