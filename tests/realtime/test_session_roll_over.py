"""Audio that still plays after its connection was replaced."""

import asyncio
from base64 import b64encode

import pytest

from factories.realtime import open_websocket_session, record_events, wait_until
from factories.realtime_protocol import make_speech
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner, RealtimeState
from standfast.realtime.local import CallTool, EnergyDetector, ToneTTS
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Disconnect, Reject
from standfast.testing.virtual_time import run_in_virtual_time

LONG = "This answer is long enough to be playing still when the connection is replaced, and for some time after that."
ROLL_OVER = {"reconnect": {"roll_over_after": 1.0}}


def local(*turns):
    return LocalRealtimeModel(turns, tts=ToneTTS(), detector=EnergyDetector, pace=None)


def first_answer(session):
    return next(item for item in session.history if getattr(item, "role", None) == "assistant")


def describe_items(conversation):
    """The items of a server, as role and text."""
    return [(entry.item.get("role"), entry.text) for entry in conversation]


def test_speech_truncates_an_answer_of_the_previous_connection():
    async def scenario():
        model = local(LONG, "Yes?")
        session = await RealtimeRunner(RealtimeAgent(name="a"), model=model, config=ROLL_OVER).run()
        async with record_events(session) as recorded, session:
            await session.send_message("Tell me.")
            await recorded.wait_for("agent_end")
            answer = first_answer(session).item_id
            assert (await recorded.wait_for("reconnected")).planned
            await asyncio.sleep(0.5)
            await session.send_audio(await make_speech(pause_ms=0))
            assert (await recorded.wait_for("audio_interrupted")).item_id == answer
            cut = first_answer(session)
            assert (cut.item_id, cut.status) == (answer, "incomplete")
            part = cut.content[0]
            assert (part.audio_end_ms, part.generated_transcript) == (1500, LONG)
            assert LONG.startswith(part.transcript)
            assert 0 < len(part.transcript) < len(LONG) / 2
            assert session.metrics["truncated"].count == 1
            await wait_until(lambda: describe_items(model.engine.conversation)[1] == ("assistant", part.transcript))
            assert first_answer(session) == cut
            assert recorded.of_type("error") == []

    run_in_virtual_time(scenario())


def test_a_truncated_answer_keeps_its_position_after_a_call_and_its_output():
    @function_tool
    async def look_up() -> str:
        return "found"

    async def scenario():
        model = local(CallTool("look_up"), LONG, "Yes?")
        agent = RealtimeAgent(name="a", tools=[look_up])
        session = await RealtimeRunner(agent, model=model, config=ROLL_OVER).run()
        async with record_events(session) as recorded, session:
            await session.send_message("Look it up.")
            await recorded.wait_for("reconnected")
            await session.interrupt()
            words = first_answer(session).content[0].transcript
            await wait_until(lambda: describe_items(model.engine.conversation)[-1] == ("assistant", words))
            kinds = [entry.item["type"] for entry in model.engine.conversation]
            assert kinds == ["message", "function_call", "function_call_output", "message"]
            assert [item.type for item in session.history] == ["message", "function_call", "message"]
            assert recorded.of_type("error") == []

    run_in_virtual_time(scenario())


def test_an_answer_that_was_heard_completely_is_not_truncated():
    async def scenario():
        model = local(LONG, "Yes?")
        session = await RealtimeRunner(RealtimeAgent(name="a"), model=model, config=ROLL_OVER).run()
        async with record_events(session) as recorded, session:
            await session.send_message("Tell me.")
            await recorded.wait_for("reconnected")
            await asyncio.sleep(60)
            await session.interrupt()
            assert first_answer(session).content[0].transcript == LONG
            assert recorded.of_type("audio_interrupted") == []

    run_in_virtual_time(scenario())


def test_items_of_an_earlier_session_are_not_truncated_in_a_later_one():
    async def scenario():
        model = local(LONG, "A short answer.")
        runner = RealtimeRunner(RealtimeAgent(name="a"), model=model)
        async with await runner.run() as session, record_events(session) as recorded:
            await session.send_message("Tell me.")
            await recorded.wait_for("agent_end")
        async with await runner.run() as session, record_events(session) as recorded:
            await session.send_message("Again.")
            await recorded.wait_for("agent_end")
            await asyncio.sleep(0.2)
            await session.interrupt()
            (interrupted,) = recorded.of_type("audio_interrupted")
            cut = first_answer(session)
            assert interrupted.item_id == cut.item_id
            assert cut.content[0].audio_end_ms == 200
            assert len(describe_items(model.engine.conversation)) == 2

    run_in_virtual_time(scenario())


