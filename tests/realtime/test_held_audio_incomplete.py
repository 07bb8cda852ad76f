"""Held audio of responses that break off, end late or end during the close."""

import asyncio
import gc

import pytest

from factories.realtime import (
    audio_chunk,
    get_sent_inputs,
    get_texts,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    text_delta,
    wait_until,
)
from standfast import open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelSendRawMessage
from standfast.realtime._session.responses import MAX_REMEMBERED_RESPONSES, GuardedResponse
from standfast.realtime.model_events import (
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioEvent,
    RealtimeModelAudioFormatEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelTextDoneEvent,
)
from standfast.realtime.testing import ScriptedRealtimeModel


@output_guardrail
async def discreet(context, agent, output):
    return GuardrailFunctionOutput(None, "secret" in output)


HOST = RealtimeAgent(name="host", output_guardrails=[discreet])
EAGER = {"hold_back_audio": True, "debounce_text_length": 5}
LAZY = {"hold_back_audio": True, "debounce_text_length": 1000}


async def end(model, how):
    await (model.drop() if how == "lost" else model.emit(response_ended(status=how)))


@pytest.mark.parametrize("how", ["lost", "failed", "incomplete", "cancelled"])
@in_virtual_time
async def test_audio_whose_transcript_never_arrives_is_not_heard(how):
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (session, model, recorded):
        done = RealtimeModelAudioDoneEvent("i1", 0, response_id="r1")
        await model.emit(response_started(), text_delta("hello you"), *[audio_chunk(100) for _ in range(40)], done)
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == 2  # Eight letters.
        await end(model, how)
        await recorded.wait_for("agent_end")
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == 2
        assert len(recorded.of_type("audio_end")) == 1
        part = session.history[0].content[0]
        assert (part.transcript, part.generated_transcript, part.audio_end_ms) == ("", "hello you", 200)


@pytest.mark.parametrize("verdict_after", [0, 0.001, 1])
@in_virtual_time
async def test_a_lost_response_without_released_audio_is_requested_again(verdict_after):
    @output_guardrail
    async def slow(context, agent, output):
        await asyncio.sleep(verdict_after)
        return GuardrailFunctionOutput(None, False)

    agent = RealtimeAgent(name="host", output_guardrails=[slow])
    async with open_scripted_session(agent, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("hi"), audio_chunk(1_000))
        await model.drop()
        await recorded.wait_for("reconnected")
        await asyncio.sleep(3)
        assert recorded.of_type("audio") == []
        asked = [event.message["type"] for event in get_sent_inputs(model, RealtimeModelSendRawMessage)]
        assert asked.count("response.create") == 1


class Slow(ScriptedRealtimeModel):
    async def send_event(self, event):
        await super().send_event(event)
        await asyncio.sleep(1)


@pytest.mark.parametrize("late", [False, True])
@in_virtual_time
async def test_a_new_connection_gets_items_again_that_were_not_heard(late):
    verdict = asyncio.Event()

    @output_guardrail
    async def waiting(context, agent, output):
        await verdict.wait()
        return GuardrailFunctionOutput(None, False)

    host = RealtimeAgent(name="host", output_guardrails=[waiting])
    async with open_scripted_session(host, Slow(strict=False), guardrails_settings=EAGER) as (session, model, recorded):
        await model.emit(response_started(), text_delta("a b hello you"), *[audio_chunk(100) for _ in range(4)])
        await model.drop()
        await wait_until(lambda: get_sent_inputs(model, RealtimeModelSendRawMessage))
        if late:
            await recorded.wait_for("reconnected")
        verdict.set()
        await asyncio.sleep(10)
        assert get_texts(session) == ["a b hello"]
        sent = [event.message for event in get_sent_inputs(model, RealtimeModelSendRawMessage)]
        assert [message["type"].split(".")[-1] for message in sent] == ["create", "delete", "create"]
        assert sent[-1]["other_data"]["item"]["content"][0]["text"] == "a b hello"


@in_virtual_time
async def test_a_new_connection_gets_no_truncation_of_an_unknown_item():
    verdict = asyncio.Event()

    @output_guardrail
    async def waiting(context, agent, output):
        await verdict.wait()
        return GuardrailFunctionOutput(None, False)

    host = RealtimeAgent(name="host", output_guardrails=[waiting])
    async with open_scripted_session(host, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("hello"), audio_chunk(100), audio_chunk(100, "i2"))
        await model.drop()
        await recorded.wait_for("reconnected")
        verdict.set()
        await asyncio.sleep(1)
        assert [event.item_id for event in recorded.of_type("audio")] == ["i1"]
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("how", ["lost", "failed"])
@in_virtual_time
async def test_audio_without_a_transcript_is_released_only_if_its_answer_completed(how):
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(100))
        await end(model, how)
        await recorded.wait_for("agent_end")
        assert recorded.of_type("audio") == []
        await model.emit(response_started("r2"), audio_chunk(100, "i2", "r2"), response_ended("r2"))
        assert (await recorded.wait_for("audio")).item_id == "i2"


