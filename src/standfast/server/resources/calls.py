"""``/calls``: speak with a realtime agent, watch a call, decide about its tools."""

import asyncio
from collections.abc import AsyncIterator

from starlette.websockets import WebSocket

from standfast.base.errors import NotFound
from standfast.base.ids import new_id
from standfast.server.answers import CallInfo
from standfast.server.calls.call import Call, ConnectedPage
from standfast.server.calls.messages import Decide
from standfast.server.endpoints import DECIDE, READ_RUNS, WRITE, EndpointTable
from standfast.server.exchange import Exchange, Hidden
from standfast.server.streams import EventStream, format_event, read_position
from standfast.server.types import CallQuery, EventListing, NewCallQuery

endpoints = EndpointTable()


@endpoints.add("GET", "/calls", READ_RUNS, result=list[CallInfo])
async def list_calls(exchange: Exchange) -> list[CallInfo]:
    """List the calls under way in this process."""
    owner = exchange.owner_filter
    return [call.info for call in exchange.service.calls.values() if owner in (None, call.principal.owner)]


@endpoints.add("WEBSOCKET", "/calls", WRITE, query=NewCallQuery)
async def start_call(exchange: Exchange) -> None:
    """Call a realtime agent.

    The page sends the caller's audio as binary messages (16 bit, mono, 24 kHz) and JSON messages: `text`, `interrupt`,
    `played`, `decide`, `hang_up`. It gets JSON messages with numbers: `call` first, then audio, transcripts, tools,
    approvals, interruptions, each with `at`, the seconds since the call began. The conversation is written to its
    session.
    """
    query, service = exchange.query, exchange.service
    source = service.call_sources.get(query.agent)
    if source is None:
        raise NotFound("realtime agent", query.agent)
    session_id = query.session_id or new_id("session")
    await exchange.require_access_or_absence(session_id)
    page = await accept(exchange)
    call = Call(query.agent, source, session_id, exchange.principal, service.record_audit)
    service.calls[call.call_id] = call
    try:
        history = exchange.runtime.session(session_id, owner=exchange.principal.owner)
        history.claims = exchange.owner_filter is not None
        await call.run(page, history, stop=service.draining)
    finally:
        service.calls.pop(call.call_id, None)


@endpoints.add("WEBSOCKET", "/calls/{call_id}", WRITE, query=CallQuery)
async def continue_call(exchange: Exchange) -> None:
    """Continue a call whose connection was lost, within 30 seconds. Messages after `after` are sent again."""
    call = find_call(exchange)
    await call.serve(await accept(exchange), after=exchange.query.after)


@endpoints.add("GET", "/calls/{call_id}", READ_RUNS, result=CallInfo)
async def get_call(exchange: Exchange) -> CallInfo:
    """Show a call."""
    return find_call(exchange).info


@endpoints.add("GET", "/calls/{call_id}/events", READ_RUNS, query=EventListing, media_type="text/event-stream")
async def watch_call(exchange: Exchange) -> EventStream:
    """Watch a call: its messages without the audio, from the beginning."""
    call, after = find_call(exchange), read_position(exchange).after

    async def format_messages() -> AsyncIterator[bytes]:
        async for message in call.log.follow(after, with_audio=False):
            yield format_event(message.data, number=message.number)

    return EventStream(exchange, format_messages())


@endpoints.add("POST", "/calls/{call_id}/decide", DECIDE, body=Decide, result=bool)
async def decide_in_call(exchange: Exchange) -> bool:
    """Decide about a tool call of a call; false if it does not wait."""
    return await find_call(exchange).decide(exchange.principal, exchange.body)


@endpoints.add("DELETE", "/calls/{call_id}", WRITE)
async def hang_up(exchange: Exchange) -> None:
    """End a call."""
    find_call(exchange).hang_up()


def find_call(exchange: Exchange) -> Call:
    call = exchange.service.calls.get(exchange.path["call_id"])
    if call is None:
        raise NotFound("call", exchange.path["call_id"], hint="; a call lives in the process that accepted it")
    if not exchange.rule.allows(exchange.principal, call.principal.owner):
        raise Hidden("call", exchange.path["call_id"], hint="; a call lives in the process that accepted it")
    return call


async def accept(exchange: Exchange) -> ConnectedPage:
    socket = exchange.request
    assert isinstance(socket, WebSocket)  # noqa: S101 - the endpoint is one
    offered = socket.headers.get("sec-websocket-protocol", "")
    await socket.accept("standfast" if "standfast" in map(str.strip, offered.split(",")) else None)

    async def wait_for_end() -> None:
        while True:
            await asyncio.sleep(exchange.access_interval)
            if not await exchange.keeps_access():
                return

    return ConnectedPage(socket, exchange.principal, wait_for_end)
