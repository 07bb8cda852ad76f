"""A session on the local model: agent, tools and voice together, in virtual time, against what the server remembers."""

import asyncio
import random

import pytest

from realtime.wire import speech
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, EnergyDetector, Pause, ScriptedResponder, ScriptedTranscriber, ToneTTS
from standfast.realtime.local.audio import make_silence
from standfast.testing.virtual_time import run_in_virtual_time

LONG = "One two three four five six seven eight nine ten."
VOICE = asyncio.run(speech("Somebody speaks.", pause_ms=0))[300 * 48 :]


@function_tool
async def weather(city: str) -> str:
    """How the weather is."""
    await asyncio.sleep(0.3)
    return f"sunny in {city}"


class Talk:
    """A session on a local model, with everything it told."""

    def __init__(self, brain, **options):
        self.model = LocalRealtimeModel(brain, tts=ToneTTS(), detector=EnergyDetector, **options)
        self.agent = RealtimeAgent(name="host", instructions="Be kind.", tools=[weather])
        self.events = []
        self._news = asyncio.Event()

    async def __aenter__(self):
        self.session = await RealtimeRunner(self.agent, model=self.model).run()
        await self.session.enter()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_):
        await self.session.close()
        await self._reading

    async def _read(self):
        async for event in self.session:
            self.events.append(event)
            self._news.set()

    async def until(self, kind, count=1):
        while sum(event.type == kind for event in self.events) < count:
            self._news.clear()
            await self._news.wait()

    async def speak(self, pcm):
        for start in range(0, len(pcm), 960):
            await self.session.send_audio(pcm[start : start + 960])
            await asyncio.sleep(0.02)

    async def quiet(self):
        """Wait until nothing is being said, thought or called."""
        while True:
            before = len(self.events)
            await asyncio.sleep(8)
            if len(self.events) == before and self.model.engine.active_response is None:
                return

    @property
    def remembered(self):
        """The server's items; an output belongs to its call."""
        found = self.model.engine.conversation
        return [entry for entry in found if entry.item["type"] != "function_call_output"]


def text_of(item):
    return " ".join(part.transcript or "" if "audio" in part.type else part.text for part in item.content)


def test_a_call_with_speech_a_tool_and_an_interruption():
    async def call():
        heard = ScriptedTranscriber(["How is Rome?", "Stop."])
        brain = ScriptedResponder([CallTool("weather", {"city": "Rome"}), LONG, "Okay."])
        async with Talk(brain, transcriber=heard) as talk:
            await talk.speak(VOICE + make_silence(700))
            await talk.until("tool_end")
            await talk.until("audio")
            await asyncio.sleep(0.9)
            await talk.speak(VOICE + make_silence(700))
            await talk.until("audio_interrupted")
            await talk.quiet()
            history, remembered = talk.session.history, talk.remembered
            assert [item.item_id for item in history] == [entry.id for entry in remembered]
            question, made, cut, stop, okay = history
            assert (text_of(question), text_of(stop), text_of(okay)) == ("How is Rome?", "Stop.", "Okay.")
            assert (made.name, made.output) == ("weather", "sunny in Rome")
            assert remembered[2].truncated_at_ms == cut.content[0].audio_end_ms
            words = LONG.split()
            assert 2 <= len(text_of(cut).split()) < len(words)
            assert LONG.startswith(text_of(cut))
            # The session knows where playback stopped; only the server knows where each word ended.
            assert abs(len(text_of(cut).split()) - len(remembered[2].text.split())) <= 1
            said = [item["content"][0]["text"] for item in brain.requests[-1].items if item["type"] == "message"]
            assert said == ["How is Rome?", remembered[2].text, "Stop."]

    run_in_virtual_time(call())


ACTIONS = ["write", "write", "speak", "speak", "mumble", "interrupt", "wait", "wait", "long wait"]


async def wander(talk, dice):
    for _ in range(dice.randint(3, 12)):
        match dice.choice(ACTIONS):
            case "write":
                await talk.session.send_message(f"message {dice.random():.3f}")
            case "speak":
                await talk.speak(VOICE + make_silence(600))
            case "mumble":
                await talk.speak(VOICE[: dice.randrange(0, len(VOICE), 960)])
            case "interrupt":
                await talk.session.interrupt()
            case "wait":
                await asyncio.sleep(dice.random())
            case "long wait":
                await asyncio.sleep(5 * dice.random())
    await talk.speak(make_silence(700))
    await talk.quiet()


@pytest.mark.parametrize("seed", range(12))
def test_after_any_talk_the_session_and_the_server_remember_the_same(seed):
    dice = random.Random(seed)
    turns = [
        dice.choice([LONG, "Yes.", [Pause(dice.random()), "Well."], CallTool("weather", {"city": "Oslo"})])
        for _ in range(200)
    ]

    async def call():
        heard = ScriptedTranscriber(default="something")
        async with Talk(turns, transcriber=heard, pace=dice.choice([None, 1.0, 4.0])) as talk:
            await wander(talk, dice)
            shown = {item.item_id: item for item in talk.session.history}
            assert list(shown) == [entry.id for entry in talk.remembered]
            for entry in talk.remembered:
                item = shown[entry.id]
                if entry.item["type"] == "function_call":
                    assert item.output == "sunny in Oslo"
                elif entry.truncated_at_ms is None:
                    assert text_of(item) == entry.text
                else:
                    assert item.content[0].audio_end_ms == entry.truncated_at_ms
            errors = [event.error for event in talk.events if event.type == "error"]
            assert errors == []

    run_in_virtual_time(call())
