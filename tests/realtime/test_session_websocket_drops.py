"""Websocket connections that are lost: idle, or during a response, a tool call or a handoff."""

import asyncio

import pytest

from factories.realtime import get_texts, interrupt, open_websocket_session, send_speech, wait_until
from factories.realtime_protocol import make_speech
from standfast import function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent
from standfast.realtime.local import CallTool, ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Collide, Discard, Disconnect, Reject

AGENT = RealtimeAgent(name="host")
LONG = "One two three four five six seven eight nine ten."


def list_items(connection):
    return [(item["type"], item.get("role")) for item in connection.conversation.items]


async def test_a_text_turn_over_a_real_connection():
    async with (
        RealtimeServer(["Good morning to you."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await session.send_message("hello")
        await recorded.wait_for("agent_end")
        assert [item.role for item in session.history] == ["user", "assistant"]
        assert session.history[1].content[0].transcript == "Good morning to you."
        assert recorded.of_type("audio")
        assert session.usage.requests == 1


async def test_a_drop_between_two_turns_over_a_real_connection():
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("first")
        await recorded.wait_for("agent_end")
        server.connections[0].close(1011)
        await recorded.wait_for("reconnected")
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        messages = [("message", "user"), ("message", "assistant")]
        assert list_items(server.connections[1]) == messages * 2
        assert [item.item_id for item in session.history] == [e.id for e in server.connections[1].conversation]


async def test_a_response_that_is_requested_again_is_not_reported_as_refused():
    async with RealtimeServer(["An answer."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.create", Disconnect())
        await session.send_message("first")
        await recorded.wait_for("agent_end")
        assert (get_texts(session), recorded.of_type("error")) == (["first", "An answer."], [])


@pytest.mark.parametrize("code", [None, 1000, 1011])
async def test_an_unheard_answer_is_requested_again(code):
    async with (
        RealtimeServer(["Never heard.", "An answer."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject("response.output_item.added", Disconnect(code))
        await session.send_message("first")
        await recorded.wait_for("reconnected")
        assert (await recorded.wait_for("response_failed")).status == "lost"
        await recorded.wait_for("agent_end", 2)
        assert [event.status for event in recorded.of_type("agent_end")] == ["lost", "completed"]
        assert get_texts(session) == ["first", "An answer."]
        assert list_items(server.connections[1]) == [("message", "user"), ("message", "assistant")]


async def test_the_heard_part_of_an_answer_is_kept_and_the_answer_not_requested_again():
    async with (
        RealtimeServer(["One two three four.", "Five."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject("response.output_audio_transcript.delta", Disconnect(1011), skip=2)
        await session.send_message("first")
        await recorded.wait_for("reconnected")
        assert (await recorded.wait_for("agent_end")).status == "lost"
        assert (get_texts(session), session.history[-1].status) == (["first", "One two"], "incomplete")
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["first", "One two", "second", "Five."]
        assert [item.status for item in session.history if item.role == "assistant"] == ["incomplete", "completed"]
        assert len(server.connections[1].get_received("response.create")) == 1


async def test_a_question_that_waited_for_another_answer_is_answered_by_the_next_connection():
    async with (
        RealtimeServer(["Not to that.", "To that."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject("response.create", Collide())
        server.inject("response.done", Disconnect(1011))
        await session.send_message("first")
        await recorded.wait_for("reconnected")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["first", "Not to that.", "To that."]
        assert len(server.connections[1].get_received("response.create")) == 1


async def test_an_unconfirmed_message_beside_a_response_is_sent_to_the_next_connection():
    async with (
        RealtimeServer(["One.", "Unasked.", "Two."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await session.send_message("first")
        await recorded.wait_for("agent_end")
        server.inject("conversation.item.create", Collide())
        server.inject("conversation.item.create", Disconnect(1011))
        await session.send_message("second")
        await recorded.wait_for("reconnected")
        await wait_until(lambda: get_texts(session)[-2:] == ["second", "Two."])


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "input_text", "text": "It's\ntwo lines."}],
        [{"type": "input_text", "text": "One."}, {"type": "input_text", "text": "Two."}],
        [{"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}],
    ],
    ids=["lines", "parts", "picture"],
)
async def test_a_message_that_the_server_has_is_not_sent_twice(parts):
    async with RealtimeServer(["An answer."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.create", Disconnect(1011))
        await session.send_message({"type": "message", "role": "user", "content": parts})
        await recorded.wait_for("agent_end")
        assert [item.role for item in session.history] == ["user", "assistant"]
        assert list_items(server.connections[1]) == [("message", "user"), ("message", "assistant")]


async def test_a_server_that_hangs_is_noticed_and_replaced():
    transport = {"ping_interval": 0.05, "ping_timeout": 0.1, "close_timeout": 0.1}
    async with (
        RealtimeServer(["One."]) as server,
        open_websocket_session(server, AGENT, transport) as (session, recorded),
    ):
        server.connections[0].stall()
        await session.send_message("hello?")
        assert (await recorded.wait_for("reconnected")).attempts == 1
        await recorded.wait_for("agent_end")
        assert get_texts(session) == ["hello?", "One."]


async def test_an_interruption_whose_connection_is_lost_returns():
    async with (
        RealtimeServer([LONG, "Two."], pace=1.0) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject("response.cancel", Disconnect())
        await session.send_message("first")
        await recorded.wait_for("audio")
        await interrupt(session, recorded)
        audio = len(recorded.of_type("audio"))
        await recorded.wait_for("reconnected")
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert (get_texts(session)[0], get_texts(session)[-2:]) == ("first", ["second", "Two."])
        assert audio == len(
            [event for event in recorded.of_type("audio") if event.audio.response_id == first_response(recorded)]
        )


def first_response(recorded):
    return recorded.of_type("agent_start")[0].response_id


async def test_a_user_who_was_speaking_is_heard_by_the_next_connection():
    transcriber = ScriptedTranscriber(["Hello?"])
    async with (
        RealtimeServer(["Yes?"], transcriber=transcriber) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        voice = await make_speech()
        await send_speech(session, voice[: len(voice) // 2])
        await wait_until(lambda: server.connections[0].get_sent("input_audio_buffer.speech_started"))
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        await send_speech(session, voice)
        await recorded.wait_for("agent_end")
        assert get_texts(session) == ["Hello?", "Yes?"]
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("decided", ["before", "after", "never"])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_waits_for_a_person_outlives_the_connection(decided, approved):
    made = []

    @function_tool(needs_approval=True)
    async def delete() -> str:
        made.append(1)
        return "deleted"

    agent = RealtimeAgent(name="a", tools=[delete])
    config = {"reconnect": {"initial_delay": 0.2 if decided == "before" else 0.01}}
    async with (
        RealtimeServer([CallTool("delete"), "As you say."]) as server,
        open_websocket_session(server, agent, **config) as (
            session,
            recorded,
        ),
    ):
        await session.send_message("Delete it.")
        asked = await recorded.wait_for("tool_approval_required")
        await recorded.wait_for("agent_end")
        server.connections[0].close()
        await recorded.wait_for("reconnecting" if decided == "before" else "reconnected")
        if decided != "never":
            decide = session.approve_tool_call if approved else session.reject_tool_call
            assert await decide(asked.call_id)
            await recorded.wait_for("agent_end", 2)
            assert (get_texts(session)[-1], len(recorded.of_type("tool_end"))) == ("As you say.", 1)
            answers = [
                item for item in server.connections[1].conversation.items if item["type"] == "function_call_output"
            ]
            assert len(answers) == 1
        assert len(recorded.of_type("tool_approval_required")) == 1
        report = await session.close()
    assert report.pending_approvals == ((asked.call_id,) if decided == "never" else ())
    assert len(made) == (approved and decided != "never")


async def test_a_drop_while_a_tool_runs_over_a_real_connection():
    gate, made = asyncio.Event(), []

    @function_tool
    async def slow() -> str:
        made.append(1)
        await gate.wait()
        return "forty-two"

    agent = RealtimeAgent(name="a", tools=[slow])
    async with (
        RealtimeServer([CallTool("slow"), "It is forty-two."]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        await session.send_message("ask")
        await recorded.wait_for("tool_start")
        await recorded.wait_for("agent_end")
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        gate.set()
        await recorded.wait_for("agent_end", 2)
        assert list_items(server.connections[1]) == [
            ("message", "user"),
            ("function_call", None),
            ("function_call_output", None),
            ("message", "assistant"),
        ]
        assert session.history[-1].content[0].transcript == "It is forty-two."
        assert recorded.of_type("error") == []
    assert made == [1]


async def test_a_refused_reconnection_is_tried_again_over_a_real_connection():
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (_session, recorded):
        server.inject("connect", Reject(status=503), times=2)
        server.connections[0].close()
        assert (await recorded.wait_for("reconnected")).attempts == 3
        assert server.rejected_count == 2


async def test_a_handoff_over_a_real_connection_survives_a_drop_before_its_acknowledgement():
    other = RealtimeAgent(name="other", instructions="I am another.")
    agent = RealtimeAgent(name="a", handoffs=[other])
    async with (
        RealtimeServer([CallTool("transfer_to_other"), "Hello from another."]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        server.inject("session.updated", Disconnect(1011), connection=0)
        await session.send_message("transfer me")
        await recorded.wait_for("handoff")
        await recorded.wait_for("agent_end", 2)
        assert session.current_agent is other
        assert server.connections[1].session["instructions"] == "I am another."
        assert session.history[-1].content[0].transcript == "Hello from another."


@pytest.mark.parametrize("moment", ["session.update", "session.updated"])
async def test_an_update_of_the_agent_whose_connection_is_lost_is_completed_by_the_next(moment):
    other = RealtimeAgent(name="other", instructions="I am another.")
    async with RealtimeServer(["Hello."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject(moment, Disconnect(1011), connection=0)
        await session.update_agent(other)
        assert (session.current_agent, len(recorded.of_type("agent_changed"))) == (other, 1)
        assert server.connections[1].session["instructions"] == "I am another."
        await session.send_message("hello")
        assert (await recorded.wait_for("agent_end")).agent is other


async def test_the_follow_up_to_a_trip_is_sent_to_the_next_connection_once():
    @output_guardrail(name="discretion")
    async def discreet(context, agent, output):
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    config = {"guardrails_settings": {"debounce_text_length": 5}}
    turns = ["the secret is out of the bag", "I am sorry."]
    async with (
        RealtimeServer(turns, pace=2.0) as server,
        open_websocket_session(server, agent, **config) as (session, recorded),
    ):
        server.inject("response.cancel", Disconnect(1011))
        await session.send_message("Tell me.")
        await recorded.wait_for("reconnected")
        await recorded.wait_for("agent_end", 2)
        assert len(recorded.of_type("guardrail_tripped")) == 1
        assert get_texts(session).count("guardrail triggered: discretion") == 1
        assert get_texts(session)[-1] == "I am sorry."


async def test_messages_between_two_connections_follow_the_messages_that_were_lost():
    config = {"reconnect": {"initial_delay": 0.2}}
    async with (
        RealtimeServer(["Yes."] * 9) as server,
        open_websocket_session(server, AGENT, **config) as (session, recorded),
    ):
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end")
        server.inject("conversation.item.create", Discard(), times=3, connection=0)
        for words in ("one", "two", "three"):
            await session.send_message(words)
        server.connections[0].close()
        await recorded.wait_for("reconnecting")
        await session.send_message("four")
        await session.send_message("five")
        await wait_until(lambda: {"three", "five"} <= set(get_texts(session)))
        asked = [item.content[0].text for item in session.history if item.role == "user"]
        assert asked == ["Hello?", "one", "two", "three", "four", "five"]
