"""Every fault that can be injected into the server, as a raw client sees it."""

import asyncio
import base64
import time
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from factories.realtime_protocol import USER, open_raw_client
from standfast.realtime.local.responder import Pause, ScriptedResponder
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Collide, Delay, Discard, Disconnect, Expire, Reject, Reorder, Stall


async def test_a_connection_is_closed_with_the_given_code_after_the_given_frame():
    async with RealtimeServer(["One two three."]) as server, open_raw_client(server) as client:
        server.inject("response.output_audio.delta", Disconnect(1011, "out of order"), skip=2)
        await client.send("response.create")
        with pytest.raises(ConnectionClosedError) as closed:
            await client.read_until("response.done")
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "out of order")
        assert sum(frame["type"] == "response.output_audio.delta" for frame in client.frames) == 2
        assert not server.connections[0].is_open


@pytest.mark.parametrize("code", [None, 1006])
async def test_a_connection_can_be_aborted_without_a_close_handshake(code):
    async with RealtimeServer() as server, open_raw_client(server) as client:
        await client.read_until("session.created")
        server.connections[0].close(code)
        with pytest.raises(ConnectionClosedError) as closed:
            await client.read_until("never")
        assert closed.value.rcvd is None


async def test_a_connection_can_be_aborted_at_a_client_event():
    async with RealtimeServer() as server, open_raw_client(server) as client:
        server.inject("conversation.item.create", Disconnect())
        await client.send("conversation.item.create", item=USER)
        with pytest.raises(ConnectionClosedError):
            await client.read_until("conversation.item.added")
        assert len(server.connections[0].conversation) == 0


async def test_a_delayed_frame_delays_the_frames_after_it():
    async with RealtimeServer(["Hm."]) as server, open_raw_client(server) as client:
        await client.read_until("conversation.created")
        server.inject("response.output_item.added", Delay(0.1))
        started_at = time.monotonic()
        await client.send("response.create")
        await client.read_until("response.created")
        assert (await client.read())["type"] == "response.output_item.added"
        assert time.monotonic() - started_at >= 0.09


async def test_frames_can_be_reordered():
    async with RealtimeServer(["Hm."]) as server, open_raw_client(server) as client:
        await client.read_until("conversation.created")
        server.inject("response.created", Reorder(after="response.content_part.added"))
        await client.send("response.create")
        types = await client.read_types_until("response.done")
        assert types.index("response.created") == types.index("response.content_part.added") + 1


async def test_speech_collides_with_the_request_of_the_client():
    async with RealtimeServer([[Pause(0.02), "Mine."]]) as server, open_raw_client(server) as client:
        server.inject("response.create", Collide())
        await client.send("response.create", event_id="late")
        other = (await client.read_until("response.created"))["response"]["id"]
        error = (await client.read_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "late")
        assert (await client.read_until("response.done"))["response"]["id"] == other


async def test_a_session_can_be_expired():
    async with RealtimeServer() as server, open_raw_client(server) as client:
        server.inject("conversation.item.added", Expire())
        await client.send("conversation.item.create", item=USER)
        assert (await client.read_until("error"))["error"]["code"] == "session_expired"


async def test_a_handshake_can_be_rejected_once():
    async with RealtimeServer() as server:
        server.inject("connect", Reject(status=429))
        with pytest.raises(InvalidStatus) as rejected:
            await connect(server.url)
        assert rejected.value.response.status_code == 429
        async with open_raw_client(server) as client:
            await client.read_until("session.created")
        assert (server.rejected_count, len(server.connections)) == (1, 1)


async def test_a_wrong_api_key_is_rejected():
    async with RealtimeServer(api_key="right") as server:
        with pytest.raises(InvalidStatus):
            await connect(server.url, additional_headers={"Authorization": "Bearer wrong"})
        async with open_raw_client(server, additional_headers={"Authorization": "Bearer right"}) as client:
            await client.read_until("session.created")


async def test_a_discarded_request_does_not_block_the_next():
    async with RealtimeServer(["Second."]) as server, open_raw_client(server) as client:
        server.inject("response.create", Discard())
        await client.send("response.create")
        await client.send("response.create")
        await client.read_until("response.done")
        assert len(server.connections[0].get_received("response.create")) == 2
        assert len(server.connections[0].get_sent("response.created")) == 1


