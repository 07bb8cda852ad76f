"""How much of the model's speech was heard. No I/O: times are given."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from holdfast.realtime.audio import PCM16, AudioFormat, log
from holdfast.realtime.model import RealtimePlaybackTracker

T = TypeVar("T")
Heard: TypeAlias = tuple[str | None, int, float]
"""What plays, an item and its part, and how many milliseconds of it were played."""

MOST_PARTS = 64  # A tracker that never reports must not make them pile up.
_NOTHING = 1e-6  # seconds that are no more than a rounding
_NOTHING_KNOWN: Heard = (None, 0, 0.0)


class PartTracker(RealtimePlaybackTracker):
    """Knows of every part how much was heard, and not only which one plays: a part can overtake another."""

    def heard(self, item_id: str, content_index: int) -> float:
        """How many seconds of a part were heard."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class Part:
    """The audio of one content part, in seconds."""

    item_id: str
    content_index: int
    response_id: str
    received: float = 0.0
    played: float = 0.0
    retold: bool = False

    @property
    def place(self) -> tuple[str, int]:
        return (self.item_id, self.content_index)


@dataclass(frozen=True, slots=True)
class Cut:
    """What was not heard: of this part, everything after ``heard_ms``."""

    item_id: str
    content_index: int
    response_id: str
    heard_ms: int
    retold: bool = False
    """It came over a connection before this one, and the server has it as text."""


def state_of(tracker: RealtimePlaybackTracker) -> Heard:
    """What a tracker says."""

    def said() -> Heard:
        state = tracker.get_state()
        return state["current_item_id"], state["current_item_content_index"] or 0, state["elapsed_ms"] or 0.0

    return _contained(said, _NOTHING_KNOWN)


def _contained(ask: Callable[[], T], otherwise: T) -> T:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - it is the program's, and must not cost a connection
        log.exception("the playback tracker failed, so that it is not known what was heard")
        return otherwise


class Playback:
    """The parts that were received and may not have been heard, in the order in which they play.

    One part plays after the other at the speed of speech, and playback pauses while nothing is left to play. If a
    tracker knows better, its word counts. What was heard to the end is forgotten when the next part begins.
    """

    def __init__(self, tracker: RealtimePlaybackTracker | None = None) -> None:
        self._tracker = tracker
        self._parts: deque[Part] = deque(maxlen=MOST_PARTS)
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
        before._count_all()  # Whatever came before it: it may have had no time to tell its server.
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
        if self._tracker is None:
            self.advance(now)
        part = self._latest
        if part is None or part.item_id != item_id or part.content_index != content_index:
            part = self._latest = self._part(item_id, content_index, response_id)
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

    def left(self, item_id: str, content_index: int, now: float) -> float:
        """How many seconds of a part are still to be heard."""
        self.advance(now)
        return sum(part.received - part.played for part in self._parts if part.place == (item_id, content_index))

    def truncated(self, item_id: str | None, content_index: int | None, ms: float) -> None:
        """Somebody else cut a part: there is no more of it to be heard."""
        for part in self._parts:
            if part.place == (item_id, content_index):
                part.received = max(part.played, min(part.received, ms / 1000))

    def cut(
        self, now: float, *, response_id: str | None = None, generating: str | None = None, untold: bool = False
    ) -> list[Cut]:
        """Stop playing, and tell what is lost by that. With ``response_id``, only that response's parts.

        A part that was heard to its end loses nothing, unless its response is the one still generating. With
        ``untold``, items of the connection before count although this server was not told of them yet.
        """
        if untold:
            self._count_all()
        self._catch_up(now)
        cuts, kept = [], []
        for part in self._parts:
            if response_id is not None and part.response_id != response_id:
                kept.append(part)
            elif part.received - part.played > _NOTHING or part.response_id == generating:
                heard = int(min(part.played, part.received) * 1000 + 1e-6)
                cuts.append(Cut(part.item_id, part.content_index, part.response_id, heard, part.retold))
        self._parts = deque(kept, maxlen=MOST_PARTS)
        self._latest = kept[-1] if kept else None
        if self._tracker is not None and cuts and not kept:
            _contained(self._tracker.on_interrupted, None)
        return cuts

    def forget(self, item_id: str) -> None:
        """The item is gone from the conversation."""
        kept = [part for part in self._parts if part.item_id != item_id]
        self._parts = deque(kept, maxlen=MOST_PARTS)
        if self._latest is not None and self._latest.item_id == item_id:
            self._latest = None

    def _count_all(self) -> None:
        self._parts.extend(self._before)
        self._before = []

    def _part(self, item_id: str, content_index: int, response_id: str) -> Part:
        """The part, which is new unless deltas of two parts come interleaved."""
        for part in self._parts:
            if part.place == (item_id, content_index):
                return part
        if self._tracker is not None:
            self._catch_up(self._at)
        made = Part(item_id, content_index, response_id)
        self._parts.append(made)
        return made

    def _catch_up(self, now: float) -> None:
        """Bring every part to what is known to be heard, and drop those before the one that plays."""
        if self._tracker is None:
            self.advance(now)
            return
        if isinstance(self._tracker, PartTracker):
            for part in self._parts:
                part.played = min(part.received, self._tracker.heard(*part.place))
            unheard = [part for part in self._parts if part.received - part.played > _NOTHING or part is self._latest]
            self._parts = deque(unheard, maxlen=MOST_PARTS)
            return
        item_id, content_index, played_ms = state_of(self._tracker)
        if not any(part.place == (item_id, content_index) for part in self._parts):
            return
        while self._parts[0].place != (item_id, content_index):
            self._parts.popleft()
        # A player that takes its own delay off may be before the beginning.
        self._parts[0].played = max(0.0, played_ms / 1000)
