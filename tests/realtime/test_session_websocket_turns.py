"""Turns over a real websocket with late, simultaneous or missing frames."""

import asyncio

import pytest

from factories.realtime import (
    connect_options,
    get_texts,
    open_websocket_session,
    record_events,
    send_speech,
    wait_until,
)
from factories.realtime_protocol import make_speech
from standfast import function_tool, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, Pause, ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Discard, Disconnect, Insert, Reject, Reorder

AGENT = RealtimeAgent(name="host", instructions="I am the host.")
OTHER = RealtimeAgent(name="other", instructions="I am another.")


# Late words.


async def test_a_transcript_that_arrives_after_the_answer_precedes_it_in_every_history():
    transcriber = ScriptedTranscriber(["What time is it?"])
    async with (
        open_store("memory://") as store,
        RealtimeServer(["It is noon."], transcriber=transcriber) as server,
    ):
        server.inject("conversation.item.input_audio_transcription.completed", Reorder("rate_limits.updated"))
        history = store.session("s")
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server), session=history)
        async with record_events(session) as recorded, session:
            await send_speech(session, await make_speech())
            await recorded.wait_for("agent_end")
            await wait_until(lambda: get_texts(session) == ["What time is it?", "It is noon."])
            answered = [event.type for event in recorded.events].index("agent_end")
            assert recorded.events[answered - 1].history[0].content[0].transcript is None, "the answer came first"
            await wait_until(lambda: recorded.of_type("history_updated")[-1].history == session.history)
        written = [item["content"] for item in await history.get_items()]
        assert (written[0], written[1][0]["text"]) == ("What time is it?", "It is noon.")


async def test_a_response_whose_start_was_not_reported_is_played_and_ends():
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.created", Discard())
        await session.send_message("first")
        await wait_until(lambda: get_texts(session) == ["first", "One."])
        await recorded.wait_for("audio")
        await session.send_message("second")
        await recorded.wait_for("agent_end", len(recorded.of_type("agent_end")) + 1)
        assert get_texts(session) == ["first", "One.", "second", "Two."]
        assert recorded.of_type("error") == []


