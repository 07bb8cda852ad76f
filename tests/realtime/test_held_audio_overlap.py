"""Held audio of responses that follow each other faster than the guardrails check them."""

import asyncio
import random

import pytest

from factories.realtime import (
    agent_with_slow_guardrail,
    get_texts,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    short_response,
)
from standfast import RunHooks, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeModelSendInterrupt
from standfast.realtime.local import EnergyDetector, ToneTTS
from standfast.realtime.model_events import RealtimeModelAudioInterruptedEvent, RealtimeModelSpeechStartedEvent
from standfast.realtime.testing import RealtimeStep, ScriptedRealtimeModel

HOLD = {"hold_back_audio": True, "timeout": None}


def list_events(recorded, *kinds):
    return [(event.type, event.response_id) for event in recorded.events if event.type in kinds]


@in_virtual_time
async def test_the_end_of_a_response_is_announced_before_the_next_one_starts():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), guardrails_settings=HOLD) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
        for verdict in verdicts.values():
            verdict.set()
        await recorded.wait_for("agent_end", 2)
        order = [("agent_start", "r1"), ("agent_end", "r1"), ("agent_start", "r2"), ("agent_end", "r2")]
        assert list_events(recorded, "agent_start", "agent_end") == order


@in_virtual_time
async def test_an_end_is_announced_even_if_the_start_of_the_next_response_was_not_reported():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), guardrails_settings=HOLD) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well")[1:])
        for verdict in reversed(verdicts.values()):
            verdict.set()
        await recorded.wait_for("agent_end", 2)
        assert list_events(recorded, "agent_end") == [("agent_end", "r1"), ("agent_end", "r2")]


@pytest.mark.parametrize("text", ["fine", "secret"])
@in_virtual_time
async def test_a_response_whose_end_was_announced_resets_the_trip_count_only_after_its_check(text):
    verdicts, good = {text: asyncio.Event(), "well": asyncio.Event()}, text == "fine"
    async with open_store("memory://") as store:
        history = store.session("call")
        async with open_scripted_session(
            agent_with_slow_guardrail(verdicts), session=history, guardrails_settings=HOLD
        ) as (session, model, recorded):
            await model.emit(*short_response(1, text), *short_response(2, "well")[:-1])
            await recorded.wait_for("agent_end")
            await asyncio.sleep(1)
            assert (recorded.of_type("audio"), await history.get_items()) == ([], [])
            verdicts[text].set()
            await asyncio.sleep(1)
            assert len(recorded.of_type("audio")) == good
            assert len(recorded.of_type("guardrail_tripped")) == (not good)
            assert session.history[0].content[0].transcript == (text if good else "")
            verdicts["well"].set()
            await model.emit(response_ended("r2"))
            await recorded.wait_for("agent_end", 2)
        assert (text in str(await history.get_items())) is good


@pytest.mark.parametrize("order", [["a secret", "well"], ["well", "a secret"]])
@in_virtual_time
async def test_the_server_does_not_count_a_refused_answer_as_heard_because_of_the_next(order):
    verdicts = {"a secret": asyncio.Event(), "well": asyncio.Event()}
    model = LocalRealtimeModel(list(verdicts), tts=ToneTTS(), detector=EnergyDetector, pace=None)
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), model, guardrails_settings=HOLD) as (
        session,
        _model,
        recorded,
    ):
        for number in (1, 2):
            await session.send_message("go on")
            await recorded.wait_for("agent_start", number)
            await asyncio.sleep(5)
        for text in order:
            verdicts[text].set()
            await asyncio.sleep(0.1)
        await recorded.wait_for("audio_interrupted")
        await asyncio.sleep(1)
        answers = [entry for entry in model.engine.conversation if entry.item.get("role") == "assistant"]
        assert [entry.text for entry in answers] == ["", "well"]


@in_virtual_time
async def test_an_answer_that_was_skipped_is_not_interrupted_with_the_next():
    verdicts = {"never judged": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    model = LocalRealtimeModel(list(verdicts), tts=ToneTTS(), detector=EnergyDetector, pace=None)
    async with open_scripted_session(
        agent_with_slow_guardrail(verdicts), model, guardrails_settings={**HOLD, "timeout": 1.0}
    ) as (
        session,
        _model,
        recorded,
    ):
        await session.send_message("go on")
        await recorded.wait_for("agent_end")
        await session.send_message("go on")
        await recorded.wait_for("audio")
        await session.interrupt()
        assert [event.item_id for event in recorded.of_type("audio_interrupted")] == [session.history[-1].item_id]


@in_virtual_time
async def test_a_refusal_while_the_user_speaks_stops_only_what_is_refused():
    verdicts = {"secret": asyncio.Event(), "well": asyncio.Event()}
    cut = RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=0)
    model = ScriptedRealtimeModel([RealtimeStep(RealtimeModelSendInterrupt, emit=[cut])], strict=False)
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), model, guardrails_settings=HOLD) as (
        session,
        _model,
        recorded,
    ):
        await model.emit(
            RealtimeModelSpeechStartedEvent("u1", 0), *short_response(1, "secret"), *short_response(2, "well")
        )
        verdicts["secret"].set()
        await recorded.wait_for("audio_interrupted")
        verdicts["well"].set()
        assert (await recorded.wait_for("audio")).item_id == "i2"
        assert get_texts(session) == ["", "well"]


@in_virtual_time
async def test_hooks_are_called_in_the_order_of_the_answers():
    called = []

    class Hooks(RunHooks):
        async def on_agent_start(self, context, agent):
            called.append("start")

        async def on_agent_end(self, context, agent, output):
            called.append(output)

    verdicts = {"one": asyncio.Event(), "two": asyncio.Event()}
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), hooks=Hooks(), guardrails_settings=HOLD) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, "one"), *short_response(2, "two"))
        for verdict in verdicts.values():
            verdict.set()
        await recorded.wait_for("agent_end", 2)
        await asyncio.sleep(1)
        assert called == ["start", "one", "start", "two"]


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 50))])
@in_virtual_time
async def test_each_answer_begins_and_ends_once_before_the_next_begins(seed):
    chance = random.Random(seed)

    @output_guardrail
    async def judge(context, agent, output):
        await asyncio.sleep(chance.choice([0, 0.1, 1, 40]))
        return GuardrailFunctionOutput(None, chance.random() < 0.2)

    agent = RealtimeAgent(name="host", output_guardrails=[judge])
    settings = {"hold_back_audio": True, "debounce_text_length": chance.choice([1, 20])}
    async with open_scripted_session(agent, guardrails_settings=settings) as (_session, model, recorded):
        for number in range(10):
            for event in short_response(number, chance.choice(["yes", "certainly not today"])):
                await model.emit(event)
                await asyncio.sleep(chance.choice([0, 0.05, 2]))
        await asyncio.sleep(500)
        spoken = [event.item_id for event in recorded.of_type("audio")]
        assert spoken == sorted(spoken)
        order = [(kind, f"r{number}") for number in range(10) for kind in ("agent_start", "agent_end")]
        assert list_events(recorded, "agent_start", "agent_end") == order
