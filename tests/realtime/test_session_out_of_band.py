"""Out-of-band responses (``conversation: none``) of a session."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from factories.realtime import record_events, wait_until
from standfast import function_tool
from standfast.realtime import (
    AcknowledgementTimeout,
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimeRunner,
    ResponseRefused,
)
from standfast.realtime.local import CallTool, Say
from standfast.realtime.openai._protocol.response_queue import REQUESTERS_KEY
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Discard, Disconnect

LONG = "This answer takes a while, so that other things can happen while it is being said."
MADE = []


@function_tool
async def look_up() -> str:
    MADE.append("look_up")
    return "found"


AGENT = RealtimeAgent(name="host", tools=[look_up])


class ByTopic:
    """Answers the conversation turn by turn, and an out-of-band request by its instructions."""

    def __init__(self, *turns):
        self._turns = list(turns)

    async def respond(self, request):
        said = request.instructions if request.instructions.startswith("aside") else self._turns.pop(0)
        yield said if isinstance(said, CallTool) else Say(said)


@asynccontextmanager
async def calling(server, **transport):
    model = OpenAIRealtimeWebSocketModel(transport_config=transport)
    session = await RealtimeRunner(AGENT, model=model).run(model_config={"url": server.url, "api_key": "test"})
    async with record_events(session) as recorded, session:
        yield session, recorded


async def ask_aside(session, topic, **more):
    wanted = {
        "conversation": "none",
        "metadata": {"topic": topic},
        "instructions": f"aside {topic}",
        "output_modalities": ["text"],
        **more,
    }
    message = {"type": "response.create", "other_data": {"response": wanted, "event_id": f"ask_{topic}"}}
    await session.model.send_event(RealtimeModelSendRawMessage(message))


def raw(recorded, kind):
    sent = [event.data.data for event in recorded.of_type("raw_model_event") if event.data.type == "raw_server_event"]
    return [message for message in sent if message["type"] == kind]


def answered_aside(recorded, topic):
    done = [message["response"] for message in raw(recorded, "response.done")]
    return [response for response in done if (response["metadata"] or {}).get("topic") == topic]


def words(session):
    return [part.transcript for item in session.history if item.role == "assistant" for part in item.content]


async def test_an_out_of_band_response_neither_waits_for_the_active_one_nor_affects_it():
    async with RealtimeServer(ByTopic(LONG), pace=4.0) as server, calling(server) as (session, recorded):
        await session.send_message("Tell me.")
        await recorded.wait_for("audio")
        await asyncio.gather(ask_aside(session, "mood"), ask_aside(session, "language"))
        mood = await wait_until(lambda: answered_aside(recorded, "mood"))
        language = await wait_until(lambda: answered_aside(recorded, "language"))
        assert recorded.of_type("agent_end") == []
        assert mood[0]["output"][0]["content"][0]["text"] == "aside mood"
        assert language[0]["output"][0]["content"][0]["text"] == "aside language"
        end = await recorded.wait_for("agent_end")
        assert end.status == "completed"
        assert [event.response_id for event in recorded.of_type("agent_start")] == [end.response_id]
        assert words(session) == [LONG]
        assert [item.item_id for item in session.history] == [item.id for item in server.connections[0].conversation]
        assert len(recorded.of_type("usage")) == session.metrics.usage.requests == 3


async def test_the_end_of_an_out_of_band_response_does_not_start_a_second_answer():
    async with RealtimeServer(ByTopic(LONG, "Second."), pace=4.0) as server, calling(server) as (session, recorded):
        await session.send_message("Tell me.")
        await recorded.wait_for("audio")
        await ask_aside(session, "mood")
        await wait_until(lambda: answered_aside(recorded, "mood"))
        await session.send_message("And then?")
        await recorded.wait_for("agent_end", 2)
        assert words(session) == [LONG, "Second."]
        assert server.connections[0].get_sent("error") == []


async def test_an_interruption_does_not_stop_out_of_band_responses():
    async with RealtimeServer(ByTopic(LONG), pace=4.0) as server, calling(server) as (session, recorded):
        await session.send_message("Tell me.")
        await recorded.wait_for("audio")
        await ask_aside(session, "summary", output_modalities=["audio"])
        await wait_until(lambda: len(raw(recorded, "response.created")) == 2)
        await session.interrupt()
        assert (await recorded.wait_for("agent_end")).status == "cancelled"
        (summary,) = await wait_until(lambda: answered_aside(recorded, "summary"))
        assert summary["status"] == "completed"
        assert {event.response_id for event in recorded.of_type("agent_start")} == {
            event.audio.response_id for event in recorded.of_type("audio")
        }


async def test_a_tool_call_of_an_out_of_band_response_is_not_made():
    MADE.clear()
    responder = ByTopic(CallTool("look_up"), "Hello.")
    async with RealtimeServer(responder) as server, calling(server) as (session, recorded):
        await ask_aside(session, "plan", instructions="plan")
        (plan,) = await wait_until(lambda: answered_aside(recorded, "plan"))
        assert plan["output"][0]["type"] == "function_call"
        await session.send_message("Hi.")
        await recorded.wait_for("agent_end")
        assert MADE == []
        assert recorded.of_type("error") == []
        assert [item.role for item in session.history if item.type == "message"] == ["user", "assistant"]
        assert len(session.history) == 2


async def test_a_rejected_out_of_band_response_is_reported_to_its_requester():
    async with RealtimeServer(ByTopic("Hello.")) as server, calling(server) as (session, recorded):
        await ask_aside(session, "mood", input=[{"type": "item_reference", "id": "nowhere"}])
        refused = (await recorded.wait_for("error")).error
        assert isinstance(refused, ResponseRefused)
        assert refused.requesters == ("raw",)
        await session.send_message("Hi.")
        await recorded.wait_for("agent_end")


async def test_an_out_of_band_response_that_never_begins_is_reported():
    async with RealtimeServer(ByTopic("Hello.")) as server:
        server.inject("response.create", Discard())
        async with calling(server, acknowledge_timeout=1.0) as (session, recorded):
            await ask_aside(session, "mood")
            refused = (await recorded.wait_for("error")).error
            assert isinstance(refused, ResponseRefused)
            assert isinstance(refused.error, AcknowledgementTimeout)
            assert len(server.connections[0].get_received("response.create")) == 1


WISHES = {"instructions": "aside rhyme", "metadata": {"topic": "rhyme"}}


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ({"conversation": "none", **WISHES}, ("response.create", Discard())),
        (WISHES, ("response.create", Discard())),
        (WISHES, ("response.output_item.added", Disconnect())),
    ],
    ids=["aside", "with wishes", "with wishes and begun"],
)
async def test_a_plain_response_does_not_answer_a_request_with_options(wanted, fault):
    async with RealtimeServer(ByTopic("Hello.")) as server, calling(server) as (session, recorded):
        server.inject(*fault)
        message = {"type": "response.create", "other_data": {"response": wanted}}
        await session.model.send_event(RealtimeModelSendRawMessage(message))
        first = server.connections[0]
        await first.wait_for_frame("response.create")
        if isinstance(fault[1], Discard):
            first.close()
        await recorded.wait_for("reconnected")
        await session.send_message("Hi.")
        await recorded.wait_for("agent_end", len(recorded.of_type("agent_end")) + 1)
        asked = [
            frame["response"]["metadata"][REQUESTERS_KEY]
            for frame in server.connections[1].get_received("response.create")
        ]
        assert asked == ["user"]
        assert words(session) == ["Hello."]


async def test_a_plain_response_requested_by_a_raw_message_is_requested_until_it_starts():
    async with RealtimeServer(ByTopic("Hello.")) as server, calling(server) as (session, recorded):
        server.inject("response.create", Disconnect(), times=2)
        await session.model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await recorded.wait_for("agent_end")
        assert words(session) == ["Hello."]
        assert len(server.connections) == 3
