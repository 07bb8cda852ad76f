"""How much of the model's speech was heard. No I/O: times are given."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from standfast.realtime.audio import PCM16, AudioFormat, log
from standfast.realtime.model import RealtimePlaybackTracker

T = TypeVar("T")
PlaybackPosition: TypeAlias = tuple[str | None, int, float]
"""What plays, an item and its part, and how many milliseconds of it were played."""

MAX_PARTS = 64  # A tracker that never reports must not make them pile up.
_EPSILON = 1e-6  # seconds that are no more than a rounding
_UNKNOWN_POSITION: PlaybackPosition = (None, 0, 0.0)


class PartPlaybackTracker(RealtimePlaybackTracker):
    """Knows of every part how much was heard, and not only which one plays: a part can overtake another."""

    def get_heard_seconds(self, item_id: str, content_index: int) -> float:
        """How many seconds of a part were heard."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class AudioPart:
    """The audio of one content part, in seconds."""

    item_id: str
    content_index: int
    response_id: str
    received_seconds: float = 0.0
    played_seconds: float = 0.0
    from_previous_connection: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return (self.item_id, self.content_index)


@dataclass(frozen=True, slots=True)
class AudioTruncation:
    """What was not heard: of this part, everything after ``heard_ms``."""

    item_id: str
    content_index: int
    response_id: str
    heard_ms: int
    from_previous_connection: bool = False
    """It came over a connection before this one, and the server has it as text."""


def read_tracker_position(tracker: RealtimePlaybackTracker) -> PlaybackPosition:
    """What a tracker says."""

    def said() -> PlaybackPosition:
        state = tracker.get_state()
        return state["current_item_id"], state["current_item_content_index"] or 0, state["elapsed_ms"] or 0.0

    return _call_safely(said, _UNKNOWN_POSITION)


def _call_safely(function: Callable[[], T], default: T) -> T:
    try:
        return function()
    except Exception:  # noqa: BLE001 - it is the program's, and must not cost a connection
        log.exception("the playback tracker failed, so that it is not known what was heard")
        return default


