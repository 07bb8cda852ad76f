"""Output guardrails of a session: they trip in time and once, and their failure does not end the session."""

import asyncio

import pytest

from factories.realtime import call, ended, eventually, said, sent, sound, started, talking, virtually, words
from standfast import function_tool, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelSendInterrupt, RealtimeModelSendUserInput
from standfast.realtime.model_events import (
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelSpeechStartedEvent,
    RealtimeModelTextDoneEvent,
)
from standfast.realtime.testing import RealtimeStep, ScriptedRealtimeModel

Interrupt, Input = RealtimeModelSendInterrupt, RealtimeModelSendUserInput


def guard(name="no secrets", seen=None, **more):
    @output_guardrail(name=name)
    async def check(context, agent, output):
        if seen is not None:
            seen.append(output)
        await asyncio.sleep(0)
        return GuardrailFunctionOutput(None, "secret" in output)

    return check


def guarded(*guardrails):
    return RealtimeAgent(name="host", output_guardrails=list(guardrails))


async def test_words_are_looked_at_at_each_threshold_and_at_their_end():
    seen = []
    agent = guarded(guard(seen=seen))
    async with talking(agent, guardrails_settings={"debounce_text_length": 10}) as (_session, model, _heard):
        for piece in ("12345", "67890", "12345", "6"):
            await model.emit(words(piece))
        await eventually(lambda: len(seen) == 1)
        await model.emit(words("7890"), words("tail"), ended())
        await eventually(lambda: len(seen) == 3)
    assert seen == ["1234567890", "12345678901234567890", "12345678901234567890tail"]


@pytest.mark.parametrize("end", ["text_done", "turn_ended"])
async def test_a_short_answer_is_looked_at_too(end):
    async with talking(guarded(guard())) as (_session, model, heard):
        await model.emit(started(), words("the secret is out"))
        await model.emit(RealtimeModelTextDoneEvent("i1", "the secret is out", "r1") if end == "text_done" else ended())
        tripped = await heard.until("guardrail_tripped")
        assert (tripped.message, tripped.response_id) == ("the secret is out", "r1")
        await eventually(lambda: sent(model, Input))
        (interrupt,) = sent(model, Interrupt)
        assert interrupt.force_response_cancel == (end == "text_done")
        assert interrupt.playback_only == (end == "turn_ended")


async def test_written_answers_are_looked_at_as_well():
    async with talking(guarded(guard())) as (_session, model, heard):
        await model.emit(started(), RealtimeModelOutputTextDeltaEvent("i1", "a secret", "r1"), ended())
        await heard.until("guardrail_tripped")


async def test_a_trip_is_announced_cancelled_and_followed_up_once():
    agent = guarded(guard("one"), guard("two"))
    async with talking(agent, guardrails_settings={"debounce_text_length": 5}) as (_session, model, heard):
        await model.emit(started(), *[words("secret ") for _ in range(20)], sound(), words("secret"), ended())
        await heard.until("guardrail_tripped")
        await eventually(lambda: sent(model, Input))
        await asyncio.sleep(0.02)
        assert len(heard.of("guardrail_tripped")) == 1
        assert len(sent(model, Interrupt)) == len(sent(model, Input)) == 1
        assert sent(model, Input)[0].user_input == "guardrail triggered: one"


@pytest.mark.parametrize("held", [False, True])
@virtually
async def test_a_refusal_does_not_wait_for_slower_guardrails(held):
    @output_guardrail
    async def slow(context, agent, output):
        await asyncio.sleep(20)
        return GuardrailFunctionOutput(None, "secret" in output)

    now = asyncio.get_running_loop().time
    settings = {"debounce_text_length": 5, "hold_back_audio": held}
    async with talking(guarded(slow, guard()), guardrails_settings=settings) as (_session, model, heard):
        began = now()
        await model.emit(started(), words("fine so far"), sound())
        await asyncio.sleep(1)
        assert len(heard.of("audio")) == (0 if held else 1)
        await model.emit(words(", a secret"), sound())
        await heard.until("guardrail_tripped")
        assert now() - began < 2
        await asyncio.sleep(60)
        assert len(heard.of("guardrail_tripped")) == len(sent(model, Interrupt)) == len(sent(model, Input)) == 1


