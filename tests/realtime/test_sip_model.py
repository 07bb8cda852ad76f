"""The SIP model: accepting and joining telephone calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from factories.realtime import EventRecorder, record_events, wait_until
from standfast import function_tool
from standfast.agents.errors import UserError
from standfast.realtime import OpenAIRealtimeSIPModel, RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner
from standfast.realtime.local.responder import Pause
from standfast.testing import RealtimeServer


@function_tool
def look_up(order: str) -> str:
    """Look up an order."""
    return order


async def test_a_call_is_accepted_with_the_settings_of_the_agent() -> None:
    billing = RealtimeAgent(name="Billing")
    agent = RealtimeAgent(name="Front", instructions=lambda context, _: f"Serve {context.context}.", tools=[look_up])
    agent.handoffs.append(billing)
    payload = await OpenAIRealtimeSIPModel.build_initial_session_payload(
        agent,
        context="Ann",
        model_config={"initial_model_settings": {"model_name": "gpt-realtime", "voice": "sage"}},
        run_config={"model_settings": {"voice": "ash", "speed": 1.1}},
        overrides={"turn_detection": None},
    )
    session = payload.model_dump(exclude_unset=True)
    assert (session["type"], session["model"], session["instructions"]) == ("realtime", "gpt-realtime", "Serve Ann.")
    assert [tool["name"] for tool in session["tools"]] == ["look_up", "transfer_to_billing"]
    assert session["audio"]["output"] == {"voice": "sage", "speed": 1.1}
    assert session["audio"]["input"]["turn_detection"] is None
    assert "format" not in session["audio"]["input"]


async def test_a_call_id_is_required() -> None:
    with pytest.raises(UserError, match="call_id"):
        await OpenAIRealtimeSIPModel().connect({"api_key": "k"})


async def test_joining_a_call_keeps_its_audio_formats() -> None:
    async with RealtimeServer() as server:
        model = OpenAIRealtimeSIPModel()
        await model.connect({"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"})
        await model.close()
        (update,) = server.connections[0].get_received("session.update")
    assert "format" not in update["session"]["audio"]["input"]


@pytest.mark.parametrize(("format", "bytes_per_ms"), [("audio/pcm", 48), ("audio/pcmu", 8), ("audio/pcma", 8)])
async def test_a_session_measures_audio_in_the_format_of_the_call(format, bytes_per_ms) -> None:
    async with RealtimeServer(["An answer that takes longer than a moment to say."]) as server:
        runner = RealtimeRunner(RealtimeAgent(name="host"), model=OpenAIRealtimeSIPModel())
        call = {"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"}
        session = await runner.run(model_config=call)
        async with record_events(session) as recorded, session:
            output = {"format": {"type": format, "rate": 24_000} if format == "audio/pcm" else {"type": format}}
            update = {"session": {"type": "realtime", "audio": {"output": output}}}
            await session.model.send_event(
                RealtimeModelSendRawMessage({"type": "session.update", "other_data": update})
            )
            await session.send_message("Well?")
            await recorded.wait_for("agent_end")
            await session.interrupt()
            sent_ms = sum(len(event.audio.data) for event in recorded.of_type("audio")) / bytes_per_ms
            heard_ms = session.history[-1].content[0].audio_end_ms
            assert session.metrics["truncated"].last == pytest.approx(sent_ms - heard_ms)


async def wait_for_message(recorded: EventRecorder, event_type: str) -> None:
    """Wait for a message of the server that has no event of its own."""
    await wait_until(
        lambda: any(
            event.data.type == "other" and event.data.data["type"] == event_type
            for event in recorded.of_type("raw_model_event")
        )
    )


@asynccontextmanager
async def join_call(*turns: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Join a call in which the server plays the audio itself, and yield when an answer has started."""
    async with RealtimeServer(list(turns)) as server:
        call = {"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"}
        session = await RealtimeRunner(RealtimeAgent(name="host"), model=OpenAIRealtimeSIPModel()).run(
            model_config=call
        )
        async with record_events(session) as recorded, session:
            await session.send_message("Well?")
            response_id = (await recorded.wait_for("agent_start")).response_id
            server.connections[0].send(
                {"type": "output_audio_buffer.started", "event_id": "e", "response_id": response_id}
            )
            await wait_for_message(recorded, "output_audio_buffer.started")
            yield session, recorded, server.connections[0]


@pytest.mark.parametrize("ended", [False, True])
async def test_an_interruption_clears_the_output_buffer_of_the_server(ended: bool) -> None:
    async with join_call("An answer." if ended else [Pause(30), "An answer."]) as (session, recorded, connection):
        if ended:
            await recorded.wait_for("agent_end")
        await session.interrupt()
        await connection.wait_for_frame("output_audio_buffer.clear")
        types = [frame["type"] for frame in connection.received]
        assert ended or types.index("response.cancel") < types.index("output_audio_buffer.clear")


async def test_audio_that_the_server_has_played_is_not_cleared() -> None:
    async with join_call("An answer.") as (session, recorded, connection):
        (started,) = connection.get_sent("output_audio_buffer.started")
        connection.send({**started, "type": "output_audio_buffer.stopped"})
        await wait_for_message(recorded, "output_audio_buffer.stopped")
        await session.interrupt()
        await session.send_message("Thank you.")
        await connection.wait_for_frame("conversation.item.create", count=2)
        assert connection.get_received("output_audio_buffer.clear") == []


async def test_the_played_part_of_a_server_side_answer_is_estimated_from_its_text() -> None:
    text = "One two three four five six seven eight nine ten eleven twelve."
    async with join_call([Pause(30), "Never sent."]) as (session, _recorded, connection):
        (created,) = connection.get_sent("response.created")
        location = {"event_id": "e", "response_id": created["response"]["id"], "item_id": "i1", "output_index": 0}
        item = {"id": "i1", "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        connection.send({"type": "response.output_item.added", **location, "item": item})
        connection.send(
            {"type": "response.output_audio_transcript.delta", **location, "content_index": 0, "delta": text}
        )
        truncation = {"item_id": "i1", "content_index": 0, "audio_end_ms": 2000}
        connection.send({"type": "conversation.item.truncated", "event_id": "e", **truncation})
        await wait_until(lambda: getattr(session.history[-1].content[0], "audio_end_ms", None) == 2000)
        answer = session.history[-1].content[0]
        assert text.startswith(answer.transcript)
        assert 10 < len(answer.transcript) < len(text) - 10
