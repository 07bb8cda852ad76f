"""Every fault that the server can be told, as a bare client sees it."""

import asyncio
import base64
import time
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from realtime.wire import USER, wired
from standfast.realtime.local.responder import Pause, ScriptedResponder
from standfast.testing import RealtimeServer
from standfast.testing.realtime.faults import Collide, Delay, Discard, Disconnect, Expire, Reject, Reorder, Stall


async def test_a_connection_is_dropped_with_the_wanted_code_after_the_wanted_frame():
    async with RealtimeServer(["One two three."]) as server, wired(server) as wire:
        server.inject("response.output_audio.delta", Disconnect(1011, "out of order"), skip=2)
        await wire.send("response.create")
        with pytest.raises(ConnectionClosedError) as closed:
            await wire.until("response.done")
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "out of order")
        assert sum(frame["type"] == "response.output_audio.delta" for frame in wire.frames) == 2
        assert not server.connections[0].is_open


@pytest.mark.parametrize("code", [None, 1006])
async def test_a_connection_breaks_without_a_closing_handshake(code):
    async with RealtimeServer() as server, wired(server) as wire:
        await wire.until("session.created")
        server.connections[0].close(code)
        with pytest.raises(ConnectionClosedError) as closed:
            await wire.until("never")
        assert closed.value.rcvd is None


async def test_a_connection_breaks_when_the_client_asks_for_something():
    async with RealtimeServer() as server, wired(server) as wire:
        server.inject("conversation.item.create", Disconnect())
        await wire.send("conversation.item.create", item=USER)
        with pytest.raises(ConnectionClosedError):
            await wire.until("conversation.item.added")
        assert len(server.connections[0].conversation) == 0


async def test_a_delayed_frame_holds_up_what_is_behind_it():
    async with RealtimeServer(["Hm."]) as server, wired(server) as wire:
        await wire.until("conversation.created")
        server.inject("response.output_item.added", Delay(0.1))
        await wire.send("response.create")
        await wire.until("response.created")
        before = time.monotonic()
        assert (await wire.read())["type"] == "response.output_item.added"
        assert time.monotonic() - before >= 0.09


async def test_frames_out_of_order():
    async with RealtimeServer(["Hm."]) as server, wired(server) as wire:
        await wire.until("conversation.created")
        server.inject("response.created", Reorder(after="response.content_part.added"))
        await wire.send("response.create")
        seen = await wire.types_until("response.done")
        assert seen.index("response.created") == seen.index("response.content_part.added") + 1


async def test_a_turn_of_speech_wins_against_the_clients_request():
    async with RealtimeServer([[Pause(0.02), "Mine."]]) as server, wired(server) as wire:
        server.inject("response.create", Collide())
        await wire.send("response.create", event_id="late")
        winner = (await wire.until("response.created"))["response"]["id"]
        error = (await wire.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "late")
        assert (await wire.until("response.done"))["response"]["id"] == winner


async def test_a_session_expires_when_it_is_told_to():
    async with RealtimeServer() as server, wired(server) as wire:
        server.inject("conversation.item.added", Expire())
        await wire.send("conversation.item.create", item=USER)
        assert (await wire.until("error"))["error"]["code"] == "session_expired"


async def test_a_handshake_is_refused_once_and_then_accepted():
    async with RealtimeServer() as server:
        server.inject("connect", Reject(status=429))
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url)
        assert refused.value.response.status_code == 429
        async with wired(server) as wire:
            await wire.until("session.created")
        assert (server.rejected_count, len(server.connections)) == (1, 1)


async def test_a_wrong_key_is_refused():
    async with RealtimeServer(api_key="right") as server:
        with pytest.raises(InvalidStatus):
            await connect(server.url, additional_headers={"Authorization": "Bearer wrong"})
        async with wired(server, additional_headers={"Authorization": "Bearer right"}) as wire:
            await wire.until("session.created")


async def test_a_request_that_is_never_answered_leaves_the_next_one_its_turn():
    async with RealtimeServer(["Second."]) as server, wired(server) as wire:
        server.inject("response.create", Discard())
        await wire.send("response.create")
        await wire.send("response.create")
        await wire.until("response.done")
        assert len(server.connections[0].get_received("response.create")) == 2
        assert len(server.connections[0].get_sent("response.created")) == 1