async def test_an_item_keeps_its_position_although_it_is_reported_last():
    async with RealtimeServer(["One."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("first")
        await recorded.wait_for("agent_end")
        first = session.history[0].item_id
        between = {
            "type": "message",
            "id": "between",
            "role": "system",
            "content": [{"type": "input_text", "text": "!"}],
        }
        added = {"type": "conversation.item.added", "event_id": "e", "previous_item_id": first, "item": between}
        server.connections[0].send(added)
        await recorded.wait_for("history_added", 3)
        assert [item.item_id for item in session.history][:2] == [first, "between"]


# Interruptions.


async def test_an_answer_interrupted_before_it_began_is_not_heard():
    async with (
        RealtimeServer(["Never heard.", "An answer."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject("response.cancel", Discard())  # It comes too late.
        await session.send_message("first")
        await session.interrupt()
        await recorded.wait_for("agent_end")
        assert (recorded.of_type("audio"), get_texts(session)) == ([], ["first", ""])
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert recorded.of_type("audio")
        (cut,) = server.connections[0].get_sent("conversation.item.truncated")
        assert (cut["item_id"], cut["audio_end_ms"]) == (session.history[1].item_id, 0)


async def test_an_answer_whose_cancellation_came_before_it_began_is_cancelled_when_it_begins():
    turns = [[Pause(3600), "Never said."], "An answer."]
    async with RealtimeServer(turns) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.cancel", Reject("response_cancel_not_active"))
        await session.send_message("first")
        await session.interrupt()
        await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert [event.status for event in recorded.of_type("agent_end")] == ["cancelled", "completed"]
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("server_interrupts", [True, False])
@pytest.mark.parametrize("who", ["program", "user"])
async def test_an_answer_interrupted_before_its_first_audio_is_cancelled_and_not_truncated(who, server_interrupts):
    turns = [[Pause(0.3), "Never heard."], "Yes?"]
    transcriber = ScriptedTranscriber(["Stop."])
    detection = {"turn_detection": {"type": "server_vad", "interrupt_response": server_interrupts}}
    async with (
        RealtimeServer(turns, transcriber=transcriber) as server,
        open_websocket_session(server, AGENT, model_settings=detection) as (session, recorded),
    ):
        connection = server.connections[0]
        await session.send_message("first")
        await recorded.wait_for("agent_start")
        if who == "program":
            await session.interrupt()
        else:
            await send_speech(session, await make_speech())
        assert (await recorded.wait_for("agent_end")).status == "cancelled"
        if who == "program":
            await session.send_message("second")
        await recorded.wait_for("agent_end", 2)
        assert connection.get_received("conversation.item.truncate") == []
        assert recorded.of_type("audio_interrupted") == []
        assert get_texts(session)[-1] == "Yes?"
        assert "Never heard." not in get_texts(session)
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("first", ["user", "guardrail"])
async def test_a_trip_that_races_the_users_speech_trips_cancels_and_follows_up_once(first):
    may, asked = asyncio.Event(), 0

    @output_guardrail(name="discretion")
    async def discreet(context, agent, output):
        nonlocal asked
        if "secret" in output:
            asked += 1
            await may.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    turns = ["the secret is out of the bag and everybody knows it now", "I am sorry.", "Yes?"]
    settings = {"debounce_text_length": 5}
    async with (
        RealtimeServer(turns, transcriber=ScriptedTranscriber(["Stop."]), pace=2.0) as server,
        open_websocket_session(server, agent, guardrails_settings=settings) as (session, recorded),
    ):
        connection = server.connections[0]
        await session.send_message("Tell me.")
        await wait_until(lambda: asked > 2)
        voice = await make_speech()
        if first == "user":
            await send_speech(session, voice[: len(voice) // 2])
            await recorded.wait_for("audio_interrupted")
            may.set()
            await recorded.wait_for("guardrail_tripped")
        else:
            may.set()
            await send_speech(session, voice[: len(voice) // 2])
            await recorded.wait_for("guardrail_tripped")
            await recorded.wait_for("audio_interrupted")
        await send_speech(session, voice[len(voice) // 2 :])
        await recorded.wait_for("agent_end", 2)
        await wait_until(lambda: "guardrail triggered: discretion" in get_texts(session))
        await wait_until(lambda: connection.engine.active_response is None)
        tripped = recorded.of_type("guardrail_tripped")[0].response_id
        assert len(recorded.of_type("guardrail_tripped")) == 1
        assert len(connection.get_received("response.cancel")) <= 1
        assert [event.status for event in recorded.of_type("agent_end") if event.response_id == tripped] == [
            "cancelled"
        ]
        assert get_texts(session).count("guardrail triggered: discretion") == 1
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_text_that_arrives_only_with_its_item_is_checked(modality, held):
    seen = []

    @output_guardrail
    async def discreet(context, agent, output):
        seen.append(output)
        return GuardrailFunctionOutput(None, "secret" in output)

    host = RealtimeAgent(name="host", output_guardrails=[discreet])
    config = {"guardrails_settings": {"hold_back_audio": held}, "model_settings": {"output_modalities": [modality]}}
    async with (
        RealtimeServer(["It is a secret.", "No."]) as server,
        open_websocket_session(server, host, **config) as (session, recorded),
    ):
        for kind in ("output_audio_transcript", "output_text"):
            server.inject(f"response.{kind}.delta", Discard(), times=None)
            server.inject(f"response.{kind}.done", Discard(), times=None)
        await session.send_message("Tell me.")
        refused = await recorded.wait_for("guardrail_tripped")
        await recorded.wait_for("agent_end", 2)
        assert seen == ["It is a secret.", "No."]
        if held:
            assert not [event for event in recorded.of_type("audio") if event.audio.response_id == refused.response_id]


async def test_a_trip_interrupts_the_audio():
    @output_guardrail
    async def discreet(context, agent, output):
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    turns = ["nothing at all, and then the secret and more of the same", "Sorry."]
    async with (
        RealtimeServer(turns, pace=4.0) as server,
        open_websocket_session(server, agent, guardrails_settings={"debounce_text_length": 5}) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await recorded.wait_for("audio_interrupted")
        await recorded.wait_for("agent_end", 2)
        types = [event.type for event in recorded.events]
        trip, stop = types.index("guardrail_tripped"), types.index("audio_interrupted")
        refused = recorded.events[trip].response_id
        assert trip < stop
        late = [
            event for event in recorded.events[trip:] if event.type == "audio" and event.audio.response_id == refused
        ]
        assert late == []


# Calls.


async def test_an_approval_after_a_handoff_makes_the_call_of_the_old_agent():
    @function_tool(needs_approval=True)
    async def delete(name: str) -> str:
        return f"deleted {name}"

    @function_tool(name_override="delete")
    async def other_delete(name: str) -> str:
        raise AssertionError("the other agent's tool was called")

    other = RealtimeAgent(name="other", tools=[other_delete])
    agent = RealtimeAgent(name="a", tools=[delete], handoffs=[other])
    turns = [[CallTool("delete", {"name": "x"}), CallTool("transfer_to_other")], "Hello.", "It is deleted."]
    async with RealtimeServer(turns) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("Delete x and transfer me.")
        asked = await recorded.wait_for("tool_approval_required")
        await recorded.wait_for("agent_end", 2)
        assert session.current_agent is other
        assert await session.approve_tool_call(asked.call_id)
        end = await recorded.wait_for("tool_end")
        assert (end.agent, end.output) == (agent, "deleted x")
        await recorded.wait_for("agent_end", 3)
        assert recorded.of_type("agent_end")[-1].agent is other


async def test_concurrent_calls_of_one_tool_are_distinguished():
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    @function_tool
    async def look(what: str) -> str:
        await gates[what].wait()
        return f"seen {what}"

    agent = RealtimeAgent(name="a", tools=[look])
    turns = [[CallTool("look", {"what": "a"}, "c1"), CallTool("look", {"what": "b"}, "c2")], "Seen.", "Seen."]
    async with RealtimeServer(turns) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("Look.")
        await recorded.wait_for("tool_start", 2)
        gates["b"].set()
        assert (await recorded.wait_for("tool_end")).call_id == "c2"
        gates["a"].set()
        assert (await recorded.wait_for("tool_end", 2)).call_id == "c1"
        assert {event.call_id: event.arguments for event in recorded.of_type("tool_start")} == {
            "c1": '{"what": "a"}',
            "c2": '{"what": "b"}',
        }
        outputs = {item.call_id: item.output for item in session.history if item.type == "function_call"}
        assert outputs == {"c1": "seen a", "c2": "seen b"}


async def test_a_handoff_that_the_server_refuses_is_answered_and_the_old_agent_continues():
    @function_tool
    async def mine() -> str:
        return "still mine"

    agent = RealtimeAgent(name="a", instructions="I am the first.", tools=[mine], handoffs=[OTHER])
    turns = [CallTool("transfer_to_other"), CallTool("mine"), "Here I am."]
    async with RealtimeServer(turns) as server, open_websocket_session(server, agent) as (session, recorded):
        server.inject("session.update", Reject())
        await session.send_message("Transfer me.")
        await recorded.wait_for("agent_end", 3)
        assert session.current_agent is agent
        assert recorded.of_type("handoff") == recorded.of_type("agent_changed") == []
        assert recorded.of_type("tool_end")[-1].output == "still mine"
        assert server.connections[0].session["instructions"] == "I am the first."
        assert "An error occurred" in session.history[1].output


async def test_unknown_frames_arrive_as_raw_events_only():
    async with RealtimeServer(["Hello."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        server.inject("response.created", Insert({"type": "rate_limits.exceeded", "event_id": "e"}))
        await session.send_message("hi")
        await recorded.wait_for("agent_end")
        raw = [event.data.data for event in recorded.of_type("raw_model_event") if event.data.type == "other"]
        assert "rate_limits.exceeded" in [message["type"] for message in raw]
        assert recorded.of_type("error") == []


async def test_a_lost_output_is_sent_to_the_next_connection_and_the_tool_ran_once():
    made = []

    @function_tool
    async def once() -> str:
        made.append(1)
        return "forty-two"

    agent = RealtimeAgent(name="a", tools=[once])
    async with (
        RealtimeServer([CallTool("once"), "It is forty-two."]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        server.inject("conversation.item.create", Disconnect(1011), skip=1, connection=0)
        await session.send_message("What is it?")
        await recorded.wait_for("reconnected")
        await recorded.wait_for("agent_end", 2)
        types = [item["type"] for item in server.connections[1].conversation.items]
        assert types == ["message", "function_call", "function_call_output", "message"]
        assert get_texts(session)[-1] == "It is forty-two."
        assert len(recorded.of_type("tool_end")) == 1
    assert made == [1]


async def test_each_answer_is_checked_by_the_guardrails_of_its_agent():
    looked = []

    def guard(name):
        @output_guardrail(name=name)
        async def look(context, agent, output):
            looked.append((name, agent.name, output))
            return GuardrailFunctionOutput(None, False)

        return look

    other = RealtimeAgent(name="other", output_guardrails=[guard("theirs")])
    agent = RealtimeAgent(name="a", output_guardrails=[guard("mine")], handoffs=[other])
    turns = [[CallTool("transfer_to_other"), "One moment."], "Hello."]
    async with RealtimeServer(turns, pace=2.0) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("Transfer me.")
        await recorded.wait_for("handoff")
        assert looked == [], "the words of the first agent come after the handoff"
        await recorded.wait_for("agent_end", 2)
        await wait_until(lambda: len(looked) == 2)
    assert looked == [("mine", "a", "One moment."), ("theirs", "other", "Hello.")]
