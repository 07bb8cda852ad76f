import asyncio

import numpy as np
from agents import Agent, function_tool
from agents.voice import (
    AudioInput,
    SingleAgentVoiceWorkflow,
    StreamedAudioInput,
    TTSModelSettings,
    VoicePipeline,
    VoicePipelineConfig,
)
from agents.voice.testing import ScriptedSTTModel, ScriptedTTSModel, TTSResult


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


heard = []


class Callbacks:
    def on_run(self, workflow, transcription) -> None:
        heard.append(transcription)


async def main() -> None:
    agent = Agent(name="A", model="gpt-4.1", tools=[add])
    stt = ScriptedSTTModel(
        ["hello there, how are you today?"],
        sessions=[["one two three four five six", "second turn with several words"]],
    )
    tts = ScriptedTTSModel([TTSResult(chunks=[b"\x01\x00" * 50])] * 6)
    pipeline = VoicePipeline(
        workflow=SingleAgentVoiceWorkflow(agent, callbacks=Callbacks()),
        stt_model=stt,
        tts_model=tts,
        config=VoicePipelineConfig(tracing_disabled=True, tts_settings=TTSModelSettings(voice="alloy", buffer_size=1)),
    )
    result = await pipeline.run(
        AudioInput(buffer=np.zeros(100, dtype=np.int16), frame_rate=24000, sample_width=2, channels=1)
    )
    async for event in result.stream():
        print(
            event.type,
            getattr(event, "event", None),
            None if getattr(event, "data", None) is None else event.data.shape,
        )
    print(result.total_output_text)
    streamed = StreamedAudioInput()
    await streamed.add_audio(np.zeros(100, dtype=np.int16))
    result = await pipeline.run(streamed)
    async for event in result.stream():
        print(event.type, getattr(event, "event", None))
    print([call.text for call in tts.calls], len(stt.calls), len(stt.session_calls), heard)


asyncio.run(main())
