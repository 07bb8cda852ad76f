"""Sessions over a real websocket to a misbehaving server."""

import asyncio
import base64

import pytest

from factories.realtime import WAIT_TIMEOUT, EventRecorder, get_texts, open_websocket_session, send_speech, wait_until
from factories.realtime_protocol import make_speech
from standfast import function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner, RealtimeState
from standfast.realtime.errors import AcknowledgementTimeout, BadFrame, SettingsRejected
from standfast.realtime.local import CallTool, Pause, ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Collide, Delay, Discard, Disconnect, Insert, Reject

AGENT = RealtimeAgent(name="host", instructions="I am the host.")
OTHER = RealtimeAgent(name="other", instructions="I am another.")


async def test_closing_keeps_its_deadline_when_the_server_hangs():
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, _recorded):
        server.connections[0].stall()
        report = await asyncio.wait_for(session.close(deadline=0.5), WAIT_TIMEOUT)
        assert report.cancelled in (("model",), ("connection",))
        assert session.state is RealtimeState.CLOSED


@pytest.mark.parametrize(("hangs", "cut"), [(True, ("connection",)), (False, ())])
async def test_closing_reports_a_missing_close_handshake(hangs, cut):
    options = {"close_timeout": 0.2}
    async with (
        RealtimeServer() as server,
        open_websocket_session(server, AGENT, transport=options) as (session, _recorded),
    ):
        if hangs:
            server.connections[0].stall()
        report = await session.close()
        assert (report.cancelled, report.still_running) == (cut, ())


