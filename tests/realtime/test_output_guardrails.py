"""Output guardrails of a session: they trip in time and once, and their failure does not end the session."""

import asyncio

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
    tool_call,
    wait_until,
)
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


async def test_the_transcript_is_checked_at_each_threshold_and_at_its_end():
    seen = []
    agent = guarded(guard(seen=seen))
    async with open_scripted_session(agent, guardrails_settings={"debounce_text_length": 10}) as (
        _session,
        model,
        _recorded,
    ):
        for piece in ("12345", "67890", "12345", "6"):
            await model.emit(text_delta(piece))
        await wait_until(lambda: len(seen) == 1)
        await model.emit(text_delta("7890"), text_delta("tail"), response_ended())
        await wait_until(lambda: len(seen) == 3)
    assert seen == ["1234567890", "12345678901234567890", "12345678901234567890tail"]


@pytest.mark.parametrize("end", ["text_done", "turn_ended"])
async def test_a_short_answer_is_checked(end):
    async with open_scripted_session(guarded(guard())) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("the secret is out"))
        await model.emit(
            RealtimeModelTextDoneEvent("i1", "the secret is out", "r1") if end == "text_done" else response_ended()
        )
        tripped = await recorded.wait_for("guardrail_tripped")
        assert (tripped.message, tripped.response_id) == ("the secret is out", "r1")
        await wait_until(lambda: get_sent_inputs(model, Input))
        (interrupt,) = get_sent_inputs(model, Interrupt)
        assert interrupt.force_response_cancel == (end == "text_done")
        assert interrupt.playback_only == (end == "turn_ended")


async def test_text_answers_are_checked():
    async with open_scripted_session(guarded(guard())) as (_session, model, recorded):
        await model.emit(
            response_started(), RealtimeModelOutputTextDeltaEvent("i1", "a secret", "r1"), response_ended()
        )
        await recorded.wait_for("guardrail_tripped")


async def test_a_trip_is_announced_cancelled_and_followed_up_once():
    agent = guarded(guard("one"), guard("two"))
    async with open_scripted_session(agent, guardrails_settings={"debounce_text_length": 5}) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(
            response_started(),
            *[text_delta("secret ") for _ in range(20)],
            audio_chunk(),
            text_delta("secret"),
            response_ended(),
        )
        await recorded.wait_for("guardrail_tripped")
        await wait_until(lambda: get_sent_inputs(model, Input))
        await asyncio.sleep(0.02)
        assert len(recorded.of_type("guardrail_tripped")) == 1
        assert len(get_sent_inputs(model, Interrupt)) == len(get_sent_inputs(model, Input)) == 1
        assert get_sent_inputs(model, Input)[0].user_input == "guardrail triggered: one"


@pytest.mark.parametrize("held", [False, True])
@in_virtual_time
async def test_a_refusal_does_not_wait_for_slower_guardrails(held):
    @output_guardrail
    async def slow(context, agent, output):
        await asyncio.sleep(20)
        return GuardrailFunctionOutput(None, "secret" in output)

    now = asyncio.get_running_loop().time
    settings = {"debounce_text_length": 5, "hold_back_audio": held}
    async with open_scripted_session(guarded(slow, guard()), guardrails_settings=settings) as (
        _session,
        model,
        recorded,
    ):
        began = now()
        await model.emit(response_started(), text_delta("fine so far"), audio_chunk())
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == (0 if held else 1)
        await model.emit(text_delta(", a secret"), audio_chunk())
        await recorded.wait_for("guardrail_tripped")
        assert now() - began < 2
        await asyncio.sleep(60)
        assert (
            len(recorded.of_type("guardrail_tripped"))
            == len(get_sent_inputs(model, Interrupt))
            == len(get_sent_inputs(model, Input))
            == 1
        )