@pytest.mark.parametrize("how", ["failed", "incomplete"])
@in_virtual_time
async def test_a_part_that_was_complete_is_heard_although_its_response_failed_later(how):
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (session, model, recorded):
        await model.emit(
            response_started(), text_delta("hello"), audio_chunk(3000), RealtimeModelTextDoneEvent("i1", "hello", "r1")
        )
        await end(model, how)
        await recorded.wait_for("agent_end")
        assert len(recorded.of_type("audio")) == 1
        assert session.history[0].content[0].transcript == "hello"


@pytest.mark.parametrize(("settings", "transcript"), [(LAZY, ""), (EAGER, "fine")])
@in_virtual_time
async def test_audio_held_when_the_session_closes_was_not_heard(settings, transcript):
    async with open_store("memory://") as store:
        history = store.session("call")
        async with open_scripted_session(HOST, session=history, guardrails_settings=settings) as (
            session,
            model,
            recorded,
        ):
            await model.emit(response_started(), text_delta("fine so far"), audio_chunk(200), audio_chunk(200))
            await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == (1 if transcript else 0)
        assert session.history[0].content[0].transcript == transcript
        assert "far" not in str(await history.get_items())


@pytest.mark.parametrize("sounds", [[], [audio_chunk(100)]])
@in_virtual_time
async def test_a_response_that_ends_during_the_close_is_not_heard_and_its_end_is_announced(sounds):
    async with open_scripted_session(HOST, guardrails_settings=LAZY) as (session, model, recorded):
        await model.emit(response_started(), *sounds, text_delta("fine"))
        closing = asyncio.ensure_future(session.close())
        await asyncio.sleep(0)
        await model.emit(response_ended())  # The guardrail task is cancelled before its first step.
        await closing
        await recorded.wait_for("session_closed")
    assert recorded.of_type("audio") == []
    assert len(recorded.of_type("agent_end")) == 1
    assert session.history[0].content[0].transcript == ""


@in_virtual_time
async def test_an_answer_that_ends_while_the_session_closes_is_not_heard():
    @output_guardrail
    async def stubborn(context, agent, output):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    agent = RealtimeAgent(name="host", output_guardrails=[stubborn])
    async with open_scripted_session(agent, guardrails_settings=EAGER) as (session, model, recorded):
        await model.emit(response_started("r1"), audio_chunk(200), text_delta("hello"), response_ended("r1"))
        await model.emit(
            response_started("r2"),
            audio_chunk(100, "i2", "r2"),
            text_delta("so", "i3", "r2"),
            audio_chunk(100, "i3", "r2"),
        )
        closing = asyncio.ensure_future(session.close())
        await asyncio.sleep(0.2)
        await session.on_event(response_ended("r2"))  # By a model that was already telling it.
        await closing
        await recorded.wait_for("session_closed")
    assert recorded.of_type("audio") == recorded.of_type("error") == []
    assert len(recorded.of_type("agent_end")) == 2


@in_virtual_time
async def test_text_that_arrives_after_the_end_is_checked_together_with_the_text_before():
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("the sec"), audio_chunk(100), response_ended())
        await recorded.wait_for("agent_end")
        await model.emit(text_delta("ret"))
        assert (await recorded.wait_for("guardrail_tripped")).message == "the secret"


@in_virtual_time
async def test_the_complete_text_that_arrives_after_the_end_is_not_checked_twice():
    asked = []

    @output_guardrail
    async def judge(context, agent, output):
        asked.append(output)
        return GuardrailFunctionOutput(None, False)

    agent = RealtimeAgent(name="host", output_guardrails=[judge])
    async with open_scripted_session(agent, guardrails_settings=LAZY) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("hello"), response_ended())
        await recorded.wait_for("agent_end")
        await model.emit(RealtimeModelTextDoneEvent("i1", "hello", "r1"), audio_chunk(100))
        await recorded.wait_for("audio")
        assert asked == ["hello"]


def watches():
    gc.collect()
    return sum(isinstance(thing, GuardedResponse) for thing in gc.get_objects())


