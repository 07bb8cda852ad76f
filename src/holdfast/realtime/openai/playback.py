"""How much of the model's speech was heard. No I/O: times are given."""

from collections import deque
from dataclasses import dataclass, replace

from holdfast.realtime.audio import PCM16, AudioFormat
from holdfast.realtime.model import RealtimePlaybackTracker

_MOST_PARTS = 64  # A tracker that never reports must not make them pile up.
_NOTHING = 1e-6  # seconds that are no more than a rounding


@dataclass(eq=False, slots=True)
class Part:
    """The audio of one content part, in seconds."""

    item_id: str
    content_index: int
    response_id: str
    received: float = 0.0
    played: float = 0.0
    retold: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """What was not heard: of this part, everything after ``heard_ms``."""

    item_id: str
    content_index: int
    response_id: str
    heard_ms: int
    retold: bool = False
    """It came over a connection before this one, and the server has it as text."""


class Playback:
    """The parts that were received and may not have been heard, in the order in which they play.

    One part plays after the other at the speed of speech, and playback pauses while nothing is left to play. If a
    tracker knows better, its word counts. What was heard to the end is forgotten when the next part begins.
    """

    def __init__(self, tracker: RealtimePlaybackTracker | None = None) -> None:
        self._tracker = tracker
        self._parts: deque[Part] = deque(maxlen=_MOST_PARTS)
        self._before: list[Part] = []
        self._latest: Part | None = None
        self._at = 0.0
        self._seconds_per_byte = 0.0
        self.format = PCM16
        self.use(PCM16)

    def use(self, format: AudioFormat) -> None:
        """From now on audio comes in this format."""
        self.format = format
        self._seconds_per_byte = format.ms(1) / 1000
        if self._tracker is not None:
            self._tracker.set_audio_format(format.as_wire())

    def take_over(self, before: "Playback", now: float) -> None:
        """Audio of the connection before may still be playing. It counts when this server is told of its items."""
        before._catch_up(now)
        unheard = [part for part in before._parts if part.received - part.played > _NOTHING]
        self._before, self._at = [replace(part, retold=True) for part in unheard], now

    def retold(self, item_id: str | None) -> None:
        """The server is told of an item that it may not have itself."""
        if self._before:
            self._parts.extend(part for part in self._before if part.item_id == item_id)
            self._before = [part for part in self._before if part.item_id != item_id]

    def received(self, item_id: str, content_index: int, response_id: str, length: int, now: float) -> None:
        """So many bytes arrived."""
        part = self._latest
        if part is None or part.item_id != item_id or part.content_index != content_index:
            self.advance(now)
            part = self._latest = self._part(item_id, content_index, response_id)
        elif self._tracker is None:
            self.advance(now)
        part.received += length * self._seconds_per_byte

    def advance(self, now: float) -> None:
        """Let time pass: what was received so far plays on."""
        elapsed, self._at = now - self._at, now
        parts = self._parts
        while parts and elapsed > 0:
            part = parts[0]
            left = part.received - part.played
            if elapsed < left:
                part.played += elapsed
                return
            part.played = part.received
            elapsed -= left
            if len(parts) == 1:
                return  # Nothing to play: what comes next is heard from its arrival on.
            parts.popleft()

    def playing(self, now: float) -> Part | None:
        """What is being heard, or was heard last."""
        self.advance(now)
        return self._parts[0] if self._parts else None

    def cut(self, now: float, *, response_id: str | None = None, generating: str | None = None) -> list[Cut]:
        """Stop playing, and tell what is lost by that. With ``response_id``, only that response's parts.

        A part that was heard to its end loses nothing, unless its response is the one still generating.
        """
        self._catch_up(now)
        cuts, kept = [], []
        for part in self._parts:
            if response_id is not None and part.response_id != response_id:
                kept.append(part)
            elif part.received - part.played > _NOTHING or part.response_id == generating:
                heard = int(min(part.played, part.received) * 1000 + 1e-6)
                cuts.append(Cut(part.item_id, part.content_index, part.response_id, heard, part.retold))
        self._parts = deque(kept, maxlen=_MOST_PARTS)
        self._latest = kept[-1] if kept else None
        if self._tracker is not None and cuts and not kept:
            self._tracker.on_interrupted()
        return cuts

    def forget(self, item_id: str) -> None:
        """The item is gone from the conversation."""
        kept = [part for part in self._parts if part.item_id != item_id]
        self._parts = deque(kept, maxlen=_MOST_PARTS)
        if self._latest is not None and self._latest.item_id == item_id:
            self._latest = None

    def _part(self, item_id: str, content_index: int, response_id: str) -> Part:
        """The part, which is new unless deltas of two parts come interleaved."""
        for part in self._parts:
            if part.item_id == item_id and part.content_index == content_index:
                return part
        made = Part(item_id, content_index, response_id)
        self._parts.append(made)
        if self._tracker is not None:
            self._catch_up(self._at)
        return made

    def _catch_up(self, now: float) -> None:
        """Bring every part to what is known to be heard, and drop those before the one that plays."""
        if self._tracker is None:
            self.advance(now)
            return
        state = self._tracker.get_state()
        playing = (state["current_item_id"], state["current_item_content_index"])
        if not any((part.item_id, part.content_index) == playing for part in self._parts):
            return
        while (self._parts[0].item_id, self._parts[0].content_index) != playing:
            self._parts.popleft()
        self._parts[0].played = (state["elapsed_ms"] or 0.0) / 1000
