"""Voice pipelines: speech to text, a workflow, text to speech, and the events of their results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.model_settings import coerce_settings
from standfast.base.ids import new_id
from standfast.base.log import log
from standfast.lifecycle.channel import Channel
from standfast.lifecycle.scope import Scope
from standfast.tracing.create import TracingConfig, speech_group_span, speech_span, trace, transcription_span
from standfast.voice.audio import AudioInput, StreamedAudioInput, load_numpy
from standfast.voice.speech_models import STTModel, STTModelSettings, TTSModel, TTSModelSettings, VoiceModelProvider
from standfast.voice.workflow import VoiceWorkflowBase

if TYPE_CHECKING:
    from standfast.voice.audio import Samples

MAX_BUFFERED_EVENTS = 1024
MAX_SEGMENTS_AHEAD = 4
"""How many parts of a turn are synthesised while an earlier one is delivered."""


@dataclass
class VoiceStreamEventAudio:
    """A piece of the answer."""

    data: "Samples | None"
    type: Literal["voice_stream_event_audio"] = "voice_stream_event_audio"


@dataclass
class VoiceStreamEventLifecycle:
    """A turn starts with its first audio and ends after its last; the session ends after its last turn."""

    event: Literal["turn_started", "turn_ended", "session_ended"]
    type: Literal["voice_stream_event_lifecycle"] = "voice_stream_event_lifecycle"


@dataclass
class VoiceStreamEventError:
    """An error that does not end the session."""

    error: Exception
    type: Literal["voice_stream_event_error"] = "voice_stream_event_error"


VoiceStreamEvent: TypeAlias = VoiceStreamEventAudio | VoiceStreamEventLifecycle | VoiceStreamEventError


def _get_default_provider() -> VoiceModelProvider:
    from standfast.voice.openai_models import OpenAIVoiceModelProvider

    return OpenAIVoiceModelProvider()


@dataclass
class VoicePipelineConfig:
    """Models, settings and tracing of a pipeline. Traces are kept by processors of the program only."""

    model_provider: VoiceModelProvider = field(default_factory=_get_default_provider)
    tracing_disabled: bool = False
    tracing: TracingConfig | None = None
    trace_include_sensitive_data: bool = True
    trace_include_sensitive_audio_data: bool = True
    workflow_name: str = "Voice Agent"
    group_id: str = field(default_factory=lambda: new_id("group"))
    trace_metadata: dict[str, Any] | None = None
    stt_settings: STTModelSettings = field(default_factory=STTModelSettings)
    tts_settings: TTSModelSettings = field(default_factory=TTSModelSettings)

    def __post_init__(self) -> None:
        self.stt_settings = coerce_settings(STTModelSettings, self.stt_settings)
        self.tts_settings = coerce_settings(TTSModelSettings, self.tts_settings)


class StreamedAudioResult:
    """The answer of a pipeline. Read it with :meth:`stream`; leaving the iteration early ends the pipeline.

    ``total_output_text`` is the text that has been written so far.
    """

    def __init__(
        self, tts_model: TTSModel, tts_settings: TTSModelSettings, voice_pipeline_config: VoicePipelineConfig
    ) -> None:
        self.tts_model, self.tts_settings, self._config = tts_model, tts_settings, voice_pipeline_config
        self.total_output_text = ""
        self._events: Channel[VoiceStreamEvent] = Channel(MAX_BUFFERED_EVENTS)
        self.task: asyncio.Task[None] | None = None
        self._has_turn = False
        self.speech_failed = False
        """Whether the speech synthesis of an answer failed; the conversation itself continued."""

    async def stream(self) -> AsyncIterator[VoiceStreamEvent]:
        """Yield the events in order, then raise the error of the pipeline, if any."""
        try:
            async for event in self._events:
                yield event
        finally:
            if self.task is not None:
                self.task.cancel()
                await asyncio.wait({self.task})

    def finish(self, error: BaseException | None) -> None:
        """End the stream, with an error or without one."""
        self._events.close(error)

    async def announce(self, event: Literal["turn_started", "turn_ended", "session_ended"]) -> None:
        """Emit the begin or end of a turn or of the session."""
        await self._events.send(VoiceStreamEventLifecycle(event))

    async def speak(self, texts: AsyncIterator[str]) -> None:
        """Speak one turn: parts are synthesised as soon as they are complete, and delivered in order."""
        segments: Channel[Channel[bytes]] = Channel(MAX_SEGMENTS_AHEAD)
        sensitive = self._config.trace_include_sensitive_data
        with speech_group_span():
            async with Scope() as scope:
                delivery = scope.start(self._deliver(segments))
                try:
                    async for text in self._split(self._announce_turn(texts)):
                        chunks: Channel[bytes] = Channel(MAX_BUFFERED_EVENTS)
                        await segments.send(chunks)
                        scope.start(self._synthesize(text, chunks, sensitive))
                finally:
                    segments.close()
                await delivery
        if self._has_turn:
            await self.announce("turn_ended")

    async def _announce_turn(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        """Yield the texts of a turn, which begins with the first; a turn without texts does not begin."""
        started = False
        async for text in texts:
            if not started:
                started = True
                await self.announce("turn_started")
            yield text
        self._has_turn = started

    async def _split(self, texts: AsyncIterator[str]) -> AsyncIterator[str]:
        rest = ""
        async for text in texts:
            rest += text
            self.total_output_text += text
            ready, rest = self.tts_settings.text_splitter(rest)
            if ready.strip():
                yield ready
        if rest.strip():
            yield rest

    async def _synthesize(self, text: str, chunks: Channel[bytes], sensitive: bool) -> None:
        try:
            name = self.tts_model.model_name
            with speech_span(model=name, input=text if sensitive else "", output_format="pcm"):
                stream: Any = self.tts_model.run(text, self.tts_settings)
                async with aclosing(stream) if hasattr(stream, "aclose") else nullcontext():
                    async for chunk in stream:
                        await chunks.send(chunk)
        except Exception as error:  # noqa: BLE001 - raised where the audio is delivered, after that of earlier parts
            chunks.close(error)
        finally:
            chunks.close()

    async def _deliver(self, segments: Channel[Channel[bytes]]) -> None:
        async for chunks in segments:
            buffer: list[bytes] = []
            try:
                async for chunk in chunks:
                    buffer.append(chunk)
                    if len(buffer) >= self.tts_settings.buffer_size:
                        await self._send_audio(buffer)
                        buffer = []
            except Exception:
                self.speech_failed = True
                raise
            if buffer:
                await self._send_audio(buffer)

    async def _send_audio(self, chunks: list[bytes]) -> None:
        samples = to_samples(b"".join(chunks), self.tts_settings.dtype)
        if self.tts_settings.transform_data is not None:
            samples = self.tts_settings.transform_data(samples)
        await self._events.send(VoiceStreamEventAudio(samples))


def to_samples(data: bytes, dtype: Any) -> "Samples":
    """Return 16-bit samples as an array: of int16, or of float32 between -1 and 1 in one column."""
    numpy = load_numpy()
    samples = numpy.frombuffer(data + b"\0" * (len(data) % 2), dtype="<i2").astype(numpy.int16)
    if numpy.dtype(dtype) == numpy.int16:
        found: Samples = samples
        return found
    if numpy.dtype(dtype) == numpy.float32:
        scaled: Samples = (samples.astype(numpy.float32) / 32767.0).reshape(-1, 1)
        return scaled
    raise InvalidDeclaration("TTSModelSettings", f"dtype must be int16 or float32, got {dtype!r}")


class VoicePipeline:
    """Listens, lets a workflow answer, and speaks."""

    def __init__(
        self,
        *,
        workflow: VoiceWorkflowBase,
        stt_model: STTModel | str | None = None,
        tts_model: TTSModel | str | None = None,
        config: VoicePipelineConfig | dict[str, Any] | None = None,
    ) -> None:
        self.workflow, self.config = workflow, coerce_settings(VoicePipelineConfig, config or {})
        self.stt_model, self.tts_model = stt_model, tts_model

    async def run(self, audio_input: AudioInput | StreamedAudioInput) -> StreamedAudioResult:
        """Start the pipeline and return its result, which is read while it runs.

        A recording is one turn. Of streamed audio, every turn that the speech recognition finds is answered; they are
        not interrupted by the next one.
        """
        if not isinstance(audio_input, AudioInput | StreamedAudioInput):
            raise InvalidDeclaration("VoicePipeline.run", f"expected AudioInput or StreamedAudioInput: {audio_input!r}")
        result = StreamedAudioResult(self._get_tts_model(), self.config.tts_settings, self.config)
        work = self._answer if isinstance(audio_input, AudioInput) else self._converse
        result.task = asyncio.create_task(self._run(work(audio_input, result), result), name="voice pipeline")
        return result

    def _get_stt_model(self) -> STTModel:
        model = self.stt_model
        return model if isinstance(model, STTModel) else self.config.model_provider.get_stt_model(model)

    def _get_tts_model(self) -> TTSModel:
        model = self.tts_model
        return model if isinstance(model, TTSModel) else self.config.model_provider.get_tts_model(model)

    async def _run(self, work: Any, result: StreamedAudioResult) -> None:
        config, failure = self.config, None
        try:
            with trace(
                config.workflow_name,
                group_id=config.group_id,
                metadata=config.trace_metadata,
                tracing=config.tracing,
                disabled=config.tracing_disabled,
            ):
                await work
        except BaseExceptionGroup as group:
            failure = group.exceptions[0]
        except Exception as error:  # noqa: BLE001 - raised to the reader of the events
            failure = error
        finally:
            if failure is None or result.speech_failed:
                await result.announce("session_ended")
            result.finish(failure)

    async def _answer(self, audio_input: Any, result: StreamedAudioResult) -> None:
        config, model = self.config, self._get_stt_model()
        audio = audio_input.to_base64() if config.trace_include_sensitive_audio_data else ""
        with transcription_span(model=model.model_name, input=audio, input_format="pcm") as span:
            text = await model.transcribe(
                audio_input,
                config.stt_settings,
                config.trace_include_sensitive_data,
                config.trace_include_sensitive_audio_data,
            )
            if config.trace_include_sensitive_data:
                span.span_data.output = text
        await result.speak(self.workflow.run(text))

    async def _converse(self, audio_input: Any, result: StreamedAudioResult) -> None:
        config = self.config
        await result.speak(self.workflow.on_start())
        session = await self._get_stt_model().create_session(
            audio_input,
            config.stt_settings,
            config.trace_include_sensitive_data,
            config.trace_include_sensitive_audio_data,
        )
        try:
            async for text in session.transcribe_turns():
                await result.speak(self.workflow.run(text))
        except BaseException:
            try:
                await session.close()
            except Exception as error:  # noqa: BLE001 - the turn failed before, and its error is raised
                log.warning("the transcription could not be closed: %s", error)
            raise
        await session.close()