async def test_a_trip_that_races_the_user_trips_cancels_and_follows_up_once():
    settings = {"debounce_text_length": 5}
    async with open_scripted_session(guarded(guard()), guardrails_settings=settings) as (session, model, recorded):
        await model.emit(
            response_started(), audio_chunk(), text_delta("secret secret"), RealtimeModelSpeechStartedEvent("u1", 0)
        )
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1"), text_delta("secret"))
        await asyncio.gather(
            recorded.wait_for("guardrail_tripped"), session.on_event(response_ended(status="cancelled"))
        )
        await wait_until(lambda: get_sent_inputs(model, Input))
        await asyncio.sleep(0.02)
        assert (
            len(recorded.of_type("guardrail_tripped"))
            == len(get_sent_inputs(model, Interrupt))
            == len(get_sent_inputs(model, Input))
            == 1
        )


async def test_no_follow_up_disturbs_a_newer_response():
    gate = asyncio.Event()

    @output_guardrail
    async def late(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    async with open_scripted_session(guarded(late)) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("secret"), response_ended(), response_started("r2"))
        gate.set()
        await recorded.wait_for("guardrail_tripped")
        await wait_until(lambda: get_sent_inputs(model, Interrupt))
        await asyncio.sleep(0.01)
        assert get_sent_inputs(model, Interrupt)[0].playback_only
        assert get_sent_inputs(model, Input) == []


async def test_text_of_an_unknown_response_is_not_taken_for_a_newer_one():
    settings = {"debounce_text_length": 5}
    async with open_scripted_session(guarded(guard()), guardrails_settings=settings) as (_session, model, recorded):
        await model.emit(response_started(), RealtimeModelTextDoneEvent("i0", "long ago", "r0"), text_delta("secret"))
        await recorded.wait_for("guardrail_tripped")
        await wait_until(lambda: get_sent_inputs(model, Input))
        assert [(event.response_id, event.playback_only) for event in get_sent_inputs(model, Interrupt)] == [
            ("r1", False)
        ]


async def test_an_answer_whose_text_preceded_its_start_is_the_newer_one():
    gate = asyncio.Event()

    @output_guardrail
    async def late(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    async with open_scripted_session(guarded(late), guardrails_settings={"debounce_text_length": 5}) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(
            response_started(),
            text_delta("secret"),
            text_delta("hello", "i2", "r2"),
            response_ended(),
            response_started("r2"),
        )
        gate.set()
        await recorded.wait_for("guardrail_tripped")
        await wait_until(lambda: get_sent_inputs(model, Interrupt))
        assert get_sent_inputs(model, Interrupt)[0].playback_only


async def test_no_audio_of_a_refused_response_is_heard_after_the_trip():
    settings = {"debounce_text_length": 5}
    async with open_scripted_session(guarded(guard()), guardrails_settings=settings) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("secret"))
        await recorded.wait_for("guardrail_tripped")
        await model.emit(
            audio_chunk(), audio_chunk(), response_started("r2"), audio_chunk(response_id="r2", item_id="i2")
        )
        assert (await recorded.wait_for("audio")).item_id == "i2"


@pytest.mark.parametrize("failure", [ValueError("broken"), asyncio.CancelledError()])
async def test_a_guardrail_that_fails_is_logged_and_skipped_and_the_others_count(failure, caplog):
    @output_guardrail
    async def broken(context, agent, output):
        raise failure

    async with open_scripted_session(guarded(broken, guard("works"))) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("secret"), response_ended())
        tripped = await recorded.wait_for("guardrail_tripped")
        assert [result.guardrail.get_name() for result in tripped.guardrail_results] == ["works"]
        assert recorded.of_type("error") == []
        assert "'broken' failed and was skipped" in caplog.text


async def test_an_exception_of_a_guardrail_becomes_an_error_event_and_the_session_continues():
    model = ScriptedRealtimeModel([RealtimeStep(Interrupt, error=RuntimeError("line noise"))], strict=False)
    async with open_scripted_session(guarded(guard()), model) as (_session, _, recorded):
        await model.emit(response_started(), text_delta("secret"), response_ended())
        assert str((await recorded.wait_for("error")).error) == "line noise"
        await model.emit(response_started("r2"), response_ended("r2"))
        await recorded.wait_for("agent_end", 2)


