"""Pings of the WebSocket transport while its reader, its writer or the event loop is blocked."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

from websockets.asyncio.server import serve

from factories.realtime import connect_options, open_websocket_session
from standfast import function_tool
from standfast.realtime import (
    ConnectionLost,
    NotConnected,
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeModelListener,
    RealtimeModelSendAudio,
)
from standfast.realtime.local import CallTool
from standfast.realtime.openai.transport import MAX_READ_AHEAD_BYTES
from standfast.testing import RealtimeServer

PINGS: Any = {"ping_interval": 0.05, "ping_timeout": 0.1, "close_timeout": 0.2}
LONG = 0.5  # seconds, much more than the ping timeout
TIMEOUT = 60.0


class BlockingListener(RealtimeModelListener):
    """Blocks on the first event of a type."""

    raw_server_events = True

    def __init__(self, blocks_on: str | None = None) -> None:
        self._blocks_on = blocks_on
        self.types: list[str] = []
        self.disconnected: Any = None
        self.blocked, self.released = asyncio.Event(), asyncio.Event()
        self.last_received, self.ended = asyncio.Event(), asyncio.Event()

    async def on_event(self, event: Any) -> None:
        event_type = event.data.get("type", "") if event.type == "raw_server_event" else event.type
        self.types.append(event_type)
        if event_type == self._blocks_on:
            self.blocked.set()
            await self.released.wait()
        elif event_type == "the.last":
            self.last_received.set()
        elif event_type == "connection_status" and event.status == "disconnected":
            self.disconnected = event
        elif event_type == "end_of_stream":
            self.ended.set()


def stream(count: int, size: int) -> Iterable[dict[str, Any]]:
    yield {"type": "the.first"}
    for number in range(count):
        yield {"type": "some.frame", "number": number, "ballast": "x" * size}
    yield {"type": "the.last"}


@contextmanager
def server_in_a_thread() -> Iterator[str]:
    """Run a server that answers even while this event loop is blocked, and yield its URL."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        async with RealtimeServer() as server:
            stop = asyncio.Event()
            started.set_result((server.url, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    url, loop, stop = started.result(TIMEOUT)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def test_a_slow_tool_does_not_cost_the_connection() -> None:
    @function_tool
    async def slow() -> str:
        """Takes its time."""
        await asyncio.sleep(LONG)
        return "at last"

    async with RealtimeServer([[CallTool("slow", {})], "Well done."]) as server:
        agent = RealtimeAgent(name="slow", tools=[slow])
        async with open_websocket_session(server, agent, PINGS, async_tool_calls=False) as (session, recorded):
            await session.send_message("Do it.")
            await recorded.wait_for("tool_start")
            for frame in stream(200, 10):
                server.connections[0].send(frame)
            await recorded.wait_for("audio_end")
        assert len(server.connections) == 1
        assert recorded.of_type("error") == []


async def test_a_listener_may_lag_behind_the_read_ahead_limit() -> None:
    count, size = 60, 2**20
    assert count * size > 3 * MAX_READ_AHEAD_BYTES
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=PINGS), BlockingListener("the.first")
        model.add_listener(listener)
        await model.connect(connect_options(server))
        for frame in stream(count, size):
            server.connections[0].send(frame)
        await listener.blocked.wait()
        await asyncio.sleep(LONG)
        assert len(server.connections[0].get_sent("some.frame")) < count, "all of it was read ahead"
        listener.released.set()
        await asyncio.wait_for(listener.last_received.wait(), TIMEOUT)
        assert listener.types.count("some.frame") == count
        assert listener.disconnected is None
        await model.close()


async def test_pings_of_the_server_are_answered_while_a_listener_is_busy() -> None:
    listener = BlockingListener("the.first")

    async def handle(socket: Any) -> None:
        await socket.send(json.dumps({"type": "session.created", "session": {}}))
        settings = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "session.updated", "session": settings["session"]}))
        *frames, last = stream(400, 2000)
        for frame in frames:
            await socket.send(json.dumps(frame))
        await listener.blocked.wait()
        await (await socket.ping())
        listener.released.set()
        await socket.send(json.dumps(last))
        await socket.wait_closed()

    async with serve(handle, "127.0.0.1", 0, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        model = OpenAIRealtimeWebSocketModel()
        model.add_listener(listener)
        await model.connect({"url": f"ws://127.0.0.1:{port}", "api_key": "test"})
        await asyncio.wait_for(listener.last_received.wait(), TIMEOUT)
        assert listener.disconnected is None
        await model.close()


async def test_a_reader_with_a_backlog_does_not_block_the_event_loop() -> None:
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(), BlockingListener("the.first")
        model.add_listener(listener)
        await model.connect(connect_options(server))
        for frame in stream(3000, 10):
            server.connections[0].send(frame)
        await listener.blocked.wait()
        await asyncio.sleep(0.3)
        listener.released.set()
        counts = []
        while not listener.last_received.is_set():
            counts.append(len(listener.types))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise([*counts, len(listener.types)])) <= 3 * 64
        await model.close()


async def test_an_event_loop_blocked_longer_than_the_ping_timeout_costs_no_connection() -> None:
    with server_in_a_thread() as url:
        pings: Any = {"ping_interval": 0.01, "ping_timeout": 0.3}
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=pings), BlockingListener()
        model.add_listener(listener)
        await model.connect({"url": url, "api_key": "test"})
        for iterations in (1, 2, 3, 4):
            time.sleep(0.4)  # noqa: ASYNC251 - blocking the event loop is what is tested
            for _ in range(iterations):
                await asyncio.sleep(0)
        assert listener.disconnected is None
        await model.close()


async def test_a_server_that_hangs_is_detected_while_much_is_sent_to_it() -> None:
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=PINGS), BlockingListener()
        model.add_listener(listener)
        await model.connect(connect_options(server))
        server.connections[0].stall()

        async def send_audio() -> None:
            with suppress(ConnectionLost, NotConnected):
                while True:
                    await model.send_event(RealtimeModelSendAudio(bytes(480_000)))

        sender = asyncio.ensure_future(send_audio())
        await asyncio.wait_for(listener.ended.wait(), TIMEOUT)
        assert "sent nothing for 0.1 s after a ping" in str(listener.disconnected.error)
        await sender
        await model.close()