async def test_a_trip_that_races_the_user_trips_cancels_and_follows_up_once():
    settings = {"debounce_text_length": 5}
    async with talking(guarded(guard()), guardrails_settings=settings) as (session, model, heard):
        await model.emit(started(), sound(), words("secret secret"), RealtimeModelSpeechStartedEvent("u1", 0))
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1"), words("secret"))
        await asyncio.gather(heard.until("guardrail_tripped"), session.on_event(ended(status="cancelled")))
        await eventually(lambda: sent(model, Input))
        await asyncio.sleep(0.02)
        assert len(heard.of("guardrail_tripped")) == len(sent(model, Interrupt)) == len(sent(model, Input)) == 1


async def test_no_follow_up_disturbs_a_newer_response():
    gate = asyncio.Event()

    @output_guardrail
    async def late(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    async with talking(guarded(late)) as (_session, model, heard):
        await model.emit(started(), words("secret"), ended(), started("r2"))
        gate.set()
        await heard.until("guardrail_tripped")
        await eventually(lambda: sent(model, Interrupt))
        await asyncio.sleep(0.01)
        assert sent(model, Interrupt)[0].playback_only
        assert sent(model, Input) == []


async def test_text_of_an_unknown_response_is_not_taken_for_a_newer_one():
    settings = {"debounce_text_length": 5}
    async with talking(guarded(guard()), guardrails_settings=settings) as (_session, model, heard):
        await model.emit(started(), RealtimeModelTextDoneEvent("i0", "long ago", "r0"), words("secret"))
        await heard.until("guardrail_tripped")
        await eventually(lambda: sent(model, Input))
        assert [(event.response_id, event.playback_only) for event in sent(model, Interrupt)] == [("r1", False)]


async def test_an_answer_whose_words_came_before_its_beginning_is_the_newer_one():
    gate = asyncio.Event()

    @output_guardrail
    async def late(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    async with talking(guarded(late), guardrails_settings={"debounce_text_length": 5}) as (_session, model, heard):
        await model.emit(started(), words("secret"), words("hello", "i2", "r2"), ended(), started("r2"))
        gate.set()
        await heard.until("guardrail_tripped")
        await eventually(lambda: sent(model, Interrupt))
        assert sent(model, Interrupt)[0].playback_only


async def test_no_audio_of_a_refused_response_is_heard_after_the_trip():
    settings = {"debounce_text_length": 5}
    async with talking(guarded(guard()), guardrails_settings=settings) as (_session, model, heard):
        await model.emit(started(), words("secret"))
        await heard.until("guardrail_tripped")
        await model.emit(sound(), sound(), started("r2"), sound(response_id="r2", item_id="i2"))
        assert (await heard.until("audio")).item_id == "i2"


@pytest.mark.parametrize("failure", [ValueError("broken"), asyncio.CancelledError()])
async def test_a_guardrail_that_fails_is_logged_and_skipped_and_the_others_count(failure, caplog):
    @output_guardrail
    async def broken(context, agent, output):
        raise failure

    async with talking(guarded(broken, guard("works"))) as (_session, model, heard):
        await model.emit(started(), words("secret"), ended())
        tripped = await heard.until("guardrail_tripped")
        assert [result.guardrail.get_name() for result in tripped.guardrail_results] == ["works"]
        assert heard.of("error") == []
        assert "'broken' failed and was skipped" in caplog.text


async def test_what_escapes_a_guardrail_becomes_an_error_and_the_session_lives_on():
    model = ScriptedRealtimeModel([RealtimeStep(Interrupt, error=RuntimeError("line noise"))], strict=False)
    async with talking(guarded(guard()), model) as (_session, _, heard):
        await model.emit(started(), words("secret"), ended())
        assert str((await heard.until("error")).error) == "line noise"
        await model.emit(started("r2"), ended("r2"))
        await heard.until("agent_end", 2)


@pytest.mark.parametrize("message", ["Please be discreet.", lambda names: f"Mind {names[0]}."])
async def test_the_follow_up_can_be_in_words_of_ones_own(message):
    async with talking(guarded(guard()), guardrails_settings={"message": message}) as (_session, model, _heard):
        await model.emit(started(), words("secret"), ended())
        await eventually(lambda: sent(model, Input))
    assert sent(model, Input)[0].user_input in ("Please be discreet.", "Mind no secrets.")


async def test_guardrails_of_the_session_are_asked_once_even_if_the_agent_has_them_too():
    seen = []
    check = guard(seen=seen)
    async with talking(guarded(check), output_guardrails=[check]) as (_session, model, _heard):
        await model.emit(started(), words("fine"), ended())
        await eventually(lambda: seen)
        await asyncio.sleep(0.01)
    assert seen == ["fine"]


async def test_audio_can_be_held_back_until_its_words_were_found_good():
    gate = asyncio.Event()

    @output_guardrail
    async def slow(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    settings = {"debounce_text_length": 5, "hold_back_audio": True}
    async with talking(guarded(slow), guardrails_settings=settings) as (_session, model, heard):
        await model.emit(started(), sound(100), words("hello"), sound(200))
        await asyncio.sleep(0.01)
        assert heard.of("audio") == []
        gate.set()
        await heard.until("audio")
        assert [len(event.audio.data) for event in heard.of("audio")] == [4800]
        await model.emit(ended())
        await heard.until("audio", 2)


async def test_nothing_that_was_held_back_is_heard_when_its_words_are_refused():
    settings = {"hold_back_audio": True}
    async with talking(guarded(guard()), guardrails_settings=settings) as (_session, model, heard):
        await model.emit(started(), sound(), words("secret"), sound(), ended())
        await heard.until("guardrail_tripped")
        await model.emit(started("r2"), ended("r2"))
        await heard.until("agent_end", 2)
        assert heard.of("audio") == []


@pytest.mark.parametrize(("said", "expected"), [("hello", ["audio", "audio", "audio_end"]), ("secret", [])])
async def test_the_end_of_audio_comes_behind_the_audio_that_was_held_back(said, expected):
    settings = {"hold_back_audio": True}
    async with talking(guarded(guard()), guardrails_settings=settings) as (_session, model, heard):
        done = RealtimeModelAudioDoneEvent("i1", 0, response_id="r1")
        await model.emit(started(), sound(), words(said), sound(), done, ended())
        await heard.until("audio_end" if expected else "guardrail_tripped")
        await asyncio.sleep(0.01)
        assert [event.type for event in heard.events if event.type in ("audio", "audio_end")] == expected


@virtually
async def test_how_much_was_heard_before_a_trip_is_known_although_a_call_holds_up_the_conversation():
    called = asyncio.Event()

    @function_tool
    async def slow() -> str:
        called.set()
        await asyncio.sleep(60)
        return "done"

    @output_guardrail
    async def late(context, agent, output):
        await called.wait()
        return GuardrailFunctionOutput(None, True)

    agent = RealtimeAgent(name="host", tools=[slow], output_guardrails=[late])
    cut = RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500)
    model = ScriptedRealtimeModel([RealtimeStep(Interrupt, emit=[cut])], strict=False)
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(agent, model, session=history, async_tool_calls=False) as (session, _model, heard):
            await model.emit(started(), words("one two three four"), sound(1000), ended())
            await model.emit(started("r2"), call("slow", response_id="r2"), ended("r2"))
            await heard.until("audio_interrupted")
            assert heard.of("tool_end") == []
        assert said(session) == ["one two"]
        assert (await history.get_items())[0]["content"][0]["text"] == "one two"


def _raises(names):
    raise RuntimeError("no words for that")


@pytest.mark.parametrize(("message", "errors"), [(_raises, 1), (lambda names: None, 0)])
async def test_without_a_configured_message_the_model_gets_the_default(message, errors):
    async with talking(guarded(guard()), guardrails_settings={"message": message}) as (_session, model, heard):
        await model.emit(started(), words("a secret"), ended())
        await eventually(lambda: sent(model, Input))
        assert sent(model, Input)[0].user_input == "guardrail triggered: no secrets"
        assert len(heard.of("error")) == errors