async def test_an_interruption_after_a_lost_connection_reaches_the_server_that_has_the_history_now():
    async with RealtimeServer([LONG]) as server:
        options = {"url": server.url, "api_key": "test"}
        config = {"reconnect": {"initial_delay": 0.001}}
        session = await RealtimeRunner(RealtimeAgent(name="a"), config=config).run(model_config=options)
        async with record_events(session) as recorded, session:
            await session.send_message("Tell me.")
            await recorded.wait_for("agent_end")
            server.connections[0].close()
            await recorded.wait_for("reconnected")
            connection = server.connections[1]
            await session.interrupt()
            await recorded.wait_for("audio_interrupted")
            heard_text = first_answer(session).content[0].transcript
            assert len(heard_text) < len(LONG)
            left = [("assistant", heard_text)] if heard_text else []
            await wait_until(lambda: describe_items(connection.conversation)[1:] == left)
            await wait_until(lambda: connection.get_sent("conversation.item.deleted"))
            assert first_answer(session).content[0].generated_transcript == LONG
            assert recorded.of_type("error") == []


async def test_two_parts_of_an_answer_can_be_truncated_over_the_next_connection():
    async with (
        RealtimeServer([LONG, "Yes?"]) as server,
        open_websocket_session(server, RealtimeAgent(name="a")) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        end = await recorded.wait_for("agent_end")
        place = {"response_id": end.response_id, "item_id": first_answer(session).item_id, "content_index": 1}
        first = server.connections[0]
        first.send({"type": "response.output_audio_transcript.delta", **place, "delta": "And so on."})
        first.send({"type": "response.output_audio.delta", **place, "delta": b64encode(bytes(48_000)).decode()})
        await wait_until(lambda: recorded.of_type("audio")[-1].content_index == 1)
        first.close()
        await recorded.wait_for("reconnected")
        await session.interrupt()
        await recorded.wait_for("audio_interrupted", 2)
        await session.send_message("Stop.")
        await recorded.wait_for("agent_end", 2)
        assert len(server.connections[1].get_received("conversation.item.delete")) == 1
        assert server.connections[1].get_sent("error") == []
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_playing_audio_is_truncated_between_two_connections(moment):
    async with (
        RealtimeServer([LONG]) as server,
        open_websocket_session(server, RealtimeAgent(name="a")) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await recorded.wait_for("agent_end")
        server.inject("connect", Reject(), times=2)
        server.connections[0].close()
        await recorded.wait_for("reconnecting", {"before": 1, "after": 3}[moment])
        await session.interrupt()
        assert recorded.of_type("reconnected") == []
        await recorded.wait_for("audio_interrupted")
        answer = first_answer(session).content[0]
        assert (answer.generated_transcript, len(answer.transcript) < len(LONG)) == (LONG, True)
        await recorded.wait_for("reconnected")
        left = [("assistant", answer.transcript)] if answer.transcript else []
        await wait_until(lambda: describe_items(server.connections[1].conversation) == [("user", "Tell me."), *left])
        assert len(recorded.of_type("audio_interrupted")) == 1


@pytest.mark.parametrize("fault", ["connect", "session.update", "conversation.item.create"])
async def test_playing_audio_can_be_truncated_after_a_failed_reconnection(fault):
    async with (
        RealtimeServer([LONG]) as server,
        open_websocket_session(server, RealtimeAgent(name="a")) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await recorded.wait_for("agent_end")
        server.inject(fault, Reject() if fault == "connect" else Disconnect(), connection=1)
        server.connections[0].close()
        tried = 2 if fault == "connect" else 3
        await wait_until(lambda: len(server.connections) == tried and session.state is RealtimeState.OPEN)
        await session.interrupt()
        await recorded.wait_for("audio_interrupted")
        assert len(first_answer(session).content[0].transcript) < len(LONG)
        await wait_until(lambda: server.connections[-1].get_sent("conversation.item.deleted"))


async def test_a_truncation_during_the_replay_sends_no_output_twice():
    answered = asyncio.Event()

    @function_tool
    async def look() -> str:
        await answered.wait()
        return "looked"

    agent = RealtimeAgent(name="a", tools=[look])
    async with (
        RealtimeServer([[LONG, CallTool("look")], "Fine."]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await recorded.wait_for("tool_start")
        await recorded.wait_for("agent_end")
        server.connections[0].close()
        await recorded.wait_for("reconnecting")
        answered.set()
        again = await server.wait_for_connection(2)
        await again.wait_for_frame("conversation.item.create")
        await session.interrupt()
        await recorded.wait_for("agent_end", 2)
        await recorded.wait_for("tool_end")
        created = [frame["item"] for frame in again.get_received("conversation.item.create")]
        assert [item["output"] for item in created if item["type"] == "function_call_output"] == ["looked"]
        answer = first_answer(session).content[0]
        assert (answer.generated_transcript, len(answer.transcript) < len(LONG)) == (LONG, True)
