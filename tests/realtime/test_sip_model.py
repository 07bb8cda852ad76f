"""Joining telephone calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from realtime_kit import Heard, eventually, listening
from standfast import function_tool
from standfast.agents.errors import UserError
from standfast.realtime import OpenAIRealtimeSIPModel, RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner
from standfast.realtime.local.responder import Pause
from standfast.testing import RealtimeServer


@function_tool
def look_up(order: str) -> str:
    """Look up an order."""
    return order


async def test_a_call_is_accepted_with_what_the_agent_says() -> None:
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
    said = payload.model_dump(exclude_unset=True)
    assert (said["type"], said["model"], said["instructions"]) == ("realtime", "gpt-realtime", "Serve Ann.")
    assert [tool["name"] for tool in said["tools"]] == ["look_up", "transfer_to_billing"]
    assert said["audio"]["output"] == {"voice": "sage", "speed": 1.1}
    assert said["audio"]["input"]["turn_detection"] is None
    assert "format" not in said["audio"]["input"]


async def test_it_needs_a_call() -> None:
    with pytest.raises(UserError, match="call_id"):
        await OpenAIRealtimeSIPModel().connect({"api_key": "k"})


async def test_it_joins_a_call_without_changing_its_formats() -> None:
    async with RealtimeServer() as server:
        model = OpenAIRealtimeSIPModel()
        await model.connect({"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"})
        await model.close()
        (update,) = server.connections[0].get_received("session.update")
    assert "format" not in update["session"]["audio"]["input"]


@pytest.mark.parametrize(("format", "bytes_per_ms"), [("audio/pcm", 48), ("audio/pcmu", 8), ("audio/pcma", 8)])
async def test_a_session_counts_the_audio_of_a_call_in_the_format_that_the_server_tells(format, bytes_per_ms) -> None:
    async with RealtimeServer(["An answer that takes longer than a moment to say."]) as server:
        runner = RealtimeRunner(RealtimeAgent(name="host"), model=OpenAIRealtimeSIPModel())
        call = {"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"}
        session = await runner.run(model_config=call)
        async with listening(session) as heard, session:
            output = {"format": {"type": format, "rate": 24_000} if format == "audio/pcm" else {"type": format}}
            by_another = {"session": {"type": "realtime", "audio": {"output": output}}}
            await session.model.send_event(
                RealtimeModelSendRawMessage({"type": "session.update", "other_data": by_another})
            )
            await session.send_message("Well?")
            await heard.until("agent_end")
            await session.interrupt()
            sent_ms = sum(len(event.audio.data) for event in heard.of("audio")) / bytes_per_ms
            heard_ms = session.history[-1].content[0].audio_end_ms
            assert session.metrics["truncated"].last == pytest.approx(sent_ms - heard_ms)


async def told(heard: Heard, kind: str) -> None:
    """Wait for a message of the server that means nothing to a program."""
    await eventually(
        lambda: any(
            event.data.type == "other" and event.data.data["type"] == kind for event in heard.of("raw_model_event")
        )
    )


@asynccontextmanager
async def in_a_call(*turns: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """A session that has joined a call, in which the server plays the answer itself, and the answer has begun."""
    async with RealtimeServer(list(turns)) as server:
        call = {"url": f"{server.url}?call_id=c1", "api_key": "k", "call_id": "c1"}
        session = await RealtimeRunner(RealtimeAgent(name="host"), model=OpenAIRealtimeSIPModel()).run(
            model_config=call
        )
        async with listening(session) as heard, session:
            await session.send_message("Well?")
            begun = (await heard.until("agent_start")).response_id
            server.connections[0].send({"type": "output_audio_buffer.started", "event_id": "e", "response_id": begun})
            await told(heard, "output_audio_buffer.started")
            yield session, heard, server.connections[0]


@pytest.mark.parametrize("over", [False, True])
async def test_an_interruption_also_stops_what_the_server_still_plays(over: bool) -> None:
    async with in_a_call("An answer." if over else [Pause(30), "An answer."]) as (session, heard, connection):
        if over:
            await heard.until("agent_end")
        await session.interrupt()
        await connection.wait_for_frame("output_audio_buffer.clear")
        kinds = [frame["type"] for frame in connection.received]
        assert over or kinds.index("response.cancel") < kinds.index("output_audio_buffer.clear")


async def test_what_the_server_has_played_to_its_end_is_not_stopped() -> None:
    async with in_a_call("An answer.") as (session, heard, connection):
        (begun,) = connection.get_sent("output_audio_buffer.started")
        connection.send({**begun, "type": "output_audio_buffer.stopped"})
        await told(heard, "output_audio_buffer.stopped")
        await session.interrupt()
        await session.send_message("Thank you.")
        await connection.wait_for_frame("conversation.item.create", count=2)
        assert connection.received_of("output_audio_buffer.clear") == []


async def test_what_a_caller_heard_of_an_answer_that_the_server_played_is_estimated_from_its_words() -> None:
    text = "One two three four five six seven eight nine ten eleven twelve."
    async with in_a_call([Pause(30), "Never said."]) as (session, _heard, connection):
        (begun,) = connection.get_sent("response.created")
        where = {"event_id": "e", "response_id": begun["response"]["id"], "item_id": "i1", "output_index": 0}
        item = {"id": "i1", "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        connection.send({"type": "response.output_item.added", **where, "item": item})
        connection.send({"type": "response.output_audio_transcript.delta", **where, "content_index": 0, "delta": text})
        cut = {"item_id": "i1", "content_index": 0, "audio_end_ms": 2000}
        connection.send({"type": "conversation.item.truncated", "event_id": "e", **cut})
        await eventually(lambda: getattr(session.history[-1].content[0], "audio_end_ms", None) == 2000)
        answer = session.history[-1].content[0]
        assert text.startswith(answer.transcript)
        assert 10 < len(answer.transcript) < len(text) - 10
