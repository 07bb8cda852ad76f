"""Audio formats: their names, and the duration of audio data."""

from dataclasses import dataclass
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.tool_identity import get_field
from standfast.base.log import get_logger


def validate_pace(pace: float | None, name: str = "pace") -> float | None:
    """Return ``pace`` if it is a positive number or ``None``, else raise :class:`UserError`."""
    if pace is not None and not pace > 0:
        raise UserError(f"{name} must be greater than 0, or None for no pauses, got {pace!r}")
    return pace


log = get_logger("standfast.realtime")


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An audio encoding. ``mime_type`` is its name in the wire protocol."""

    name: str
    mime_type: str
    sample_rate: int
    sample_width: int

    def duration_ms(self, byte_count: int) -> float:
        """Return the duration of ``byte_count`` bytes in milliseconds."""
        return byte_count / self.bytes_per_ms

    @property
    def bytes_per_ms(self) -> float:
        return self.sample_rate * self.sample_width / 1000

    def as_wire(self) -> dict[str, Any]:
        return (
            {"type": self.mime_type, "rate": self.sample_rate}
            if self.mime_type == "audio/pcm"
            else {"type": self.mime_type}
        )


PCM16 = AudioFormat("pcm16", "audio/pcm", 24_000, 2)
G711_ULAW = AudioFormat("g711_ulaw", "audio/pcmu", 8_000, 1)
G711_ALAW = AudioFormat("g711_alaw", "audio/pcma", 8_000, 1)

_FORMATS_BY_NAME = {
    name: format for format in (PCM16, G711_ULAW, G711_ALAW) for name in (format.name, format.mime_type)
}
_FORMATS_BY_NAME |= {format.mime_type.removeprefix("audio/"): format for format in (PCM16, G711_ULAW, G711_ALAW)}


def parse_audio_format(value: Any) -> AudioFormat | None:
    """Parse a format given as a name, a dict or an object of a provider. Returns ``None`` if it is unknown."""
    if isinstance(value, AudioFormat) or value is None:
        return value
    name = value if isinstance(value, str) else get_field(value, "type")
    format = _FORMATS_BY_NAME.get(name.lower()) if isinstance(name, str) else None
    if format is None:
        log.debug("unknown audio format %r: the server has to check it", value)
        return None
    rate = None if isinstance(value, str) else get_field(value, "rate")
    if rate and rate != format.sample_rate:
        return AudioFormat(format.name, format.mime_type, rate, format.sample_width)
    return format
