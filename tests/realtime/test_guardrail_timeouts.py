"""Guardrails that do not finish: they are skipped, and audio held back for them is dropped."""

import asyncio

import pytest

from factories.realtime import (
    audio_chunk,
    get_sent_inputs,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    text_delta,
)
from standfast import output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import GuardrailTimedOut, LocalRealtimeModel, RealtimeAgent, RealtimeModelSendRawMessage
from standfast.realtime._session.guardrails import DEFAULT_TIMEOUT
from standfast.realtime.local import ToneTTS
from standfast.realtime.model_events import RealtimeModelAudioDoneEvent

GREETING = "Hello to you, and good morning."
EAGER = {"hold_back_audio": True, "debounce_text_length": 5, "timeout": 2.0}


def hanging(*texts):
    """A guardrail that never answers about these texts, or about any if none are given."""

    @output_guardrail(name="hanging")
    async def judge(context, agent, output):
        if not texts or output in texts:
            await asyncio.Event().wait()
        return GuardrailFunctionOutput(None, False)

    return judge


@output_guardrail
async def discreet(context, agent, output):
    return GuardrailFunctionOutput(None, "secret" in output)


def guarded(*guardrails, **settings):
    return open_scripted_session(
        RealtimeAgent(name="host", output_guardrails=list(guardrails)), guardrails_settings=settings
    )


@pytest.mark.parametrize(("settings", "seconds"), [({}, DEFAULT_TIMEOUT), ({"timeout": 2.0}, 2.0)])
@in_virtual_time
async def test_unchecked_audio_is_not_released_and_the_answer_ends(settings, seconds, caplog):
    async with guarded(hanging(), hold_back_audio=True, **settings) as (session, model, recorded):
        done = RealtimeModelAudioDoneEvent("i1", 0, response_id="r1")
        await model.emit(response_started(), audio_chunk(), text_delta("hello"), audio_chunk(), done, response_ended())
        await asyncio.sleep(seconds - 1)
        assert recorded.of_type("agent_end") == []
        await asyncio.sleep(2)
        order = [event.type for event in recorded.events if event.type in ("audio", "error", "audio_end", "agent_end")]
        assert order == ["error", "audio_end", "agent_end"]
        error = recorded.of_type("error")[0].error
        assert isinstance(error, GuardrailTimedOut)
        assert (error.guardrail, error.seconds) == ("hanging", seconds)
        assert "'hanging' failed and was skipped" in caplog.text
        part = session.history[0].content[0]
        assert (part.transcript, part.generated_transcript, part.audio_end_ms) == ("", "hello", 0)
        await model.emit(response_started("r2"))
        await recorded.wait_for("agent_start", 2)


@pytest.mark.parametrize("texts", [[], [GREETING]])
@in_virtual_time
async def test_the_server_is_sent_how_much_was_heard(texts):
    model = LocalRealtimeModel([GREETING], tts=ToneTTS(), pace=None)
    agent = RealtimeAgent(name="host", output_guardrails=[hanging(*texts)])
    async with open_scripted_session(agent, model, guardrails_settings=EAGER) as (session, _, recorded):
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end")
        await asyncio.sleep(1)
        answer = session.history[-1]
        heard_ms = answer.content[0].audio_end_ms
        assert (heard_ms > 0) == bool(texts)
        assert model.engine.conversation.get_entry(answer.item_id).truncated_at_ms == heard_ms


@in_virtual_time
async def test_an_item_that_the_server_added_in_the_meantime_is_deleted_on_the_server():
    async with guarded(hanging(), hold_back_audio=True, timeout=2.0) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta("hello"), response_ended())
        await model.drop()
        await recorded.wait_for("reconnected")
        await recorded.wait_for("agent_end")
        await asyncio.sleep(1)
        sent = [event.message for event in get_sent_inputs(model, RealtimeModelSendRawMessage)]
        assert [message["type"] for message in sent] == ["conversation.item.create", "conversation.item.delete"]
        assert sent[-1]["other_data"] == {"item_id": "i1"}


@in_virtual_time
async def test_text_that_a_later_check_passed_is_released_although_an_earlier_check_hangs():
    async with guarded(hanging("hello"), **EAGER) as (session, model, recorded):
        await model.emit(
            response_started(), text_delta("hello"), text_delta(" you"), audio_chunk(5000), response_ended()
        )
        await recorded.wait_for("agent_end")
        assert (len(recorded.of_type("audio")), len(recorded.of_type("error"))) == (1, 1)
        assert session.history[0].content[0].transcript == "hello you"


@in_virtual_time
async def test_text_that_passed_before_the_guardrail_hung_stays_heard():
    async with guarded(hanging("hello you"), **EAGER) as (_, model, recorded):
        await model.emit(
            response_started(),
            text_delta("hello"),
            *[audio_chunk(100) for _ in range(5)],
            text_delta(" you"),
            response_ended(),
        )
        await recorded.wait_for("agent_end")
        assert len(recorded.of_type("audio")) == 1  # Five letters.


@pytest.mark.parametrize("held", [True, False])
@in_virtual_time
async def test_the_other_guardrails_still_run(held):
    async with guarded(hanging(), discreet, hold_back_audio=held, timeout=2.0) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta("secret"), response_ended())
        tripped = await recorded.wait_for("guardrail_tripped")
        assert [result.guardrail for result in tripped.guardrail_results] == [discreet]
        assert recorded.of_type("error") == [], "nobody waited for the one that hangs"
        assert (await recorded.wait_for("error")).error.guardrail == "hanging"


@in_virtual_time
async def test_a_guardrail_that_raises_is_skipped_and_the_audio_is_released():
    @output_guardrail
    async def broken(context, agent, output):
        raise TimeoutError("the program's own")

    async with guarded(broken, hold_back_audio=True) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta("hello"), response_ended())
        await recorded.wait_for("agent_end")
        assert (len(recorded.of_type("audio")), recorded.of_type("error")) == (1, [])


@in_virtual_time
async def test_a_guardrail_may_run_without_a_timeout():
    @output_guardrail
    async def thorough(context, agent, output):
        await asyncio.sleep(1000)
        return GuardrailFunctionOutput(None, False)

    async with guarded(thorough, hold_back_audio=True, timeout=None) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta("hello"), response_ended())
        await asyncio.sleep(1001)
        assert len(recorded.of_type("audio")) == len(recorded.of_type("agent_end")) == 1