@pytest.mark.parametrize("who", ["tool", "listener"])
async def test_a_call_may_be_ended_from_inside(who):
    @function_tool
    async def hang_up() -> str:
        await session.close()
        return "never said"

    class Ear:
        async def on_event(self, event):
            if event.type == "function_call" and who == "listener":
                await session.close()

    agent = RealtimeAgent(name="a", tools=[hang_up])
    async with (
        RealtimeServer([CallTool("hang_up")]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        session.model.add_listener(Ear())
        await session.send_message("Goodbye.")
        report = (await recorded.wait_for("session_closed")).report
        assert (report.cancelled, report.still_running) == ((), ())
        assert session.state is RealtimeState.CLOSED


@pytest.mark.parametrize("frame", ["{no json", {"type": "future.event", "event_id": "e"}, {"type": "response.done"}])
async def test_unknown_frames_do_not_disturb_the_session(frame):
    async with RealtimeServer(["Still here."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.created", Insert(frame))
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end")
        assert session.history[-1].content[0].transcript == "Still here."
        known = isinstance(frame, dict) and frame["type"] == "future.event"
        assert len(recorded.of_type("error")) == (0 if known else 1)


@pytest.mark.parametrize(
    ("kind", "place"),
    [("conversation.item.input_audio_transcription.completed", 0), ("response.output_audio_transcript.done", 1)],
)
async def test_deltas_that_are_not_text_do_not_corrupt_the_history(kind, place):
    transcriber = ScriptedTranscriber(["Hello?"])
    async with (
        RealtimeServer(["One.", "Two."], transcriber=transcriber) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await send_speech(session, await make_speech())
        answered = await recorded.wait_for("agent_end")
        await wait_until(lambda: get_texts(session) == ["Hello?", "One."])
        names = {"item_id": session.history[place].item_id, "response_id": answered.response_id}
        server.connections[0].send({"type": kind, "event_id": "e", **names, "transcript": 5})
        assert isinstance((await recorded.wait_for("error")).error, BadFrame)
        assert get_texts(session) == ["Hello?", "One."]
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        await session.send_message("Still there?")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["Hello?", "One.", "Still there?", "Two."]


ITEM = {"id": "i1", "type": "message", "role": "assistant", "content": []}


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "response.output_item.added", "response_id": {}, "item": ITEM},
        {"type": "conversation.item.added", "previous_item_id": [], "item": ITEM},
        {"type": "response.output_text.done", "response_id": "r1", "item_id": [], "text": "Hello."},
        {"type": "response.created", "response": {"id": 5}},
    ],
    ids=lambda frame: frame["type"],
)
async def test_a_name_that_is_not_text_invalidates_one_frame(frame):
    async with RealtimeServer(["One."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.connections[0].send({"event_id": "e", **frame})
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end")
        assert get_texts(session) == ["Hello?", "One."]
        assert [type(event.error) for event in recorded.of_type("error")] == [BadFrame]


async def test_the_result_of_a_tool_is_spoken_although_another_response_came_first():
    @function_tool
    async def ask() -> str:
        return "forty-two"

    agent = RealtimeAgent(name="a", tools=[ask])
    turns = [CallTool("ask"), "Meanwhile.", "It is forty-two."]
    async with RealtimeServer(turns) as server, open_websocket_session(server, agent) as (session, recorded):
        server.inject("response.create", Collide(), skip=1)
        await session.send_message("What is it?")
        await recorded.wait_for("agent_end", 3)
        assert [item.content[0].transcript for item in session.history[-2:]] == ["Meanwhile.", "It is forty-two."]


async def test_the_agent_stays_if_the_server_refuses_the_settings():
    async with RealtimeServer(["Hello."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("session.update", Reject())
        with pytest.raises(SettingsRejected):
            await session.update_agent(OTHER)
        assert session.current_agent is AGENT
        assert server.connections[0].session["instructions"] == "I am the host."
        await session.update_agent(OTHER)
        assert server.connections[0].session["instructions"] == "I am another."
        assert len(recorded.of_type("agent_changed")) == 1


@pytest.mark.parametrize("lost", [False, True])
async def test_an_agent_without_a_prompt_does_not_continue_with_that_of_another(lost):
    prompted = RealtimeAgent(name="prompted", prompt={"id": "pmpt_front"})
    plain = RealtimeAgent(name="plain", instructions="I am plain.")
    async with (
        RealtimeServer() as server,
        open_websocket_session(server, plain, {"acknowledge_timeout": 0.5}) as (session, _),
    ):
        (connection,) = server.connections
        if lost:
            server.inject("session.updated", Discard())
            with pytest.raises(AcknowledgementTimeout):
                await session.update_agent(prompted)
        else:
            await session.update_agent(prompted)
            assert connection.session["prompt"] == {"id": "pmpt_front"}
            await session.update_agent(plain)
        assert connection.session["prompt"] is None
        assert "prompt" not in connection.get_received("session.update")[0]["session"], "no need to say so before"


async def test_rejected_settings_without_a_waiter_are_an_error_event():
    raw = {"type": "session.update", "other_data": {"session": {"instructions": "Be brief."}}}
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("session.update", Reject(message="not this"))
        await session.model.send_event(RealtimeModelSendRawMessage(raw))
        assert (await recorded.wait_for("error")).error["message"] == "not this"
        await session.update_agent(OTHER)
        assert server.connections[0].session["instructions"] == "I am another."


async def test_settings_that_are_not_acknowledged_are_reverted():
    transport = {"acknowledge_timeout": 1.0}
    async with RealtimeServer() as server, open_websocket_session(server, AGENT, transport) as (session, _recorded):
        server.inject("session.updated", Discard())
        with pytest.raises(AcknowledgementTimeout):
            await session.update_agent(OTHER)
        assert session.current_agent is AGENT
        assert server.connections[0].session["instructions"] == "I am the host."


@pytest.mark.parametrize("attempts", [6, 0])
async def test_a_connection_that_refuses_the_old_settings_is_replaced(attempts):
    transport, reconnect = {"acknowledge_timeout": 0.5}, {"initial_delay": 0.01, "attempts": attempts}
    async with (
        RealtimeServer() as server,
        open_websocket_session(server, AGENT, transport, reconnect=reconnect) as (session, recorded),
    ):
        server.inject("session.updated", Discard())
        server.inject("session.update", Reject(), skip=1)
        with pytest.raises(AcknowledgementTimeout):
            await session.update_agent(OTHER)
        assert session.current_agent is AGENT
        if attempts:
            await recorded.wait_for("reconnected")
            assert server.connections[1].session["instructions"] == "I am the host."
        else:  # It may not be replaced: an error is emitted and the session continues.
            [error] = recorded.of_type("error")
            assert isinstance(error.error, SettingsRejected)
            assert session.state is RealtimeState.OPEN


async def test_a_late_acknowledgement_does_not_acknowledge_settings_that_are_then_refused():
    transport = {"acknowledge_timeout": 1.0}
    async with RealtimeServer() as server, open_websocket_session(server, AGENT, transport) as (session, recorded):
        server.inject("session.updated", Delay(1.25))
        server.inject("session.updated", Delay(0.25), skip=1)
        server.inject("session.update", Reject(), skip=2)
        with pytest.raises(AcknowledgementTimeout):
            await session.update_agent(OTHER)
        with pytest.raises(SettingsRejected):
            await session.update_agent(OTHER)
        assert session.current_agent is AGENT
        assert recorded.of_type("agent_changed") == []
        assert server.connections[0].session["instructions"] == "I am the host."


async def test_an_expired_session_continues_over_the_next_connection():
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("First.")
        await recorded.wait_for("agent_end")
        server.connections[0].expire()
        await recorded.wait_for("reconnected")
        await session.send_message("Second.")
        await recorded.wait_for("agent_end", 2)
        assert session.history[-1].content[0].transcript == "Two."


async def test_a_failed_response_is_reported_with_its_reason():
    async with (
        RealtimeServer([ValueError("out of order"), "Better."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await session.send_message("Hello?")
        failed = await recorded.wait_for("response_failed")
        assert (failed.status, "out of order" in str(failed.error)) == ("failed", True)
        await session.send_message("Again?")
        await recorded.wait_for("agent_end", 2)
        assert session.history[-1].content[0].transcript == "Better."


async def test_a_trip_over_the_wire_cancels_and_is_followed_by_one_response():
    @output_guardrail(name="discretion")
    async def discreet(context, agent, output):
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    turns = [["the secret is ", Pause(0.2), "out of the bag and everybody knows"], "I am sorry."]
    settings = {"debounce_text_length": 5}
    async with (
        RealtimeServer(turns) as server,
        open_websocket_session(server, agent, guardrails_settings=settings) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await recorded.wait_for("agent_end", 2)
        connection = server.connections[0]
        assert len(recorded.of_type("guardrail_tripped")) == len(connection.get_received("response.cancel")) == 1
        assert len(connection.get_received("response.create")) == 2
        assert session.history[-2].content[0].text == "guardrail triggered: discretion"
        assert session.history[-1].content[0].transcript == "I am sorry."


async def test_a_drop_in_the_middle_of_the_replay_begins_it_again():
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("First.")
        await recorded.wait_for("agent_end")
        server.inject("conversation.item.create", Disconnect(1011), connection=1)
        server.connections[0].close()
        await server.wait_for_connection(3)
        await recorded.wait_for("reconnected")
        await session.send_message("Second.")
        await recorded.wait_for("agent_end", 2)
        roles = [item.get("role") for item in server.connections[-1].conversation.items]
        assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.soak)])
async def test_many_calls_at_a_time_are_closed_without_cancelling_anything(count):
    async with RealtimeServer() as server:
        runner = RealtimeRunner(AGENT)
        config = {"url": server.url, "api_key": "test"}
        sessions = [await runner.run(model_config=config) for _ in range(count)]
        for start in range(0, count, 50):
            await asyncio.gather(*(session.enter() for session in sessions[start : start + 50]))
        ears = [EventRecorder() for _ in sessions]
        tasks = [asyncio.ensure_future(ear.listen(one)) for ear, one in zip(ears, sessions, strict=True)]
        await asyncio.gather(*(session.send_message("Hello") for session in sessions))
        await asyncio.gather(*(ear.wait_for("agent_end") for ear in ears))
        reports = await asyncio.gather(*(session.close(deadline=WAIT_TIMEOUT) for session in sessions))
        await asyncio.gather(*tasks)
        assert all((report.cancelled, report.still_running) == ((), ()) for report in reports)


async def test_large_pieces_that_an_iterator_leaves_unread_stay_within_a_number_of_bytes():
    mebibyte = base64.b64encode(bytes(2**20)).decode()
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, recorded):
        slow, connection = session.events(), server.connections[0]
        for number in range(20):
            part = {"response_id": "r", "item_id": f"i{number}", "output_index": 0, "content_index": 0}
            connection.send({"type": "response.output_audio.delta", "delta": mebibyte, **part})
        connection.send({"type": "response.done", "response": {"id": "r", "status": "completed"}})
        await recorded.wait_for("agent_end")
        seen = [await anext(slow)]
        while seen[-1].type != "agent_end":
            seen.append(await anext(slow))
        pieces = [event for event in seen if event.type == "audio"]
        dropped = [event for event in seen if event.type == "events_dropped"]
        assert pieces[-1].item_id == "i19"
        assert sum(len(piece.audio.data) for piece in pieces) <= 16 * 2**20
        assert sum(event.bytes for event in dropped) >= (20 - len(pieces)) * 2**20
        assert 0 < sum(event.count for event in dropped) <= session.metrics.count_dropped_events()
        assert session.metrics.count_dropped_bytes() > 0


async def test_only_one_of_two_answers_to_a_repeated_request_is_heard():
    turns = ["One.", "One, again.", "Two."]
    async with (
        RealtimeServer(turns) as server,
        open_websocket_session(server, AGENT, {"acknowledge_timeout": 0.6}) as (session, recorded),
    ):
        server.inject("response.created", Delay(0.9))
        await session.send_message("first")
        await recorded.wait_for("agent_end", 2)
        await session.send_message("second")
        await recorded.wait_for("agent_end", 3)
        first, again, second = (event.response_id for event in recorded.of_type("agent_end"))
        assert {event.audio.response_id for event in recorded.of_type("audio")} == {first, second}
        cancelled = server.connections[0].get_received("response.cancel")
        assert [frame["response_id"] for frame in cancelled] == [again]
        assert get_texts(session) == ["first", "One.", "", "second", "Two."]
        assert recorded.of_type("error") == []
