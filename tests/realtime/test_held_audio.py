"""Held audio: it is released only after its text has passed, and rejected audio counts as not heard."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from factories.realtime import (
    audio_chunk,
    in_virtual_time,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    wait_until,
)
from factories.realtime_protocol import make_speech
from standfast import SQLiteSession, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import EnergyDetector, ToneTTS
from standfast.realtime.model_events import RealtimeModelTextDoneEvent
from standfast.testing import RealtimeServer
from standfast.testing.virtual_time import run_in_virtual_time

SECRET = "The secret word is swordfish and nobody may know."
HOLD = {"hold_back_audio": True, "debounce_text_length": 1000}


class Slow:
    """A guardrail that thinks until it is allowed to answer."""

    def __init__(self):
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    def guardrail(self):
        @output_guardrail(name="discreet")
        async def discreet(context, agent, output):
            self.asked.set()
            await self.may_answer.wait()
            return GuardrailFunctionOutput(None, "secret" in output)

        return discreet


@asynccontextmanager
async def call(model, *guardrails, options=None, session=None):
    agent = RealtimeAgent(name="host", output_guardrails=list(guardrails))
    runner = RealtimeRunner(agent, model=model, config={"guardrails_settings": HOLD})
    live = await runner.run(model_config=options or {}, session=session)
    async with record_events(live) as recorded, live:
        yield live, recorded


def local(*turns):
    return LocalRealtimeModel(turns, tts=ToneTTS(), detector=EnergyDetector, pace=None)


def answers(session):
    return [item for item in session.history if item.role == "assistant"]


def list_event_types(recorded, *kinds):
    return [event.type for event in recorded.events if event.type in kinds]


async def test_a_trip_is_announced_before_the_end_of_its_response():
    slow = Slow()
    async with RealtimeServer([SECRET, "Never mind."]) as server:
        options = {"url": server.url, "api_key": "test"}
        async with call(None, slow.guardrail(), options=options) as (session, recorded):
            await session.send_message("Tell me.")
            await slow.asked.wait()
            await wait_until(lambda: [e for e in recorded.of_type("raw_model_event") if e.data.type == "turn_ended"])
            slow.may_answer.set()
            await recorded.wait_for("agent_end", 2)
            order = list_event_types(recorded, "agent_start", "guardrail_tripped", "agent_end", "audio")
            assert order[:3] == ["agent_start", "guardrail_tripped", "agent_end"]


def test_a_refused_answer_counts_as_unheard_everywhere():
    async def scenario():
        slow, model = Slow(), local(SECRET, "Never mind.")
        async with open_store("memory://") as store:
            history = store.session("call")
            async with call(model, slow.guardrail(), session=history) as (session, recorded):
                await session.send_message("Tell me.")
                await asyncio.sleep(0.3)  # A good part of it would have been heard, had it been passed on.
                slow.may_answer.set()
                await recorded.wait_for("agent_end", 2)
                refused, other = answers(session)
                assert (refused.status, refused.content[0].transcript) == ("incomplete", "")
                assert refused.content[0].generated_transcript == SECRET
                assert {event.item_id for event in recorded.of_type("audio")} == {other.item_id}
                assert session.metrics["truncated"].count == 1
                assert model.engine.conversation.get_entry(refused.item_id).truncated_at_ms == 0
            assert "swordfish" not in str(await history.get_items())

    run_in_virtual_time(scenario())


def test_audio_held_when_the_user_speaks_was_not_heard():
    async def scenario():
        slow = Slow()
        async with call(local("A good answer that takes a while to say."), slow.guardrail()) as (session, recorded):
            await session.send_message("Well?")
            await asyncio.sleep(0.3)
            await session.send_audio(await make_speech())
            interrupted = await recorded.wait_for("audio_interrupted")
            slow.may_answer.set()
            cut = next(item for item in answers(session) if item.item_id == interrupted.item_id)
            assert (cut.content[0].transcript, cut.content[0].audio_end_ms) == ("", 0)
            await recorded.wait_for("agent_end")
            assert not [event for event in recorded.of_type("audio") if event.item_id == interrupted.item_id]

    run_in_virtual_time(scenario())


def test_released_audio_counts_as_heard_from_its_release():
    async def scenario():
        slow = Slow()
        async with call(local("A good answer that takes a while to say."), slow.guardrail()) as (session, recorded):
            await session.send_message("Well?")
            await asyncio.sleep(0.5)
            slow.may_answer.set()
            await recorded.wait_for("agent_end")
            await asyncio.sleep(0.1)
            await session.interrupt()
            assert answers(session)[0].content[0].audio_end_ms == 100
            assert round(session.metrics["time_to_first_audio"].last) == 500

    run_in_virtual_time(scenario())


def test_verdicts_in_another_order_release_nothing_too_early():
    async def scenario():
        gates = {"first": asyncio.Event(), "first second": asyncio.Event()}

        @output_guardrail
        async def slow(context, agent, output):
            await gates[output].wait()
            return GuardrailFunctionOutput(None, tripwire_triggered=False)

        agent = RealtimeAgent(name="host", output_guardrails=[slow])
        settings = {"hold_back_audio": True, "debounce_text_length": 5}
        async with open_scripted_session(agent, guardrails_settings=settings) as (_session, model, recorded):
            await model.emit(
                response_started(), text_delta("first"), text_delta(" second"), *[audio_chunk(100) for _ in range(5)]
            )
            gates["first second"].set()
            await asyncio.sleep(1)
            assert recorded.of_type("audio") == []
            gates["first"].set()
            await asyncio.sleep(1)
            assert len(recorded.of_type("audio")) == 3  # Eleven letters take longer.

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("said", ["fine", "secret"])
async def test_audio_that_was_not_checked_when_the_session_ends_was_not_heard(said):
    slow, history = Slow(), SQLiteSession("call")
    agent = RealtimeAgent(name="host", output_guardrails=[slow.guardrail()])
    async with open_scripted_session(agent, session=history, guardrails_settings=HOLD) as (session, model, recorded):
        await model.emit(response_started(), audio_chunk(), text_delta(said), audio_chunk(), response_ended())
        await slow.asked.wait()
        await session.close()
        await recorded.wait_for("session_closed")
    assert recorded.of_type("audio") == []
    assert said not in str(await history.get_items())
    assert len(recorded.of_type("agent_end")) == 1


@output_guardrail
async def discreet(context, agent, output):
    return GuardrailFunctionOutput(None, "secret" in output)


HOST = RealtimeAgent(name="host", output_guardrails=[discreet])
EAGER = {"hold_back_audio": True, "debounce_text_length": 5}


@in_virtual_time
async def test_audio_that_arrives_before_its_transcript_waits_for_it():
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("It is "), *[audio_chunk(100) for _ in range(20)])
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == 1  # Four letters.
        await model.emit(text_delta("secret"), response_ended())
        await recorded.wait_for("agent_end")
        assert len(recorded.of_type("audio")) == 1


@in_virtual_time
async def test_audio_that_arrives_after_its_transcript_does_not_wait():
    text = "It is ten past four."
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta(text), RealtimeModelTextDoneEvent("i1", text, "r1"))
        await asyncio.sleep(1)
        await model.emit(audio_chunk(5000))
        await recorded.wait_for("audio")


@in_virtual_time
async def test_audio_at_a_higher_speed_is_released_later():
    for speed, many in ((None, 5), (0.5, 5), (1.5, 3)):
        settings = {} if speed is None else {"speed": speed}
        async with open_scripted_session(HOST, guardrails_settings=EAGER, model_settings=settings) as (
            _session,
            model,
            recorded,
        ):
            await model.emit(
                response_started(), text_delta("fifteen letters ok"), *[audio_chunk(100) for _ in range(20)]
            )
            await asyncio.sleep(1)
            assert len(recorded.of_type("audio")) == many


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("fifteen letters", 4),
        ("我們九點開門歡迎光臨", 6),
        ("いらっしゃいませ", 5),
        ("안녕하세요", 3),
        ("⏰🎉 … — !", 0),
    ],
)
@in_virtual_time
async def test_a_syllabic_letter_is_estimated_to_take_longer(text, many):
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        await model.emit(response_started(), text_delta(text), *[audio_chunk(100) for _ in range(20)])
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == many


@in_virtual_time
async def test_each_part_of_an_answer_waits_for_its_own_transcript():
    async with open_scripted_session(HOST, guardrails_settings=EAGER) as (_session, model, recorded):
        done = RealtimeModelTextDoneEvent("i1", "Quite so.", "r1")
        await model.emit(
            response_started(),
            text_delta("Quite so."),
            done,
            audio_chunk(2000),
            audio_chunk(100, "i2"),
            audio_chunk(2000),
        )
        await asyncio.sleep(1)
        assert [event.item_id for event in recorded.of_type("audio")] == ["i1"]
        await model.emit(text_delta("secret", "i2"))
        await recorded.wait_for("guardrail_tripped")
        await asyncio.sleep(1)
        assert [event.item_id for event in recorded.of_type("audio")] == ["i1"]


@in_virtual_time
async def test_text_that_was_corrected_is_checked_again():
    gates = {"It is ten.": asyncio.Event(), "secret ten": asyncio.Event()}

    @output_guardrail
    async def slow(context, agent, output):
        await gates[output].wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="host", output_guardrails=[slow])
    async with open_scripted_session(agent, guardrails_settings=EAGER) as (_session, model, recorded):
        corrected = RealtimeModelTextDoneEvent("i1", "secret ten", "r1")
        await model.emit(response_started(), audio_chunk(100), text_delta("It is ten."), corrected)
        gates["It is ten."].set()
        await asyncio.sleep(1)
        gates["secret ten"].set()
        await recorded.wait_for("guardrail_tripped")
        assert recorded.of_type("audio") == []


def spoken(chance):
    """Some sentences, and from when on each of their letters is heard, in milliseconds: at the end that of silence."""
    text = " ".join(
        chance.choice(["yes", "well", "certainly", "I", "think", "42"]) for _ in range(chance.randint(1, 60))
    )
    if chance.random() < 0.5:
        cut = chance.randint(0, len(text))
        text = f"{text[:cut]} secret {text[cut:]}"
    slowest, places = chance.uniform(34, 150), [chance.uniform(0, 300)]
    for letter in text:
        places.append(places[-1] + (chance.uniform(34, slowest) if letter.isalnum() else chance.uniform(0, 200)))
    return text, places


def pieces(chance, whole, least, most):
    at = 0
    while at < whole:
        size = min(chance.randint(least, most), whole - at)
        yield at, at + size
        at += size


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(30, 150))])
def test_no_audio_is_released_before_its_text_was_checked_in_any_order_of_arrival(seed):
    chance = random.Random(seed)
    text, places = spoken(chance)
    approved = {""}

    @output_guardrail
    async def judge(context, agent, output):
        await asyncio.sleep(chance.choice([0, 0.1, 3]))
        if "secret" not in output:
            approved.add(output)
        return GuardrailFunctionOutput(None, "secret" in output)

    async def scenario():
        agent = RealtimeAgent(name="host", output_guardrails=[judge])
        settings = {"hold_back_audio": True, "debounce_text_length": chance.choice([1, 20, 100])}
        async with open_scripted_session(agent, guardrails_settings=settings) as (session, model, _recorded):
            listening = asyncio.ensure_future(listen(session))
            await model.emit(response_started())
            said = [text_delta(text[a:b]) for a, b in pieces(chance, len(text), 1, 40)]
            said += [RealtimeModelTextDoneEvent("i1", text, "r1")] if chance.random() < 0.7 else []
            sounds = [audio_chunk(b - a) for a, b in pieces(chance, int(places[-1]), 20, 900)]
            while said or sounds:
                first = said if said and (not sounds or chance.random() < chance.choice([0.2, 0.5, 0.9])) else sounds
                await model.emit(first.pop(0))
                await asyncio.sleep(chance.choice([0, 0.05]))
            await model.emit(response_ended())
            await asyncio.sleep(60)
            await session.close()
            recorded = await listening
            assert recorded < int(places[-1]) if "secret" in text else recorded == int(places[-1])

    async def listen(session):
        recorded = 0
        async for event in session.events():
            if event.type == "audio":
                recorded += len(event.audio.data) // 48
                judged = max(map(len, approved))
                assert judged == len(text) or recorded <= places[judged]
        return recorded

    run_in_virtual_time(scenario())
