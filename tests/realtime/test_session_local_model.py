"""Sessions over the local model: real audio and protocol, in virtual time."""

import asyncio

from factories.realtime import in_virtual_time, record_events
from factories.realtime_protocol import make_speech
from standfast import function_tool, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, EnergyDetector, ScriptedTranscriber, ToneTTS

LONG = "One two three four five six seven eight nine ten."


def local(turns, **options):
    return LocalRealtimeModel(turns, **{"tts": ToneTTS(), "detector": EnergyDetector, **options})


async def speak(session, pcm):
    """Audio as a microphone gives it: 20 ms every 20 ms."""
    for start in range(0, len(pcm), 960):
        await session.send_audio(pcm[start : start + 960])
        await asyncio.sleep(0.02)


@in_virtual_time
async def test_speech_is_answered_and_interrupted_and_the_heard_part_is_kept():
    async with open_store("memory://") as store:
        history = store.session("call")
        model = local([LONG, "Okay."], transcriber=ScriptedTranscriber(["Count.", "Stop."]))
        session = await RealtimeRunner(RealtimeAgent(name="a"), model=model).run(session=history)
        async with record_events(session) as recorded, session:
            await speak(session, await make_speech(pause_ms=700))
            await recorded.wait_for("audio")
            await asyncio.sleep(0.9)
            await speak(session, (await make_speech("Stop it.", pause_ms=0))[300 * 48 :])
            await recorded.wait_for("audio_interrupted")
            audio = len(recorded.of_type("audio"))
            end = await recorded.wait_for("agent_end")
            assert (end.status, len(recorded.of_type("audio"))) == ("cancelled", audio)
            await speak(session, bytes(48 * 700))
            await recorded.wait_for("agent_end", 2)
            said = session.history
            assert [item.item_id for item in said] == [entry.id for entry in model.engine.conversation]
            cut = said[1].content[0]
            assert LONG.startswith(cut.transcript)
            assert 0 < len(cut.transcript) < len(cut.generated_transcript)
            whole = said[3].content[0]
            assert (whole.transcript, whole.generated_transcript, whole.audio_end_ms) == ("Okay.", None, None)
            assert session.metrics["truncated"].last > 0
            assert 0 <= session.metrics["interruption"].last < 100
            assert session.metrics["time_to_first_audio"].count == 2
        texts = [item["content"] for item in await history.get_items()]
        assert [texts[0], texts[2]] == ["Count.", "Stop."]
        assert texts[1][0]["text"] == cut.transcript
        assert texts[3][0]["text"] == "Okay."


@in_virtual_time
async def test_speech_without_a_transcript_is_answered_and_written_without_an_error(caplog):
    async with open_store("memory://") as store:
        history = store.session("call")
        model = local(["Good day.", "Still here."])
        session = await RealtimeRunner(RealtimeAgent(name="a"), model=model).run(session=history)
        async with record_events(session) as recorded, session:
            for turn in (1, 2):
                await speak(session, await make_speech(pause_ms=700))
                await recorded.wait_for("agent_end", turn)
            assert recorded.of_type("error") == []
            await asyncio.sleep(3)
            assert [item["role"] for item in await history.get_items()] == ["user", "assistant"] * 2
    logged = [record.getMessage() for record in caplog.records if "transcriber" in record.getMessage()]
    assert len(logged) == 1


@in_virtual_time
async def test_a_failing_transcriber_is_reported():
    class Deaf:
        async def transcribe(self, audio):
            raise RuntimeError("no ears")

    session = await RealtimeRunner(RealtimeAgent(name="a"), model=local(["Pardon?"], transcriber=Deaf())).run()
    async with record_events(session) as recorded, session:
        await speak(session, await make_speech(pause_ms=700))
        assert "no ears" in str((await recorded.wait_for("error")).error)


@in_virtual_time
async def test_interrupt_returns_when_the_response_is_over_and_nothing_is_heard_after_it():
    model = local([LONG, "Yes?"])
    session = await RealtimeRunner(RealtimeAgent(name="a"), model=model).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Count.")
        await recorded.wait_for("audio")
        await asyncio.sleep(0.5)
        await session.interrupt()
        assert model.engine.active_response is None
        before = len(recorded.of_type("audio"))
        assert recorded.of_type("agent_end")[-1].status == "cancelled"
        await asyncio.sleep(1)
        assert len(recorded.of_type("audio")) == before
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end", 2)
        assert session.history[-1].content[0].transcript == "Yes?"


@in_virtual_time
async def test_tools_and_handoffs_in_a_conversation():
    @function_tool
    async def weather(city: str) -> str:
        await asyncio.sleep(2)
        return f"sunny in {city}"

    billing = RealtimeAgent(name="billing", instructions="You do the billing.")
    front = RealtimeAgent(name="front", tools=[weather], handoffs=[billing])
    model = local(
        [
            ["Let me see.", CallTool("weather", {"city": "Rome"})],
            "Sunny.",
            [CallTool("weather", {"city": "Oslo"}), CallTool("transfer_to_billing")],
            "Billing here.",
            "And Oslo is sunny.",
        ]
    )
    session = await RealtimeRunner(front, model=model).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Weather?")
        await recorded.wait_for("agent_end", 2)
        await session.send_message("And my bill?")
        await recorded.wait_for("agent_end", 5)
        assert session.current_agent is billing
        assert [event.agent.name for event in recorded.of_type("agent_start")] == ["front"] * 3 + ["billing"] * 2
        assert [event.agent.name for event in recorded.of_type("tool_end")] == ["front", "front"]
        assert recorded.of_type("error") == []
        assert model.engine.to_wire()["instructions"] == "You do the billing."
        assert session.metrics["tool_gap"].p50 > 1999


@in_virtual_time
async def test_a_refused_answer_is_never_heard_when_audio_is_held_back():
    @output_guardrail(name="discretion")
    async def discreet(context, agent, output):
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    model = local(["The secret number is seven.", "I cannot say that."])
    config = {"guardrails_settings": {"debounce_text_length": 8, "hold_back_audio": True}}
    session = await RealtimeRunner(agent, model=model, config=config).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Tell me.")
        await recorded.wait_for("agent_end", 2)
        assert len(recorded.of_type("guardrail_tripped")) == 1
        refused = recorded.of_type("guardrail_tripped")[0].response_id
        played = [event for event in recorded.of_type("audio") if event.audio.response_id == refused]
        assert sum(len(event.audio.data) for event in played) <= 48 * 1000 * 0.8  # at most "The"
        assert session.history[-2].content[0].text == "guardrail triggered: discretion"
        assert session.history[-1].content[0].transcript == "I cannot say that."


@in_virtual_time
async def test_an_hour_of_conversation_rolls_over_before_the_limit():
    model = local(["One.", "Two."], session_seconds=3600)
    session = await RealtimeRunner(RealtimeAgent(name="a"), model=model).run()
    async with record_events(session) as recorded, session:
        await session.send_message("First.")
        await recorded.wait_for("agent_end")
        await asyncio.sleep(3590)
        assert (await recorded.wait_for("reconnected")).planned
        await asyncio.sleep(100)
        await session.send_message("Second.")
        await recorded.wait_for("agent_end", 2)
        assert [entry.text for entry in model.engine.conversation] == ["First.", "One.", "Second.", "Two."]
        assert recorded.of_type("error") == []