@pytest.mark.parametrize("message", ["Please be discreet.", lambda names: f"Mind {names[0]}."])
async def test_the_follow_up_message_can_be_configured(message):
    async with open_scripted_session(guarded(guard()), guardrails_settings={"message": message}) as (
        _session,
        model,
        _recorded,
    ):
        await model.emit(response_started(), text_delta("secret"), response_ended())
        await wait_until(lambda: get_sent_inputs(model, Input))
    assert get_sent_inputs(model, Input)[0].user_input in ("Please be discreet.", "Mind no secrets.")


async def test_a_guardrail_of_session_and_agent_runs_once():
    seen = []
    check = guard(seen=seen)
    async with open_scripted_session(guarded(check), output_guardrails=[check]) as (_session, model, _recorded):
        await model.emit(response_started(), text_delta("fine"), response_ended())
        await wait_until(lambda: seen)
        await asyncio.sleep(0.01)
    assert seen == ["fine"]


async def test_audio_can_be_held_until_its_transcript_has_passed():
    gate = asyncio.Event()

    @output_guardrail
    async def slow(context, agent, output):
        await gate.wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    settings = {"debounce_text_length": 5, "hold_back_audio": True}
    async with open_scripted_session(guarded(slow), guardrails_settings=settings) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(100), text_delta("hello"), audio_chunk(200))
        await asyncio.sleep(0.01)
        assert recorded.of_type("audio") == []
        gate.set()
        await recorded.wait_for("audio")
        assert [len(event.audio.data) for event in recorded.of_type("audio")] == [4800]
        await model.emit(response_ended())
        await recorded.wait_for("audio", 2)


async def test_held_audio_is_dropped_when_its_transcript_is_refused():
    settings = {"hold_back_audio": True}
    async with open_scripted_session(guarded(guard()), guardrails_settings=settings) as (_session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta("secret"), audio_chunk(), response_ended())
        await recorded.wait_for("guardrail_tripped")
        await model.emit(response_started("r2"), response_ended("r2"))
        await recorded.wait_for("agent_end", 2)
        assert recorded.of_type("audio") == []


@pytest.mark.parametrize(("said", "expected"), [("hello", ["audio", "audio", "audio_end"]), ("secret", [])])
async def test_the_end_of_audio_follows_the_held_audio(said, expected):
    settings = {"hold_back_audio": True}
    async with open_scripted_session(guarded(guard()), guardrails_settings=settings) as (_session, model, recorded):
        done = RealtimeModelAudioDoneEvent("i1", 0, response_id="r1")
        await model.emit(response_started(), audio_chunk(), text_delta(said), audio_chunk(), done, response_ended())
        await recorded.wait_for("audio_end" if expected else "guardrail_tripped")
        await asyncio.sleep(0.01)
        assert [event.type for event in recorded.events if event.type in ("audio", "audio_end")] == expected


@in_virtual_time
async def test_the_heard_part_before_a_trip_is_known_while_a_call_blocks_the_conversation():
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
        async with open_scripted_session(agent, model, session=history, async_tool_calls=False) as (
            session,
            _model,
            recorded,
        ):
            await model.emit(response_started(), text_delta("one two three four"), audio_chunk(1000), response_ended())
            await model.emit(response_started("r2"), tool_call("slow", response_id="r2"), response_ended("r2"))
            await recorded.wait_for("audio_interrupted")
            assert recorded.of_type("tool_end") == []
        assert get_texts(session) == ["one two"]
        assert (await history.get_items())[0]["content"][0]["text"] == "one two"


def _raises(names):
    raise RuntimeError("no words for that")


@pytest.mark.parametrize(("message", "errors"), [(_raises, 1), (lambda names: None, 0)])
async def test_without_a_configured_message_the_model_gets_the_default(message, errors):
    async with open_scripted_session(guarded(guard()), guardrails_settings={"message": message}) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(response_started(), text_delta("a secret"), response_ended())
        await wait_until(lambda: get_sent_inputs(model, Input))
        assert get_sent_inputs(model, Input)[0].user_input == "guardrail triggered: no secrets"
    assert len(recorded.of_type("error")) == errors
