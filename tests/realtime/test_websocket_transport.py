"""Who is gone and who is only busy: pings on a connection whose reader, or whose writer, is held up."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

from tests.realtime_kit import at, calling
from websockets.asyncio.server import serve

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
LONG = 0.5  # as seen by those pings


class Busy(RealtimeModelListener):
    """Is held up by the first thing of a kind that it is told."""

    raw_server_events = True

    def __init__(self, by: str | None = None) -> None:
        self._by = by
        self.told: list[str] = []
        self.end: Any = None
        self.held_up, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.caught_up, self.over = asyncio.Event(), asyncio.Event()

    async def on_event(self, event: Any) -> None:
        raw = event.data.get("type", "") if event.type == "raw_server_event" else event.type
        self.told.append(raw)
        if raw == self._by:
            self.held_up.set()
            await self.may_go_on.wait()
        elif raw == "the.last":
            self.caught_up.set()
        elif raw == "connection_status" and event.status == "disconnected":
            self.end = event
        elif raw == "end_of_stream":
            self.over.set()


def stream(count: int, size: int) -> Iterable[dict[str, Any]]:
    yield {"type": "the.first"}
    for number in range(count):
        yield {"type": "some.frame", "number": number, "ballast": "x" * size}
    yield {"type": "the.last"}


@contextmanager
def server_in_a_thread() -> Iterator[str]:
    """Its url. It answers whatever this loop is doing."""
    begun: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        async with RealtimeServer() as server:
            over = asyncio.Event()
            begun.set_result((server.url, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    url, loop, over = begun.result(10)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


async def test_a_tool_that_holds_up_the_conversation_does_not_cost_the_connection() -> None:
    @function_tool
    async def slow() -> str:
        """Takes its time."""
        await asyncio.sleep(LONG)
        return "at last"

    async with RealtimeServer([[CallTool("slow", {})], "Well done."]) as server:
        agent = RealtimeAgent(name="slow", tools=[slow])
        async with calling(server, agent, PINGS, async_tool_calls=False) as (session, heard):
            await session.send_message("Do it.")
            await heard.until("tool_start")
            for frame in stream(200, 10):
                server.connections[0].send(frame)
            await heard.until("audio_end")
        assert len(server.connections) == 1
        assert heard.of("error") == []


async def test_a_listener_may_be_further_behind_than_is_read_ahead() -> None:
    count, size = 60, 2**20
    assert count * size > 3 * MAX_READ_AHEAD_BYTES
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=PINGS), Busy("the.first")
        model.add_listener(listener)
        await model.connect(at(server))
        for frame in stream(count, size):
            server.connections[0].send(frame)
        await listener.held_up.wait()
        await asyncio.sleep(LONG)
        assert len(server.connections[0].get_sent("some.frame")) < count, "all of it was read ahead"
        listener.may_go_on.set()
        await asyncio.wait_for(listener.caught_up.wait(), 10)
        assert listener.told.count("some.frame") == count
        assert listener.end is None
        await model.close()


async def test_the_pings_of_a_server_are_answered_while_a_listener_is_busy() -> None:
    listener = Busy("the.first")

    async def talk(socket: Any) -> None:
        await socket.send(json.dumps({"type": "session.created", "session": {}}))
        settings = json.loads(await socket.recv())
        await socket.send(json.dumps({"type": "session.updated", "session": settings["session"]}))
        *frames, last = stream(400, 2000)
        for frame in frames:
            await socket.send(json.dumps(frame))
        await listener.may_go_on.wait()
        await socket.send(json.dumps(last))
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0, ping_interval=0.05, ping_timeout=0.5) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        model = OpenAIRealtimeWebSocketModel()
        model.add_listener(listener)
        await model.connect({"url": f"ws://127.0.0.1:{port}", "api_key": "test"})
        await listener.held_up.wait()
        await asyncio.sleep(0.8)
        listener.may_go_on.set()
        await asyncio.wait_for(listener.caught_up.wait(), 10)
        assert listener.end is None
        await model.close()


async def test_a_reader_that_catches_up_does_not_hold_up_the_loop() -> None:
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(), Busy("the.first")
        model.add_listener(listener)
        await model.connect(at(server))
        for frame in stream(3000, 10):
            server.connections[0].send(frame)
        await listener.held_up.wait()
        await asyncio.sleep(0.3)
        listener.may_go_on.set()
        told = []
        while not listener.caught_up.is_set():
            told.append(len(listener.told))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise([*told, len(listener.told)])) <= 3 * 64
        await model.close()


async def test_a_loop_that_is_held_up_for_longer_than_a_ping_may_take_costs_no_connection() -> None:
    with server_in_a_thread() as url:
        pings: Any = {"ping_interval": 0.01, "ping_timeout": 0.3}
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=pings), Busy()
        model.add_listener(listener)
        await model.connect({"url": url, "api_key": "test"})
        for turn in range(8):
            time.sleep(0.4)  # noqa: ASYNC251 - which is what is wrong, and happens
            for _ in range(1 + turn % 4):
                await asyncio.sleep(0)
        assert listener.end is None
        await model.close()


async def test_a_server_that_hangs_is_noticed_also_while_much_is_sent_to_it() -> None:
    async with RealtimeServer() as server:
        model, listener = OpenAIRealtimeWebSocketModel(transport_config=PINGS), Busy()
        model.add_listener(listener)
        await model.connect(at(server))
        server.connections[0].stall()

        async def speak() -> None:
            with suppress(ConnectionLost, NotConnected):
                while True:
                    await model.send_event(RealtimeModelSendAudio(bytes(480_000)))

        speaking = asyncio.ensure_future(speak())
        await asyncio.wait_for(listener.over.wait(), 5)
        assert "no sign of life" in str(listener.end.error)
        await speaking
        await model.close()