async def test_a_refused_response_names_the_request():
    async with RealtimeServer() as server, wired(server) as wire:
        server.inject("response.create", Reject(code="rate_limit_exceeded", message="slow down"))
        await wire.send("response.create", event_id="r1")
        error = (await wire.until("error"))["error"]
        assert (error["code"], error["message"], error["event_id"]) == ("rate_limit_exceeded", "slow down", "r1")


async def test_a_stalled_server_neither_reads_nor_answers_and_can_go_on():
    async with RealtimeServer() as server, wired(server) as wire:
        await wire.until("conversation.created")
        server.inject("input_audio_buffer.clear", Stall())
        await wire.send("input_audio_buffer.clear")
        connection = await server.wait_for_connection()
        await connection.wait_for_frame("input_audio_buffer.clear")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.socket.recv()
        audio = base64.b64encode(bytes(1_000_000)).decode()

        async def fill():
            for _ in range(50):
                await wire.send("input_audio_buffer.append", audio=audio)

        # What is not read fills the buffers, until sending stalls as well.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fill(), 0.3)
        connection.resume()
        await wire.until("input_audio_buffer.cleared")


async def test_a_fault_that_lasts_strikes_until_the_faults_are_cleared():
    async with RealtimeServer() as server:
        plan = server.inject("connect", Reject(), times=None)
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(server.url, proxy=None)
        server.clear_faults()
        async with wired(server) as wire:
            await wire.until("session.created")
        assert (plan.trigger_count, server.rejected_count, len(server.connections)) == (3, 3, 1)


async def test_a_fault_can_be_meant_for_one_connection():
    async with RealtimeServer() as server, wired(server) as first, wired(server) as second:
        server.inject("input_audio_buffer.clear", Disconnect(4000), connection=1)
        await first.until("session.created")
        await first.send("input_audio_buffer.clear")
        await first.until("input_audio_buffer.cleared")
        await second.send("input_audio_buffer.clear")
        with pytest.raises(ConnectionClosedError):
            await second.until("input_audio_buffer.cleared")


@pytest.mark.parametrize(
    ("on", "fault"),
    [
        ("response.created", Reject()),
        ("response.created", Collide()),
        ("response.create", Reorder(after="response.done")),
    ],
)
async def test_a_fault_that_cannot_happen_to_a_frame_is_refused_when_it_is_told(on, fault):
    with pytest.raises(ValueError, match="from the other side"):
        RealtimeServer().inject(on, fault)


async def test_a_client_that_reads_nothing_holds_up_neither_the_others_nor_the_end_of_the_server():
    talkative = ScriptedResponder(default="and so on " * 2000)
    async with AsyncExitStack() as held:
        server = await held.enter_async_context(RealtimeServer(talkative))
        deaf = await connect(server.url, compression=None, max_queue=1, ping_interval=None, proxy=None)
        await deaf.send('{"type": "response.create"}')
        first = await server.wait_for_connection()
        await first.wait_for_frame("response.create")
        async with wired(server) as wire:
            await wire.send("response.create")
            await wire.until("response.done")
        assert first.is_open
        assert not first.get_sent("response.done"), "the socket took everything: nobody was held up"
        before = time.monotonic()
    assert time.monotonic() - before < 2.5
    deaf.transport.abort()
    await deaf.wait_closed()


async def test_five_hundred_connections_live_in_one_process():
    async with RealtimeServer(ScriptedResponder(default="I hear you.")) as server:
        connecting, over = asyncio.Semaphore(50), asyncio.Event()

        async def live():
            async with AsyncExitStack() as held:
                async with connecting:
                    wire = await held.enter_async_context(wired(server, ping_interval=None))
                await wire.send("conversation.item.create", item=USER)
                await wire.send("response.create")
                done = await wire.until("response.done")
                await over.wait()
                return done["response"]["status"]

        before = time.process_time()
        lives = [asyncio.create_task(live()) for _ in range(500)]
        await server.wait_for_connection(500)
        assert len(server.open_connections) == 500
        over.set()
        assert set(await asyncio.gather(*lives)) == {"completed"}
        assert all(len(connection.conversation) == 2 for connection in server.connections)
        assert time.process_time() - before < 8, "clients and server together"
