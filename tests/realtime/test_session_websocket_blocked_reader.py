"""A websocket connection that is lost while its reader is blocked, or whose server does not read."""

import asyncio

from factories.realtime import get_texts, open_websocket_session, wait_until
from standfast import function_tool
from standfast.realtime import RealtimeAgent, RealtimeModelListener
from standfast.realtime.local import CallTool
from standfast.testing import RealtimeServer


async def broken(server):
    """End the first connection; its reader is not there to notice."""
    connection = server.connections[0]
    connection.close()
    await wait_until(lambda: not connection.is_open)


async def test_an_output_of_a_blocking_tool_is_sent_to_the_next_connection():
    made = []

    @function_tool
    async def look() -> str:
        made.append(1)
        await broken(server)
        return "found"

    agent = RealtimeAgent(name="host", tools=[look])
    script = [CallTool("look", {}), "There it is."]
    async with (
        RealtimeServer(script) as server,
        open_websocket_session(server, agent, async_tool_calls=False) as (session, recorded),
    ):
        await session.send_message("look")
        await recorded.wait_for("reconnected")
        await wait_until(lambda: get_texts(session) == ["look", "There it is."])
        assert (made, session.history[1].output) == ([1], "found")


async def test_a_message_lost_while_the_reader_was_blocked_is_sent_to_the_next_connection():
    running, done = asyncio.Event(), asyncio.Event()

    @function_tool
    async def look() -> str:
        running.set()
        await done.wait()
        return "found"

    agent = RealtimeAgent(name="host", tools=[look])
    script = [CallTool("look", {}), "There it is.", "Anything else?"]
    async with (
        RealtimeServer(script) as server,
        open_websocket_session(server, agent, async_tool_calls=False) as (session, recorded),
    ):
        await session.send_message("look")
        await running.wait()
        await broken(server)
        await session.send_message("well?")
        await recorded.wait_for("reconnected")
        done.set()
        await wait_until(lambda: "well?" in get_texts(session) and session.history[1].output == "found")


async def test_a_listener_that_speaks_over_a_broken_connection_does_not_keep_it_from_being_replaced():
    class Stubborn(RealtimeModelListener):
        async def on_event(self, event):
            if event.type == "turn_ended" and len(server.connections) == 1:
                await broken(server)
                while True:
                    await session.send_audio(b"\0" * 100_000)

    agent = RealtimeAgent(name="host")
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, agent) as (session, recorded):
        session.model.add_listener(Stubborn())
        await session.send_message("first")
        await recorded.wait_for("reconnected")
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["first", "One.", "second", "Two."]


async def test_an_interruption_returns_although_the_server_does_not_read():
    async with (
        RealtimeServer(["One two three four five. " * 40], pace=1.0) as server,
        open_websocket_session(server, RealtimeAgent(name="host"), {"ping_interval": None}) as (session, recorded),
    ):
        await session.send_message("count")
        await recorded.wait_for("audio")
        server.connections[0].stall()
        # More than the buffers between both, so that what follows is not written.
        talking = asyncio.ensure_future(session.send_audio(bytes(16 * 2**20)))
        await asyncio.sleep(0)
        await asyncio.wait_for(session.interrupt(), 60)
        await recorded.wait_for("error")
        assert not talking.done()
        talking.cancel()
        await asyncio.wait([talking])
