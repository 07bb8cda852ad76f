"""Voice pipelines with scripted speech models: what is said, in which order, and how errors end it."""

import numpy
import pytest

from standfast import Agent, InvalidDeclaration, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.voice import (
    AudioInput,
    SingleAgentVoiceWorkflow,
    SingleAgentWorkflowCallbacks,
    StreamedAudioInput,
    TTSModelSettings,
    VoicePipeline,
    VoicePipelineConfig,
    get_sentence_based_splitter,
)
from standfast.voice.testing import (
    ScriptedSTTModel,
    ScriptedTranscriptionSession,
    ScriptedTTSModel,
    ScriptedVoiceWorkflow,
    TTSResult,
    UnconsumedVoiceSteps,
    UnexpectedVoiceCall,
    pcm16_samples,
)

SILENCE = AudioInput(numpy.zeros(10, dtype=numpy.int16))


def make_pipeline(workflow, *, heard=("hello",), spoken=(), sessions=(), **settings):
    return VoicePipeline(
        workflow=workflow,
        stt_model=ScriptedSTTModel(heard, sessions=sessions),
        tts_model=ScriptedTTSModel(spoken),
        config=VoicePipelineConfig(tts_settings=TTSModelSettings(**settings)),
    )


async def collect(result):
    return [
        event.event if event.type == "voice_stream_event_lifecycle" else event.data.ravel().tolist()
        async for event in result.stream()
    ]


async def test_sentences_are_spoken_in_order():
    workflow = ScriptedVoiceWorkflow([["This is the first ", "sentence here. And ", "this is another one."]])
    spoken = [TTSResult([pcm16_samples([1, 2]), pcm16_samples([3])]), TTSResult([pcm16_samples([4])])]
    pipeline = make_pipeline(workflow, spoken=spoken)
    events = await collect(await pipeline.run(SILENCE))
    assert events == ["turn_started", [1, 2, 3], [4], "turn_ended", "session_ended"]
    texts = [call.text for call in pipeline.tts_model.calls]
    assert texts == ["This is the first sentence here.", "And this is another one."]
    assert workflow.transcriptions == ("hello",)


