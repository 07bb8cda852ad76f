"""Reconnects that the server or the API key does not permit."""

import pytest

from factories.realtime import get_texts, open_websocket_session, record_events, wait_until
from standfast.realtime import (
    ApiKeyMissing,
    ConnectFailed,
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeRunner,
    RealtimeState,
)
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Reject

AGENT = RealtimeAgent(name="host")


async def dropped(server, api_key):
    """How a call ends that is entered with this key and loses its connection."""
    runner = RealtimeRunner(AGENT, model=OpenAIRealtimeWebSocketModel(), config={"reconnect": {"initial_delay": 0.01}})
    session = await runner.run(model_config={"url": server.url, "api_key": api_key})
    async with record_events(session) as recorded, session:
        server.connections[0].close()
        await wait_until(lambda: recorded.of_type("reconnected") or recorded.of_type("session_closed"))
        return session, recorded


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_rejects_the_credential_is_tried_once(status):
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("connect", Reject(status=status), times=None)
        server.connections[0].close()
        report = (await recorded.wait_for("session_closed")).report
        assert (report.reason, type(report.error), report.error.status) == ("failed", ConnectFailed, status)
        assert (server.rejected_count, [event.attempt for event in recorded.of_type("reconnecting")]) == (1, [1])
        with pytest.raises(ConnectFailed):
            await anext(session.events())


async def test_a_missing_api_key_ends_the_call_at_once():
    keys = ["first"]
    async with RealtimeServer() as server:
        session, recorded = await dropped(server, lambda: keys.pop() if keys else "")
        assert session.state is RealtimeState.CLOSED
        assert isinstance(recorded.of_type("session_closed")[0].report.error, ApiKeyMissing)
        assert len(recorded.of_type("reconnecting")) == 1


async def test_an_api_key_function_that_fails_temporarily_is_called_again():
    asked = []

    async def key():
        asked.append(1)
        if len(asked) in (2, 3):
            raise ConnectionError("nobody answers who has the keys")
        return "test"

    async with RealtimeServer(api_key="test") as server:
        _session, recorded = await dropped(server, key)
        assert (recorded.of_type("reconnected")[0].attempts, len(asked)) == (3, 4)


async def test_a_rejected_message_is_not_resent_to_the_next_connection():
    async with (
        RealtimeServer(["One.", "To what?", "Three."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await session.send_message("one")
        await recorded.wait_for("agent_end")
        server.inject("conversation.item.create", Reject())
        await session.send_message("two")
        await recorded.wait_for("agent_end", 2)
        await session.send_message("three")
        await recorded.wait_for("agent_end", 3)
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        await session.update_agent(AGENT)  # Its acknowledgement follows those of all earlier frames.
        assert get_texts(session) == ["one", "One.", "To what?", "three", "Three."]
        assert server.connections[1].get_received("response.create") == []


async def test_a_message_whose_send_failed_requests_no_response():
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, recorded):
        with pytest.raises(ValueError, match="surrogates"):
            await session.send_message("half a character: \ud83d")
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        await session.update_agent(AGENT)
        assert server.connections[1].get_received("response.create") == []