class Playback:
    """The parts that were received and may not have been heard, in the order in which they play.

    One part plays after the other at the speed of speech, and playback pauses while nothing is left to play. If a
    tracker knows better, its word counts. What was heard to the end is forgotten when the next part begins.
    """

    def __init__(self, tracker: RealtimePlaybackTracker | None = None) -> None:
        self._tracker = tracker
        self._parts: deque[AudioPart] = deque(maxlen=MAX_PARTS)
        self._previous_parts: list[AudioPart] = []
        self._latest_part: AudioPart | None = None
        self._updated_at = 0.0
        self._seconds_per_byte = 0.0
        self.format = PCM16
        self.set_format(PCM16)

    def set_format(self, format: AudioFormat) -> None:
        """From now on audio comes in this format."""
        self.format = format
        self._seconds_per_byte = format.duration_ms(1) / 1000
        if self._tracker is not None:
            self._tracker.set_audio_format(format.as_wire())

    def continue_from(self, previous: "Playback", now: float) -> None:
        """Audio of the connection before may still be playing. It counts when this server is told of its items."""
        previous._include_previous_parts()  # Whatever came before it: it may have had no time to tell its server.
        previous._sync(now)
        unheard = [part for part in previous._parts if part.received_seconds - part.played_seconds > _EPSILON]
        self._previous_parts, self._updated_at = [replace(part, from_previous_connection=True) for part in unheard], now

    def adopt_item(self, item_id: str | None) -> None:
        """The server is told of an item that it may not have itself."""
        if self._previous_parts:
            self._parts.extend(part for part in self._previous_parts if part.item_id == item_id)
            self._previous_parts = [part for part in self._previous_parts if part.item_id != item_id]

    def add_audio(self, item_id: str, content_index: int, response_id: str, byte_count: int, now: float) -> None:
        """So many bytes arrived."""
        if self._tracker is None:
            self.advance(now)
        part = self._latest_part
        if part is None or part.item_id != item_id or part.content_index != content_index:
            part = self._latest_part = self._ensure_part(item_id, content_index, response_id)
        part.received_seconds += byte_count * self._seconds_per_byte

    def advance(self, now: float) -> None:
        """Let time pass: what was received so far plays on."""
        elapsed, self._updated_at = now - self._updated_at, now
        parts = self._parts
        while parts and elapsed > 0:
            part = parts[0]
            left = part.received_seconds - part.played_seconds
            if elapsed < left:
                part.played_seconds += elapsed
                return
            part.played_seconds = part.received_seconds
            elapsed -= left
            if len(parts) == 1:
                return  # Nothing to play: what comes next is heard from its arrival on.
            parts.popleft()

    def get_current_part(self, now: float) -> AudioPart | None:
        """What is being heard, or was heard last."""
        self.advance(now)
        return self._parts[0] if self._parts else None

    def get_remaining_seconds(self, item_id: str, content_index: int, now: float) -> float:
        """How many seconds of a part are still to be heard."""
        self.advance(now)
        return sum(
            part.received_seconds - part.played_seconds for part in self._parts if part.key == (item_id, content_index)
        )

    def truncate(self, item_id: str | None, content_index: int | None, ms: float) -> None:
        """Somebody else cut a part: there is no more of it to be heard."""
        for part in self._parts:
            if part.key == (item_id, content_index):
                part.received_seconds = max(part.played_seconds, min(part.received_seconds, ms / 1000))

    def stop(
        self,
        now: float,
        *,
        response_id: str | None = None,
        active_response_id: str | None = None,
        include_previous: bool = False,
    ) -> list[AudioTruncation]:
        """Stop playing, and tell what is lost by that. With ``response_id``, only that response's parts.

        A part that was heard to its end loses nothing, unless its response is the one still generating. With
        ``untold``, items of the connection before count although this server was not told of them yet.
        """
        if include_previous:
            self._include_previous_parts()
        self._sync(now)
        cuts, kept = [], []
        for part in self._parts:
            if response_id is not None and part.response_id != response_id:
                kept.append(part)
            elif part.received_seconds - part.played_seconds > _EPSILON or part.response_id == active_response_id:
                heard = int(min(part.played_seconds, part.received_seconds) * 1000 + 1e-6)
                cuts.append(
                    AudioTruncation(
                        part.item_id, part.content_index, part.response_id, heard, part.from_previous_connection
                    )
                )
        self._parts = deque(kept, maxlen=MAX_PARTS)
        self._latest_part = kept[-1] if kept else None
        if self._tracker is not None and cuts and not kept:
            _call_safely(self._tracker.on_interrupted, None)
        return cuts

    def remove_item(self, item_id: str) -> None:
        """The item is gone from the conversation."""
        kept = [part for part in self._parts if part.item_id != item_id]
        self._parts = deque(kept, maxlen=MAX_PARTS)
        if self._latest_part is not None and self._latest_part.item_id == item_id:
            self._latest_part = None

    def _include_previous_parts(self) -> None:
        self._parts.extend(self._previous_parts)
        self._previous_parts = []

    def _ensure_part(self, item_id: str, content_index: int, response_id: str) -> AudioPart:
        """The part, which is new unless deltas of two parts come interleaved."""
        for part in self._parts:
            if part.key == (item_id, content_index):
                return part
        if self._tracker is not None:
            self._sync(self._updated_at)
        made = AudioPart(item_id, content_index, response_id)
        self._parts.append(made)
        return made

    def _sync(self, now: float) -> None:
        """Bring every part to what is known to be heard, and drop those before the one that plays."""
        if self._tracker is None:
            self.advance(now)
            return
        if isinstance(self._tracker, PartPlaybackTracker):
            for part in self._parts:
                part.played_seconds = min(part.received_seconds, self._tracker.get_heard_seconds(*part.key))
            unheard = [
                part
                for part in self._parts
                if part.received_seconds - part.played_seconds > _EPSILON or part is self._latest_part
            ]
            self._parts = deque(unheard, maxlen=MAX_PARTS)
            return
        item_id, content_index, played_ms = read_tracker_position(self._tracker)
        if not any(part.key == (item_id, content_index) for part in self._parts):
            return
        while self._parts[0].key != (item_id, content_index):
            self._parts.popleft()
        # A player that takes its own delay off may be before the beginning.
        self._parts[0].played_seconds = max(0.0, played_ms / 1000)
