"""Audio that is held back until its words were found good: what is refused was never heard, and nothing says it was."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from holdfast import SQLiteSession, open_store, output_guardrail
from holdfast.agents.guardrails import GuardrailFunctionOutput
from holdfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from holdfast.realtime.local import EnergyDetector, ToneVoice
from holdfast.testing import RealtimeServer
from holdfast.testing.virtual_time import run_in_virtual_time
from realtime.wire import speech
from realtime_kit import ended, eventually, listening, sound, started, talking, words

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
    async with listening(live) as heard, live:
        yield live, heard


def local(*turns):
    return LocalRealtimeModel(turns, voice=ToneVoice(), detector=EnergyDetector, pace=None)


def answers(session):
    return [item for item in session.history if item.role == "assistant"]


def told(heard, *kinds):
    return [event.type for event in heard.events if event.type in kinds]


async def test_a_refusal_is_told_before_the_end_of_the_answer_it_refuses():
    slow = Slow()
    async with RealtimeServer([SECRET, "Never mind."]) as server:
        options = {"url": server.url, "api_key": "test"}
        async with call(None, slow.guardrail(), options=options) as (session, heard):
            await session.send_message("Tell me.")
            await slow.asked.wait()
            await eventually(lambda: [e for e in heard.of("raw_model_event") if e.data.type == "turn_ended"])
            slow.may_answer.set()
            await heard.until("agent_end", 2)
            order = told(heard, "agent_start", "guardrail_tripped", "agent_end", "audio")
            assert order[:3] == ["agent_start", "guardrail_tripped", "agent_end"]


def test_a_refused_answer_counts_as_heard_nowhere():
    async def scenario():
        slow, model = Slow(), local(SECRET, "Never mind.")
        async with open_store("memory://") as store:
            history = store.session("call")
            async with call(model, slow.guardrail(), session=history) as (session, heard):
                await session.send_message("Tell me.")
                await asyncio.sleep(0.3)  # A good part of it would have been heard, had it been passed on.
                slow.may_answer.set()
                await heard.until("agent_end", 2)
                refused, other = answers(session)
                assert (refused.status, refused.content[0].transcript) == ("incomplete", "")
                assert refused.content[0].generated_transcript == SECRET
                assert {event.item_id for event in heard.of("audio")} == {other.item_id}
                assert session.metrics["truncated"].count == 1
                assert model.engine.conversation.find(refused.item_id).cut_ms == 0
            assert "swordfish" not in str(await history.get_items())

    run_in_virtual_time(scenario())


def test_what_was_held_back_when_the_user_spoke_was_not_heard():
    async def scenario():
        slow = Slow()
        async with call(local("A good answer that takes a while to say."), slow.guardrail()) as (session, heard):
            await session.send_message("Well?")
            await asyncio.sleep(0.3)
            await session.send_audio(await speech())
            interrupted = await heard.until("audio_interrupted")
            slow.may_answer.set()
            cut = next(item for item in answers(session) if item.item_id == interrupted.item_id)
            assert (cut.content[0].transcript, cut.content[0].audio_end_ms) == ("", 0)
            await heard.until("agent_end")
            assert not [event for event in heard.of("audio") if event.item_id == interrupted.item_id]

    run_in_virtual_time(scenario())


def test_what_was_let_go_is_heard_from_then_on():
    async def scenario():
        slow = Slow()
        async with call(local("A good answer that takes a while to say."), slow.guardrail()) as (session, heard):
            await session.send_message("Well?")
            await asyncio.sleep(0.5)
            slow.may_answer.set()
            await heard.until("agent_end")
            await asyncio.sleep(0.1)
            await session.interrupt()
            assert answers(session)[0].content[0].audio_end_ms == 100
            assert round(session.metrics["time_to_first_audio"].last) == 500

    run_in_virtual_time(scenario())


def test_verdicts_that_come_in_another_order_let_nothing_go_too_early():
    async def scenario():
        gates = {"first": asyncio.Event(), "first second": asyncio.Event()}

        @output_guardrail
        async def slow(context, agent, output):
            await gates[output].wait()
            return GuardrailFunctionOutput(None, tripwire_triggered=False)

        agent = RealtimeAgent(name="host", output_guardrails=[slow])
        settings = {"hold_back_audio": True, "debounce_text_length": 5}
        async with talking(agent, guardrails_settings=settings) as (_session, model, heard):
            await model.emit(started(), sound(10), words("first"), sound(20), words(" second"), sound(40), sound(50))
            gates["first second"].set()
            await asyncio.sleep(1)
            assert heard.of("audio") == []
            gates["first"].set()
            await asyncio.sleep(1)
            assert [len(event.audio.data) // 48 for event in heard.of("audio")] == [10, 20]

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("said", ["fine", "secret"])
async def test_what_nobody_has_judged_at_the_end_of_the_call_was_not_heard(said):
    slow, history = Slow(), SQLiteSession("call")
    agent = RealtimeAgent(name="host", output_guardrails=[slow.guardrail()])
    async with talking(agent, session=history, guardrails_settings=HOLD) as (session, model, heard):
        await model.emit(started(), sound(), words(said), sound(), ended())
        await slow.asked.wait()
        await session.close()
        await heard.until("session_closed")
    assert heard.of("audio") == []
    assert said not in str(await history.get_items())
    assert len(heard.of("agent_end")) == 1