async def test_audio_has_the_type_size_and_form_that_the_settings_ask_for():
    def run(**settings):
        spoken = [TTSResult([pcm16_samples([32767]), pcm16_samples([2]), b"\x03"])]
        return make_pipeline(ScriptedVoiceWorkflow(["hi"]), spoken=spoken, **settings).run(SILENCE)

    assert (await collect(await run(buffer_size=1)))[1:4] == [[32767], [2], [3]]
    assert (await collect(await run(transform_data=lambda samples: samples // 2)))[1] == [16383, 1, 1]
    [event] = [event async for event in (await run(dtype=numpy.float32)).stream() if hasattr(event, "data")]
    assert (event.data.dtype, event.data.shape, float(event.data[0, 0])) == (numpy.float32, (3, 1), 1.0)
    with pytest.raises(InvalidDeclaration, match="dtype"):
        await collect(await run(dtype=numpy.int8))


async def test_every_turn_of_streamed_audio_is_answered_after_the_greeting():
    session = ScriptedTranscriptionSession(["one", "two"])
    spoken = [TTSResult([pcm16_samples([number])]) for number in range(3)]
    workflow = ScriptedVoiceWorkflow(["First.", "Second."], start="Welcome.")
    pipeline = make_pipeline(workflow, spoken=spoken, sessions=[session])
    audio = StreamedAudioInput()
    await audio.add_audio(None)
    events = await collect(await pipeline.run(audio))
    turns = [["turn_started", [number], "turn_ended"] for number in range(3)]
    assert events == [*turns[0], *turns[1], *turns[2], "session_ended"]
    assert (workflow.transcriptions, session.closed) == (("one", "two"), True)


@pytest.mark.parametrize(
    ("heard", "said", "spoken"),
    [
        ([RuntimeError("no")], [], []),
        (["x"], [RuntimeError("no")], []),
        (["x"], ["A sentence."], [RuntimeError("no")]),
    ],
    ids=["recognition", "workflow", "synthesis"],
)
async def test_an_error_is_raised_to_the_reader(heard, said, spoken):
    result = await make_pipeline(ScriptedVoiceWorkflow(said), heard=heard, spoken=spoken).run(SILENCE)
    with pytest.raises(RuntimeError, match="no"):
        await collect(result)


@pytest.mark.parametrize("turns", [["x"], ["x", RuntimeError("turn")]], ids=["clean", "failed"])
async def test_an_error_of_closing_does_not_hide_that_of_the_turn(turns):
    session = ScriptedTranscriptionSession(turns, close_error=RuntimeError("close"))
    pipeline = make_pipeline(ScriptedVoiceWorkflow(["a"]), spoken=[b"\0\0"], sessions=[session])
    with pytest.raises(RuntimeError, match="turn" if len(turns) == 2 else "close"):
        await collect(await pipeline.run(StreamedAudioInput()))


async def test_leaving_the_iteration_ends_the_pipeline():
    session = ScriptedTranscriptionSession(["one", "two"])
    spoken = [TTSResult([pcm16_samples([1])]) for _ in range(2)]
    pipeline = make_pipeline(ScriptedVoiceWorkflow(["First.", "Second."]), spoken=spoken, sessions=[session])
    result = await pipeline.run(StreamedAudioInput())
    stream = result.stream()
    assert (await anext(stream)).event == "turn_started"
    await stream.aclose()
    assert result.task.done()


async def test_an_agent_talks_over_several_turns_and_hands_off():
    @function_tool
    def look() -> str:
        return "sunny"

    second = Agent("second", model=ScriptedModel([[assistant_message("Hola. Buenos dias a todos.")]]))
    first = Agent(
        "first",
        tools=[look],
        handoffs=[second],
        model=ScriptedModel(
            [
                [function_call("look", {}, call_id="c1")],
                [assistant_message("It is sunny.")],
                [function_call("transfer_to_second", {}, call_id="h")],
            ]
        ),
    )
    heard = []

    class Callbacks(SingleAgentWorkflowCallbacks):
        def on_run(self, workflow, transcription):
            heard.append(transcription)

    spoken = [TTSResult([pcm16_samples([1])])] * 3
    workflow = SingleAgentVoiceWorkflow(first, Callbacks())
    pipeline = make_pipeline(workflow, spoken=spoken, sessions=[["weather?", "en espanol"]])
    await collect(await pipeline.run(StreamedAudioInput()))
    assert heard == ["weather?", "en espanol"]
    assert [call.text for call in pipeline.tts_model.calls] == ["It is sunny.", "Hola. Buenos dias a todos."]
    assert [item.get("content") for item in second.model.calls[0].input if item.get("role") == "user"] == heard


def test_text_is_split_at_the_end_of_sentences():
    split = get_sentence_based_splitter()
    assert split("Hello. How are you doing today? Fine") == ("Hello. How are you doing today?", "Fine")
    assert split("Short. And") == ("", "Short. And")
    assert get_sentence_based_splitter(3)("Short. And") == ("Short.", "And")


def test_recordings_become_files():
    audio = AudioInput(numpy.array([0.5, -1.0, 2.0], dtype=numpy.float32))
    name, file, kind = audio.to_audio_file()
    assert (name, kind, file.read()[-6:]) == ("audio.wav", "audio/wav", b"\xff?\x01\x80\xff\x7f")
    with pytest.raises(TypeError, match="int8"):
        AudioInput(numpy.zeros(1, dtype=numpy.int8)).to_base64()


async def test_scripts_say_what_does_not_fit():
    model = ScriptedSTTModel(["a"])
    with pytest.raises(UnconsumedVoiceSteps):
        model.assert_complete()
    await collect(
        await VoicePipeline(workflow=ScriptedVoiceWorkflow([[]]), stt_model=model, tts_model=ScriptedTTSModel()).run(
            SILENCE
        )
    )
    model.assert_complete()
    with pytest.raises(UnexpectedVoiceCall):
        await collect(await make_pipeline(ScriptedVoiceWorkflow([]), heard=[]).run(SILENCE))


async def test_settings_are_checked():
    with pytest.raises(InvalidDeclaration, match="unknown setting"):
        VoicePipeline(workflow=ScriptedVoiceWorkflow(), config={"colour": 1})
    with pytest.raises(InvalidDeclaration, match="AudioInput"):
        await make_pipeline(ScriptedVoiceWorkflow()).run(b"")