async def test_a_rejected_request_is_named_in_the_error():
    async with RealtimeServer() as server, open_raw_client(server) as client:
        server.inject("response.create", Reject(code="rate_limit_exceeded", message="slow down"))
        await client.send("response.create", event_id="r1")
        error = (await client.read_until("error"))["error"]
        assert (error["code"], error["message"], error["event_id"]) == ("rate_limit_exceeded", "slow down", "r1")


async def test_a_stalled_server_neither_reads_nor_writes_until_it_resumes():
    async with RealtimeServer() as server, open_raw_client(server) as client:
        await client.read_until("conversation.created")
        server.inject("input_audio_buffer.clear", Stall())
        await client.send("input_audio_buffer.clear")
        connection = await server.wait_for_connection()
        await connection.wait_for_frame("input_audio_buffer.clear")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.socket.recv()
        audio = base64.b64encode(bytes(1_000_000)).decode()

        async def fill():
            for _ in range(50):
                await client.send("input_audio_buffer.append", audio=audio)

        # Unread data fills the buffers until sending blocks too.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fill(), 0.3)
        connection.resume()
        await client.read_until("input_audio_buffer.cleared")


async def test_a_permanent_fault_applies_until_faults_are_cleared():
    async with RealtimeServer() as server:
        plan = server.inject("connect", Reject(), times=None)
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(server.url, proxy=None)
        server.clear_faults()
        async with open_raw_client(server) as client:
            await client.read_until("session.created")
        assert (plan.trigger_count, server.rejected_count, len(server.connections)) == (3, 3, 1)


async def test_a_fault_can_be_limited_to_one_connection():
    async with RealtimeServer() as server, open_raw_client(server) as first, open_raw_client(server) as second:
        server.inject("input_audio_buffer.clear", Disconnect(4000), connection=1)
        await first.read_until("session.created")
        await first.send("input_audio_buffer.clear")
        await first.read_until("input_audio_buffer.cleared")
        await second.send("input_audio_buffer.clear")
        with pytest.raises(ConnectionClosedError):
            await second.read_until("input_audio_buffer.cleared")


@pytest.mark.parametrize(
    ("on", "fault"),
    [
        ("response.created", Reject()),
        ("response.created", Collide()),
        ("response.create", Reorder(after="response.done")),
    ],
)
async def test_a_fault_that_does_not_apply_to_a_frame_is_rejected(on, fault):
    with pytest.raises(ValueError, match=r"applies to events of the (client|server) only"):
        RealtimeServer().inject(on, fault)


async def test_a_client_that_does_not_read_blocks_neither_other_clients_nor_shutdown():
    long_answer = ScriptedResponder(default="and so on " * 800)
    async with asyncio.timeout(120), RealtimeServer(long_answer) as server:
        silent = await connect(server.url, compression=None, max_queue=1, ping_interval=None, proxy=None)
        await silent.send('{"type": "response.create"}')
        connection = await server.wait_for_connection()
        await connection.wait_for_frame("response.create")
        async with open_raw_client(server) as client:
            await client.send("response.create")
            await client.read_until("response.done")
        assert connection.is_open
        assert not connection.get_sent("response.done"), "the answer must be larger than the socket buffers"
    silent.transport.abort()
    await silent.wait_closed()


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.soak)])
async def test_many_connections_run_in_one_process(count):
    async with RealtimeServer(ScriptedResponder(default="Okay.")) as server:
        handshakes, finished = asyncio.Semaphore(50), asyncio.Event()

        async def chat():
            async with AsyncExitStack() as resources:
                async with handshakes:
                    client = await resources.enter_async_context(open_raw_client(server, ping_interval=None))
                await client.send("conversation.item.create", item=USER)
                await client.send("response.create")
                done = await client.read_until("response.done")
                await finished.wait()
                return done["response"]["status"]

        chats = [asyncio.create_task(chat()) for _ in range(count)]
        await server.wait_for_connection(count)
        assert len(server.open_connections) == count
        finished.set()
        assert set(await asyncio.gather(*chats)) == {"completed"}
        assert all(len(connection.conversation) == 2 for connection in server.connections)
