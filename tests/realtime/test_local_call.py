"""Sessions with the local model in virtual time: agent, tools and speech, compared with the server's conversation."""

import asyncio
import random

import pytest

from factories.realtime_protocol import make_speech
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, EnergyDetector, Pause, ScriptedResponder, ScriptedTranscriber, ToneTTS
from standfast.realtime.local.audio import make_silence
from standfast.testing.virtual_time import run_in_virtual_time

LONG = "One two three four five six seven eight nine ten."
VOICE = asyncio.run(make_speech("Somebody speaks.", pause_ms=0))[300 * 48 :]


@function_tool
async def weather(city: str) -> str:
    """How the weather is."""
    await asyncio.sleep(0.3)
    return f"sunny in {city}"


class Call:
    """A session with a local model, and its events."""

    def __init__(self, responder, **options):
        self.model = LocalRealtimeModel(responder, tts=ToneTTS(), detector=EnergyDetector, **options)
        self.agent = RealtimeAgent(name="host", instructions="Be kind.", tools=[weather])
        self.events = []
        self._event_added = asyncio.Event()

    async def __aenter__(self):
        self.session = await RealtimeRunner(self.agent, model=self.model).run()
        await self.session.enter()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_):
        await self.session.close()
        await self._reader

    async def _read(self):
        async for event in self.session.events():
            self.events.append(event)
            self._event_added.set()

    async def wait_for(self, event_type, count=1):
        while sum(event.type == event_type for event in self.events) < count:
            self._event_added.clear()
            await self._event_added.wait()

    async def speak(self, pcm):
        for start in range(0, len(pcm), 960):
            await self.session.send_audio(pcm[start : start + 960])
            await asyncio.sleep(0.02)

    async def wait_until_idle(self):
        """Wait until no events come and no response is active."""
        while True:
            count = len(self.events)
            await asyncio.sleep(8)
            if len(self.events) == count and self.model.engine.active_response is None:
                return

    @property
    def server_items(self):
        """The items of the server without outputs, which the session keeps in their calls."""
        entries = self.model.engine.conversation
        return [entry for entry in entries if entry.item["type"] != "function_call_output"]


def get_text(item):
    return " ".join(part.transcript or "" if "audio" in part.type else part.text for part in item.content)


def test_a_call_with_speech_a_tool_and_an_interruption():
    async def run():
        transcriber = ScriptedTranscriber(["How is Rome?", "Stop."])
        responder = ScriptedResponder([CallTool("weather", {"city": "Rome"}), LONG, "Okay."])
        async with Call(responder, transcriber=transcriber) as call:
            await call.speak(VOICE + make_silence(700))
            await call.wait_for("tool_end")
            await call.wait_for("audio")
            await asyncio.sleep(0.9)
            await call.speak(VOICE + make_silence(700))
            await call.wait_for("audio_interrupted")
            await call.wait_until_idle()
            history, entries = call.session.history, call.server_items
            assert [item.item_id for item in history] == [entry.id for entry in entries]
            question, tool_call, truncated, stop, okay = history
            assert (get_text(question), get_text(stop), get_text(okay)) == ("How is Rome?", "Stop.", "Okay.")
            assert (tool_call.name, tool_call.output) == ("weather", "sunny in Rome")
            assert entries[2].truncated_at_ms == truncated.content[0].audio_end_ms
            words = LONG.split()
            assert 2 <= len(get_text(truncated).split()) < len(words)
            assert LONG.startswith(get_text(truncated))
            # The session knows where playback stopped; only the server knows where each word ended.
            assert abs(len(get_text(truncated).split()) - len(entries[2].text.split())) <= 1
            texts = [item["content"][0]["text"] for item in responder.requests[-1].items if item["type"] == "message"]
            assert texts == ["How is Rome?", entries[2].text, "Stop."]

    run_in_virtual_time(run())


ACTIONS = ["write", "write", "speak", "speak", "mumble", "interrupt", "wait", "wait", "long wait"]


async def run_random_steps(call, dice):
    for _ in range(dice.randint(3, 12)):
        match dice.choice(ACTIONS):
            case "write":
                await call.session.send_message(f"message {dice.random():.3f}")
            case "speak":
                await call.speak(VOICE + make_silence(600))
            case "mumble":
                await call.speak(VOICE[: dice.randrange(0, len(VOICE), 960)])
            case "interrupt":
                await call.session.interrupt()
            case "wait":
                await asyncio.sleep(dice.random())
            case "long wait":
                await asyncio.sleep(5 * dice.random())
    await call.speak(make_silence(700))
    await call.wait_until_idle()


@pytest.mark.parametrize("seed", range(12))
def test_after_any_conversation_session_and_server_have_the_same_items(seed):
    dice = random.Random(seed)
    turns = [
        dice.choice([LONG, "Yes.", [Pause(dice.random()), "Well."], CallTool("weather", {"city": "Oslo"})])
        for _ in range(200)
    ]

    async def run():
        transcriber = ScriptedTranscriber(default="something")
        async with Call(turns, transcriber=transcriber, pace=dice.choice([None, 1.0, 4.0])) as call:
            await run_random_steps(call, dice)
            items = {item.item_id: item for item in call.session.history}
            assert list(items) == [entry.id for entry in call.server_items]
            for entry in call.server_items:
                item = items[entry.id]
                if entry.item["type"] == "function_call":
                    assert item.output == "sunny in Oslo"
                elif entry.truncated_at_ms is None:
                    assert get_text(item) == entry.text
                else:
                    assert item.content[0].audio_end_ms == entry.truncated_at_ms
            errors = [event.error for event in call.events if event.type == "error"]
            assert errors == []

    run_in_virtual_time(run())