@pytest.mark.parametrize("ends", [True, False])
@in_virtual_time
async def test_a_long_session_keeps_no_more_than_the_latest_responses(ends):
    before = watches()
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, _recorded):
        for number in range(3 * MAX_REMEMBERED_RESPONSES):
            name = f"r{number}"
            await model.emit(
                response_started(name), text_delta("hi", f"i{number}", name), audio_chunk(1, f"i{number}", name)
            )
            if ends:
                await model.emit(response_ended(name))
        await asyncio.sleep(1)
        assert watches() - before <= MAX_REMEMBERED_RESPONSES


@pytest.mark.parametrize(
    ("settings", "many"),
    [
        ({"audio": {"output": {"speed": 1.5}}}, 3),
        ({"audio": {"output": {"speed": 1.5}}, "speed": 1.0}, 3),
        ({"speed": None}, 5),
        ({"audio": {"output": {"format": "g711_ulaw"}}}, 5),
        ({"output_audio_format": "g711_alaw"}, 5),
    ],
)
@in_virtual_time
async def test_audio_settings_apply_wherever_they_are_given(settings, many):
    size = 8 if "g711" in str(settings) else 48
    async with open_scripted_session(HOST, guardrails_settings=EAGER, model_settings=settings) as (
        _session,
        model,
        recorded,
    ):
        pieces = [RealtimeModelAudioEvent(b"\0" * (size * 100), "r1", "i1", 0) for _ in range(20)]
        await model.emit(response_started(), text_delta("fifteen letters ok"), *pieces)
        await asyncio.sleep(1)
        assert (len(recorded.of_type("audio")), recorded.of_type("error")) == (many, [])


@in_virtual_time
async def test_the_duration_of_audio_follows_the_format_at_its_arrival():
    model = ScriptedRealtimeModel(connect_events=[RealtimeModelAudioFormatEvent({"type": "audio/pcmu"})], strict=False)
    async with open_scripted_session(HOST, model, guardrails_settings=EAGER) as (_session, _, recorded):
        pieces = [RealtimeModelAudioEvent(b"\0" * 800, "r1", "i1", 0) for _ in range(20)]
        await model.emit(
            response_started(), *pieces, RealtimeModelAudioFormatEvent({"type": "audio/pcm", "rate": 24_000})
        )
        await model.emit(text_delta("fifteen letters ok"))
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == 5
        await model.emit(audio_chunk(100), response_ended())
        await recorded.wait_for("agent_end")
        assert len(recorded.of_type("audio")) == 21


@in_virtual_time
async def test_a_response_that_was_interrupted_before_any_release_was_not_heard():
    async with open_scripted_session(HOST, guardrails_settings=LAZY) as (session, model, recorded):
        await model.emit(response_started(), audio_chunk(100), text_delta("hello"))
        interrupting = asyncio.ensure_future(session.interrupt())
        await asyncio.sleep(1)
        await model.emit(audio_chunk(100), response_ended(status="cancelled"))
        await interrupting
        await recorded.wait_for("agent_end")
        part = session.history[0].content[0]
        assert (part.transcript, part.generated_transcript, part.audio_end_ms) == ("", "hello", 0)
        assert session.metrics["truncated"].count == 1


@in_virtual_time
async def test_the_history_keeps_only_the_released_part_of_a_rejected_response():
    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(HOST, guardrails_settings=EAGER, session=history) as (
            session,
            model,
            recorded,
        ):
            await model.emit(response_started(), text_delta("hello you"), *[audio_chunk(100) for _ in range(4)])
            await asyncio.sleep(1)
            assert len(recorded.of_type("audio")) == 2
            await model.emit(text_delta(" secret words"), response_ended())
            await recorded.wait_for("guardrail_tripped")
            part = session.history[0].content[0]
            assert (part.transcript, part.audio_end_ms) == ("hello you", 200)
        (written,) = await history.get_items()
        assert written["content"][0]["text"] == "hello you"


@in_virtual_time
async def test_audio_released_behind_a_stopped_answer_counts_as_heard_from_then_on():
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        for number in (1, 2):
            item, response = f"i{number}", f"r{number}"
            await model.emit(
                response_started(response), text_delta("hello you", item, response), audio_chunk(1000, item, response)
            )
            await model.emit(response_ended(response))
        await recorded.wait_for("audio", 2)
        await asyncio.sleep(0.5)
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500))
        await asyncio.sleep(0.25)
        played = model.connect_calls[0]["playback_tracker"].get_state()
        assert (played["current_item_id"], played["elapsed_ms"]) == ("i2", 250)
