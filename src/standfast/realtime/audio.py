"""Audio formats: their many spellings, and how long so many bytes play."""

import logging
from dataclasses import dataclass
from typing import Any

from standfast.agents.errors import UserError
from standfast.agents.tool_identity import get_field


def validate_pace(pace: float | None, name: str = "pace") -> float | None:
    if pace is not None and not pace > 0:
        raise UserError(f"{name} must be above 0, or None to do without pauses, not {pace!r}")
    return pace


log = logging.getLogger("standfast.realtime")


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """One way of writing sound down; ``wire`` is how the protocol names it."""

    name: str
    mime_type: str
    sample_rate: int
    sample_width: int

    def duration_ms(self, byte_count: int) -> float:
        """How long ``length`` bytes play, in milliseconds."""
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
    spelling: known for known in (PCM16, G711_ULAW, G711_ALAW) for spelling in (known.name, known.mime_type)
}
_FORMATS_BY_NAME |= {known.mime_type.removeprefix("audio/"): known for known in (PCM16, G711_ULAW, G711_ALAW)}


def parse_audio_format(value: Any) -> AudioFormat | None:
    """The format that somebody means by a name, a dict or a provider's object; ``None`` if there is no such format."""
    if isinstance(value, AudioFormat) or value is None:
        return value
    name = value if isinstance(value, str) else get_field(value, "type")
    known = _FORMATS_BY_NAME.get(name.lower()) if isinstance(name, str) else None
    if known is None:
        log.debug("unknown audio format %r: it is left to the server", value)
        return None
    rate = None if isinstance(value, str) else get_field(value, "rate")
    return (
        AudioFormat(known.name, known.mime_type, rate, known.sample_width)
        if rate and rate != known.sample_rate
        else known
    )
