"""Audio formats: their many spellings, and how long so many bytes play."""

import logging
from dataclasses import dataclass
from typing import Any

from holdfast.agents.tool_refs import part_of

log = logging.getLogger("holdfast.realtime")


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """One way of writing sound down; ``wire`` is how the protocol names it."""

    name: str
    wire: str
    rate: int
    width: int

    def ms(self, length: int) -> float:
        """How long ``length`` bytes play, in milliseconds."""
        return length / self.bytes_per_ms

    @property
    def bytes_per_ms(self) -> float:
        return self.rate * self.width / 1000

    def as_wire(self) -> dict[str, Any]:
        return {"type": self.wire, "rate": self.rate} if self.wire == "audio/pcm" else {"type": self.wire}


PCM16 = AudioFormat("pcm16", "audio/pcm", 24_000, 2)
G711_ULAW = AudioFormat("g711_ulaw", "audio/pcmu", 8_000, 1)
G711_ALAW = AudioFormat("g711_alaw", "audio/pcma", 8_000, 1)

_SPELLINGS = {spelling: known for known in (PCM16, G711_ULAW, G711_ALAW) for spelling in (known.name, known.wire)}
_SPELLINGS |= {known.wire.removeprefix("audio/"): known for known in (PCM16, G711_ULAW, G711_ALAW)}


def audio_format(value: Any) -> AudioFormat | None:
    """The format that somebody means by a name, a dict or a provider's object; ``None`` if there is no such format."""
    if isinstance(value, AudioFormat) or value is None:
        return value
    name = value if isinstance(value, str) else part_of(value, "type")
    known = _SPELLINGS.get(name.lower()) if isinstance(name, str) else None
    if known is None:
        log.debug("unknown audio format %r: it is left to the server", value)
        return None
    rate = None if isinstance(value, str) else part_of(value, "rate")
    return AudioFormat(known.name, known.wire, rate, known.width) if rate and rate != known.rate else known
