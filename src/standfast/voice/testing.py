"""Scripted speech models and workflows, for tests of voice pipelines."""

import array
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from standfast.voice.audio import AudioInput, StreamedAudioInput
from standfast.voice.speech_models import (
    StreamedTranscriptionSession,
    STTModel,
    STTModelSettings,
    TTSModel,
    TTSModelSettings,
)
from standfast.voice.workflow import VoiceWorkflowBase

TranscriptionResult: TypeAlias = str | Exception
WorkflowResult: TypeAlias = str | Sequence[str] | Exception
_UNSET: Any = object()


class VoiceScriptError(Exception):
    """A script does not fit what the pipeline did."""


class UnexpectedVoiceCall(VoiceScriptError):
    """The script has no step for a call."""

    def __init__(self, message: str, *, operation: str) -> None:
        super().__init__(message)
        self.operation = operation


class UnconsumedVoiceSteps(VoiceScriptError):
    """Steps of the script were not used."""

    def __init__(self, message: str, *, remaining_steps: int) -> None:
        super().__init__(message)
        self.remaining_steps = remaining_steps


def pcm16_samples(samples: Iterable[int]) -> bytes:
    """Return samples as 16-bit integers, little endian."""
    values = array.array("h", samples)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


class _Script:
    """Steps that are used one after the other; exceptions are raised."""

    def __init__(self, name: str, steps: Iterable[Any]) -> None:
        self.name, self.steps = name, [steps] if isinstance(steps, str) else list(steps)

    def take(self) -> Any:
        if not self.steps:
            raise UnexpectedVoiceCall(f"the script has no further step for {self.name}", operation=self.name)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def assert_complete(self) -> None:
        if self.steps:
            count = len(self.steps)
            raise UnconsumedVoiceSteps(f"{count} steps of {self.name} were not used", remaining_steps=count)


@dataclass
class STTCall:
    """A call of ``transcribe``."""

    input: AudioInput
    settings: STTModelSettings
    trace_include_sensitive_data: bool
    trace_include_sensitive_audio_data: bool


@dataclass
class STTSessionCall:
    """A call of ``create_session``."""

    input: StreamedAudioInput
    settings: STTModelSettings
    trace_include_sensitive_data: bool
    trace_include_sensitive_audio_data: bool


class ScriptedTranscriptionSession(StreamedTranscriptionSession):
    """Yields scripted turns."""

    def __init__(
        self, turns: str | Iterable[TranscriptionResult] = (), *, close_error: Exception | None = None
    ) -> None:
        self._script, self._close_error = _Script("transcribe_turns", turns), close_error
        self.closed = False

    async def transcribe_turns(self) -> AsyncIterator[str]:
        while self._script.steps:
            yield self._script.take()

    async def close(self) -> None:
        self.closed = True
        if self._close_error is not None:
            raise self._close_error

    def assert_complete(self) -> None:
        self._script.assert_complete()


class ScriptedSTTModel(STTModel):
    """Returns scripted transcriptions."""

    def __init__(
        self,
        transcriptions: str | Iterable[TranscriptionResult] = (),
        *,
        sessions: Iterable[ScriptedTranscriptionSession | Iterable[TranscriptionResult] | Exception] | str = (),
        model_name: str = "scripted-stt",
    ) -> None:
        self._transcriptions, self._sessions = _Script("transcribe", transcriptions), _Script("session", sessions)
        self._name = model_name
        self._calls: list[STTCall] = []
        self._session_calls: list[STTSessionCall] = []
        self._created_sessions: list[ScriptedTranscriptionSession] = []

    @property
    def calls(self) -> tuple[STTCall, ...]:
        """The calls of ``transcribe`` so far."""
        return tuple(self._calls)

    @property
    def session_calls(self) -> tuple[STTSessionCall, ...]:
        """The calls of ``create_session`` so far."""
        return tuple(self._session_calls)

    @property
    def created_sessions(self) -> tuple[ScriptedTranscriptionSession, ...]:
        return tuple(self._created_sessions)

    @property
    def model_name(self) -> str:
        return self._name

    async def transcribe(
        self,
        input: AudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> str:
        self._calls.append(STTCall(input, settings, trace_include_sensitive_data, trace_include_sensitive_audio_data))
        text: str = self._transcriptions.take()
        return text

    async def create_session(
        self,
        input: StreamedAudioInput,
        settings: STTModelSettings,
        trace_include_sensitive_data: bool,
        trace_include_sensitive_audio_data: bool,
    ) -> StreamedTranscriptionSession:
        self._session_calls.append(
            STTSessionCall(input, settings, trace_include_sensitive_data, trace_include_sensitive_audio_data)
        )
        step = self._sessions.take()
        session = step if isinstance(step, ScriptedTranscriptionSession) else ScriptedTranscriptionSession(step)
        self._created_sessions.append(session)
        return session

    def assert_complete(self) -> None:
        self._transcriptions.assert_complete()
        self._sessions.assert_complete()
        for session in self.created_sessions:
            session.assert_complete()


@dataclass
class TTSCall:
    """A call of ``run``."""

    text: str
    settings: TTSModelSettings


@dataclass
class TTSResult:
    """The chunks of one scripted synthesis."""

    chunks: Sequence[bytes] = field(default_factory=list)


class ScriptedTTSModel(TTSModel):
    """Yields scripted audio."""

    def __init__(
        self, results: Iterable[TTSResult | bytes | Exception] = (), *, model_name: str = "scripted-tts"
    ) -> None:
        self._script, self._name = _Script("synthesis", results), model_name
        self._calls: list[TTSCall] = []

    @property
    def calls(self) -> tuple[TTSCall, ...]:
        """The calls of ``run`` so far."""
        return tuple(self._calls)

    @property
    def model_name(self) -> str:
        return self._name

    async def run(self, text: str, settings: TTSModelSettings) -> AsyncIterator[bytes]:
        self._calls.append(TTSCall(text, settings))
        step = self._script.take()
        for chunk in [step] if isinstance(step, bytes) else step.chunks:
            yield chunk

    def assert_complete(self) -> None:
        self._script.assert_complete()


class ScriptedVoiceWorkflow(VoiceWorkflowBase):
    """Yields scripted answers."""

    def __init__(
        self, turns: str | Iterable[WorkflowResult] = (), *, start: str | Sequence[str] | Exception = _UNSET
    ) -> None:
        self._script, self._start = _Script("workflow", turns), start
        self._transcriptions: list[str] = []

    @property
    def transcriptions(self) -> tuple[str, ...]:
        """The transcriptions that the workflow has got so far."""
        return tuple(self._transcriptions)

    async def run(self, transcription: str) -> AsyncIterator[str]:
        self._transcriptions.append(transcription)
        step = self._script.take()
        for text in [step] if isinstance(step, str) else step:
            yield text

    async def on_start(self) -> AsyncIterator[str]:
        start: Any = () if self._start is _UNSET else self._start
        if isinstance(start, Exception):
            raise start
        for text in [start] if isinstance(start, str) else start:
            yield text

    def assert_complete(self) -> None:
        self._script.assert_complete()
