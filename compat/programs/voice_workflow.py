"""A voice workflow of one's own: two agents, a keyword and an intro."""

import asyncio

import numpy as np
from agents import Agent, Runner
from agents.voice import (
    AudioInput,
    StreamedAudioInput,
    VoicePipeline,
    VoicePipelineConfig,
    VoiceWorkflowBase,
    VoiceWorkflowHelper,
)
from agents.voice.testing import ScriptedSTTModel, ScriptedTTSModel, TTSResult

spanish = Agent(name="Spanish", instructions="Speak Spanish.", model="gpt-4.1")
agent = Agent(name="Assistant", instructions="Be polite.", model="gpt-4.1", handoffs=[spanish])


class Workflow(VoiceWorkflowBase):
    def __init__(self, secret_word):
        self._history, self._agent, self._secret = [], agent, secret_word.lower()

    async def on_start(self):
        yield "Welcome."

    async def run(self, transcription):
        self._history.append({"role": "user", "content": transcription})
        if self._secret in transcription.lower():
            yield "You guessed the secret word!"
            self._history.append({"role": "assistant", "content": "You guessed the secret word!"})
            return
        result = Runner.run_streamed(self._agent, self._history)
        async for chunk in VoiceWorkflowHelper.stream_text_from(result):
            yield chunk
        self._history, self._agent = result.to_input_list(), result.last_agent


async def listen(result) -> None:
    async for event in result.stream():
        if event.type == "voice_stream_event_audio":
            print("audio", None if event.data is None else (event.data.dtype, event.data.shape))
        elif event.type == "voice_stream_event_lifecycle":
            print("lifecycle", event.event)
        else:
            print("error", type(event.error).__name__)


async def main() -> None:
    stt = ScriptedSTTModel(["How are you today?"], sessions=[["call transfer_to_spanish {}", "A dog, please."]])
    tts = ScriptedTTSModel([TTSResult(chunks=[b"\x01\x00" * 8, b"\x02\x00" * 8])] * 12)
    workflow = Workflow("dog")
    pipeline = VoicePipeline(
        workflow=workflow, stt_model=stt, tts_model=tts, config=VoicePipelineConfig(tracing_disabled=True)
    )
    await listen(await pipeline.run(AudioInput(buffer=np.zeros(24000, dtype=np.int16))))
    audio = StreamedAudioInput()
    for _ in range(3):
        await audio.add_audio(np.zeros(2400, dtype=np.int16))
    await listen(await pipeline.run(audio))
    print([call.text for call in tts.calls])
    print(workflow._agent.name, [item.get("role", item.get("type")) for item in workflow._history])


asyncio.run(main())
