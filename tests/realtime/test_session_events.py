"""The session events that result from model events."""

import asyncio

import pytest

from factories.realtime import (
    CallCounter,
    audio_chunk,
    get_sent_inputs,
    open_scripted_session,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    user_message_added,
    wait_until,
)
from standfast import function_tool
from standfast.base.usage import Usage
from standfast.realtime import (
    RealtimeAgent,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendUserInput,
    model_events,
)
from standfast.realtime.testing import (
    RealtimeStep,
    ScriptedRealtimeModel,
    UnconsumedRealtimeSteps,
    UnexpectedRealtimeSend,
)

AGENT = RealtimeAgent(name="host")
Interrupt, Input = RealtimeModelSendInterrupt, RealtimeModelSendUserInput


async def test_a_turn_is_emitted_as_events_and_added_to_the_history():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.send_message("hello")
        await model.emit(
            user_message_added("hello"), response_started(), text_delta("Good "), audio_chunk(), text_delta("day")
        )
        await model.emit(model_events.RealtimeModelAudioDoneEvent("i1", 0), response_ended())
        await recorded.wait_for("agent_end")
        assert recorded.types()[:4] == ["history_updated", "history_added", "agent_start", "history_added"]
        assert recorded.types()[-4:] == ["audio", "audio_end", "history_updated", "agent_end"]
        assert [event.delta for event in recorded.of_type("transcript_delta")] == ["Good ", "day"]
        assert [item.role for item in session.history] == ["user", "assistant"]
        assert session.history[1].content[0].transcript == "Good day"
        assert recorded.of_type("history_updated")[-1].history == session.history


async def test_every_model_event_is_first_emitted_unchanged():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        events = [
            response_started(),
            audio_chunk(),
            model_events.RealtimeModelOtherEvent({"type": "new.thing"}),
            response_ended(),
        ]
        await model.emit(*events)
        await recorded.wait_for("agent_end")
        assert [event.data for event in recorded.of_type("raw_model_event")] == events
        assert recorded.of_type("error") == []


async def test_messages_and_audio_go_to_the_model():
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        picture = {"type": "input_image", "image_url": "data:x"}
        message = {"type": "message", "role": "user", "content": [picture]}
        await session.send_message("hi")
        await session.send_message(message)
        await session.send_audio(b"12", commit=True)
        assert model.sent_events == (Input("hi"), Input(message), RealtimeModelSendAudio(b"12", True))


async def test_interrupt_stops_the_audio_at_once_and_returns_when_the_response_is_over():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(response_started(), *[audio_chunk() for _ in range(5)])
        stopping = asyncio.ensure_future(session.interrupt())
        await asyncio.sleep(0)
        called = len(recorded.of_type("audio"))
        await model.emit(audio_chunk(), audio_chunk())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        await model.emit(response_ended(status="cancelled", reason="client_cancelled"))
        await stopping
        assert len(recorded.of_type("audio")) == called
        assert get_sent_inputs(model, Interrupt) == [Interrupt(force_response_cancel=True)]
        assert "interruption" in session.metrics


async def test_unread_audio_is_dropped_by_an_interruption():
    from standfast.realtime import RealtimeRunner

    model = ScriptedRealtimeModel([RealtimeStep(Interrupt, emit=[response_ended(status="cancelled")])], strict=False)
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        await model.emit(response_started(), audio_chunk(), audio_chunk())
        await session.interrupt()
    assert "audio" not in [event.type async for event in session.events()]


async def test_unread_audio_is_dropped_when_the_user_speaks():
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        slow = session.events()
        await model.emit(
            response_started(), audio_chunk(), audio_chunk(), model_events.RealtimeModelSpeechStartedEvent("u1", 0)
        )
        await model.emit(model_events.RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=50))
        await model.emit(
            response_ended(status="cancelled"),
            response_started("r2"),
            audio_chunk(100, "i2", "r2"),
            response_ended("r2"),
        )
        await session.close()
        kinds = [event.type async for event in slow if event.type in ("audio", "audio_interrupted")]
        assert kinds == ["audio_interrupted", "audio"]


async def test_interrupting_silence_is_harmless():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.interrupt()
        await model.emit(response_started(), response_ended())
        await session.interrupt()
        assert recorded.of_type("error") == []
        assert get_sent_inputs(model, Interrupt) == [Interrupt(), Interrupt()]


async def test_after_a_barge_in_the_response_emits_no_audio_and_the_history_is_truncated():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(response_started(), text_delta("one two three four"), audio_chunk(1000))
        await model.emit(model_events.RealtimeModelSpeechStartedEvent("u1", 0))
        await model.emit(model_events.RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500))
        await model.emit(
            audio_chunk(),
            model_events.RealtimeModelItemTruncatedEvent("i1", 0, 500),
            response_ended(status="cancelled"),
        )
        await recorded.wait_for("agent_end")
        kinds = recorded.types()
        assert "audio" not in kinds[kinds.index("audio_interrupted") :]
        assert session.history[0].content[0].transcript == "one two"
        assert session.metrics["truncated"].count == 1
        assert session.metrics["truncated"].last == 500
        assert session.metrics["interruption"].count == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [("failed", "response_failed"), ("lost", "response_failed"), ("incomplete", "response_incomplete")],
)
@pytest.mark.parametrize("known", [True, False])
async def test_a_failed_response_is_reported_with_its_reason(status, kind, known):
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        if known:
            await model.emit(response_started())
        await model.emit(response_ended(status=status, reason="content_filter", error={"code": "x"}))
        event = await recorded.wait_for(kind)
        assert (event.response_id, event.reason) == ("r1", "content_filter")
        assert len(recorded.of_type("agent_end")) == known


