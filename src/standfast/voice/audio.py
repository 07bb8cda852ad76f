"""The audio input of a voice pipeline: a complete recording, or a stream."""

import asyncio
import base64
import io
import wave
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.agents.errors import InvalidDeclaration
from standfast.base.errors import MissingExtra

if TYPE_CHECKING:
    import numpy.typing as npt

    Samples: TypeAlias = npt.NDArray[Any]

DEFAULT_SAMPLE_RATE = 24000


def load_numpy() -> Any:
    """Import numpy, or raise :class:`MissingExtra`."""
    try:
        import numpy
    except ImportError:
        raise MissingExtra("voice", "a voice pipeline") from None
    return numpy


def to_pcm16(samples: "Samples") -> bytes:
    """Return samples as 16-bit integers; floating-point ones lie between -1 and 1."""
    numpy = load_numpy()
    if samples.dtype == numpy.float32 or samples.dtype == numpy.float64:
        samples = (numpy.clip(samples, -1.0, 1.0) * 32767).astype(numpy.int16)
    if samples.dtype != numpy.int16:
        raise InvalidDeclaration("AudioInput", f"audio must be samples of int16 or float32, got {samples.dtype}")
    data: bytes = samples.astype("<i2").tobytes()
    return data


@dataclass
class AudioInput:
    """A complete recording: samples of int16 or float32."""

    buffer: "Samples"
    frame_rate: int = DEFAULT_SAMPLE_RATE
    sample_width: int = 2
    channels: int = 1

    def to_audio_file(self) -> tuple[str, io.BytesIO, str]:
        """Return the recording as a WAV file: name, content and media type."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(self.channels)
            writer.setsampwidth(self.sample_width)
            writer.setframerate(self.frame_rate)
            writer.writeframes(to_pcm16(self.buffer))
        file.seek(0)
        return "audio.wav", file, "audio/wav"

    def to_base64(self) -> str:
        """Return the samples as base64 of 16 bit PCM."""
        return base64.b64encode(to_pcm16(self.buffer)).decode()


class StreamedAudioInput:
    """Audio that is added while it is spoken. ``add_audio(None)`` ends it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Samples | None] = asyncio.Queue()

    async def add_audio(self, audio: "Samples | None") -> None:
        """Add samples; None ends the input."""
        await self.queue.put(audio)