async def test_unexpected_sequences_of_events_are_harmless():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(response_ended("never began"), response_ended(), model_events.RealtimeModelTurnEndedEvent())
        await model.emit(
            model_events.RealtimeModelItemDeletedEvent("x"), model_events.RealtimeModelItemTruncatedEvent("x", 0, 1)
        )
        await model.emit(model_events.RealtimeModelAudioInterruptedEvent("x", 0), audio_chunk(response_id="unknown"))
        await model.emit(response_started(), response_started("r2"), response_ended(), response_ended("r2"))
        await recorded.wait_for("agent_end", 2)
        assert recorded.of_type("error") == []
        assert session.history == []


async def test_errors_of_the_server_are_reported_and_the_session_continues():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(model_events.RealtimeModelErrorEvent({"code": "bad"}))
        await model.emit(model_events.RealtimeModelInputAudioTranscriptionFailedEvent("u1", 0, {"code": "worse"}))
        await recorded.wait_for("error", 2)
        assert [event.error["code"] for event in recorded.of_type("error")] == ["bad", "worse"]


async def test_the_idle_timeout_is_reported_with_its_position():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(model_events.RealtimeModelInputAudioTimeoutTriggeredEvent("u1", 10, 20))
        event = await recorded.wait_for("input_audio_timeout_triggered")
        assert (event.item_id, event.audio_start_ms, event.audio_end_ms) == ("u1", 10, 20)


async def test_usage_adds_up():
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        await model.emit(model_events.RealtimeModelUsageEvent(usage), model_events.RealtimeModelUsageEvent(usage))
        assert (session.usage.requests, session.usage.total_tokens) == (2, 30)


async def test_the_time_to_the_first_audio_counts_from_the_end_of_the_users_turn():
    @function_tool
    async def slow() -> str:
        await asyncio.sleep(0.02)
        return ""

    async with open_scripted_session(RealtimeAgent(name="a", tools=[slow])) as (session, model, recorded):
        await model.emit(
            model_events.RealtimeModelSpeechStartedEvent("u1", 0), model_events.RealtimeModelSpeechStoppedEvent("u1", 9)
        )
        await asyncio.sleep(0.02)
        await model.emit(response_started(), audio_chunk(), audio_chunk(), tool_call("slow"), response_ended())
        await recorded.wait_for("tool_end")
        assert session.metrics["time_to_first_audio"].last >= 20
        assert session.metrics["time_to_first_audio"].count == 1
        assert session.metrics["tool_gap"].last >= 20
        metric = await recorded.wait_for("metric")
        assert (metric.name, metric.subject) == ("time_to_first_audio", "r1")


async def test_a_session_makes_few_function_calls_per_delta():
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        await model.emit(response_started(), text_delta("x"), audio_chunk(10))
        for event in (audio_chunk(10), text_delta("word ")):
            with CallCounter() as calls:
                for _ in range(100):
                    await session.on_event(event)
            assert calls.count / 100 < 40


async def test_a_script_refuses_what_it_does_not_expect():
    model = ScriptedRealtimeModel([RealtimeStep(Input("hi")), RealtimeStep(lambda event: event.commit)])
    async with open_scripted_session(AGENT, model) as (session, _, _recorded):
        with pytest.raises(UnexpectedRealtimeSend) as unexpected:
            await session.send_message("ho")
        assert (unexpected.value.actual, unexpected.value.expected) == (Input("ho"), Input("hi"))
        await session.send_message("hi")
        with pytest.raises(UnconsumedRealtimeSteps) as left:
            model.assert_complete()
        assert left.value.remaining_steps == model.remaining_steps == 1
        await session.send_audio(b"", commit=True)
        model.assert_complete()


async def test_a_script_does_not_keep_secrets():
    model = ScriptedRealtimeModel(strict=False)
    config = {"api_key": "sk-1", "url": "wss://me:pw@host:99/v1?token=x", "headers": {"a": "b"}}
    async with open_scripted_session(AGENT, model, model_config=config):
        await wait_until(lambda: model.connect_calls)
    (made,) = model.connect_calls
    assert (made["api_key_provided"], made["headers_provided"], made["url"]) == (True, True, "wss://host:99/v1")
    assert "sk-1" not in str(made)


async def test_a_scripted_model_records_copies_of_its_inputs():
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        part = {"type": "input_text", "text": "first"}
        for text in ("first", "second"):
            part["text"] = text
            await session.send_message({"type": "message", "role": "user", "content": [part]})
        assert [event.user_input["content"][0]["text"] for event in model.sent_events] == ["first", "second"]
