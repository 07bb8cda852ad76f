"""The playback of received audio: which part plays, and how much of each was heard. Sans I/O: callers pass the time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from standfast.realtime.audio import PCM16, AudioFormat, log
from standfast.realtime.model import RealtimePlaybackTracker

T = TypeVar("T")
PlaybackPosition: TypeAlias = tuple[str | None, int, float]
"""The item that plays, its content index, and how many milliseconds of it have played."""

MAX_PARTS = 64  # A bound for trackers that never report.
_EPSILON = 1e-6  # seconds; smaller differences are rounding errors
_UNKNOWN_POSITION: PlaybackPosition = (None, 0, 0.0)


class PartPlaybackTracker(RealtimePlaybackTracker):
    """A tracker that knows how much of every part was heard, because parts may play out of order."""

    def get_heard_seconds(self, item_id: str, content_index: int) -> float:
        """Return how many seconds of a part were heard."""
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
    """A part of which everything after ``heard_ms`` was not heard."""

    item_id: str
    content_index: int
    response_id: str
    heard_ms: int
    from_previous_connection: bool = False
    """It came over an earlier connection, so the server has it as text."""


def read_tracker_position(tracker: RealtimePlaybackTracker) -> PlaybackPosition:
    """Return the position that a tracker reports; unknown if the tracker raises."""

    def read() -> PlaybackPosition:
        state = tracker.get_state()
        return state["current_item_id"], state["current_item_content_index"] or 0, state["elapsed_ms"] or 0.0

    return _call_safely(read, _UNKNOWN_POSITION)


def _call_safely(function: Callable[[], T], default: T) -> T:
    try:
        return function()
    except Exception:  # noqa: BLE001 - an error of the program must not end the connection
        log.exception("the playback tracker raised; the playback position is unknown")
        return default


class Playback:
    """The received parts that may not have been heard yet, in the order in which they play.

    Parts play one after the other at the speed of speech; playback pauses while there is nothing to play. A tracker
    takes precedence. A part that was heard to its end is dropped when the next one starts.
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
        """Set the format of the audio that arrives from now on."""
        self.format = format
        self._seconds_per_byte = format.duration_ms(1) / 1000
        if self._tracker is not None:
            self._tracker.set_audio_format(format.as_wire())

    def continue_from(self, previous: "Playback", now: float) -> None:
        """Take over audio of the previous connection that may still be playing, for :meth:`include_item`."""
        previous._include_previous_parts()  # Its server may not have got the items of the connection before it.
        previous._sync(now)
        unheard = [part for part in previous._parts if part.received_seconds - part.played_seconds > _EPSILON]
        self._previous_parts, self._updated_at = [replace(part, from_previous_connection=True) for part in unheard], now

    def include_item(self, item_id: str | None) -> None:
        """Include the audio of an item from the previous connection, because this server now has the item."""
        if self._previous_parts:
            self._parts.extend(part for part in self._previous_parts if part.item_id == item_id)
            self._previous_parts = [part for part in self._previous_parts if part.item_id != item_id]

    def add_audio(self, item_id: str, content_index: int, response_id: str, byte_count: int, now: float) -> None:
        """Add audio that has arrived."""
        if self._tracker is None:
            self.advance(now)
        part = self._latest_part
        if part is None or part.item_id != item_id or part.content_index != content_index:
            part = self._latest_part = self._ensure_part(item_id, content_index, response_id)
        part.received_seconds += byte_count * self._seconds_per_byte

    def advance(self, now: float) -> None:
        """Advance playback to the time ``now``."""
        elapsed, self._updated_at = now - self._updated_at, now
        parts = self._parts
        while parts and elapsed > 0:
            part = parts[0]
            remaining = part.received_seconds - part.played_seconds
            if elapsed < remaining:
                part.played_seconds += elapsed
                return
            part.played_seconds = part.received_seconds
            elapsed -= remaining
            if len(parts) == 1:
                return  # Nothing is left to play: later audio plays from its arrival.
            parts.popleft()

    def get_current_part(self, now: float) -> AudioPart | None:
        """Return the part that plays, or the one that played last."""
        self.advance(now)
        return self._parts[0] if self._parts else None

    def get_remaining_seconds(self, item_id: str, content_index: int, now: float) -> float:
        """Return how many seconds of a part have not played yet."""
        self.advance(now)
        return sum(
            part.received_seconds - part.played_seconds for part in self._parts if part.key == (item_id, content_index)
        )

    @property
    def remaining_seconds(self) -> float:
        """The seconds of all parts that have not played when playback was last advanced."""
        return sum(part.received_seconds - part.played_seconds for part in self._parts)

    def truncate(self, item_id: str | None, content_index: int | None, ms: float) -> None:
        """Shorten a part that the server has truncated."""
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
        """Stop playback and return the parts that were not heard to their end. ``response_id`` limits it to a response.

        Parts of the active response are included even if all their audio so far was heard. ``include_previous``
        includes parts of the previous connection whose items this server does not have yet.
        """
        if include_previous:
            self._include_previous_parts()
        self._sync(now)
        truncations, remaining = [], []
        for part in self._parts:
            if response_id is not None and part.response_id != response_id:
                remaining.append(part)
            elif part.received_seconds - part.played_seconds > _EPSILON or part.response_id == active_response_id:
                heard = int(min(part.played_seconds, part.received_seconds) * 1000 + 1e-6)
                truncations.append(
                    AudioTruncation(
                        part.item_id, part.content_index, part.response_id, heard, part.from_previous_connection
                    )
                )
        self._parts = deque(remaining, maxlen=MAX_PARTS)
        self._latest_part = remaining[-1] if remaining else None
        if self._tracker is not None and truncations and not remaining:
            _call_safely(self._tracker.on_interrupted, None)
        return truncations

    def remove_item(self, item_id: str) -> None:
        """Drop the audio of an item that was deleted."""
        remaining = [part for part in self._parts if part.item_id != item_id]
        self._parts = deque(remaining, maxlen=MAX_PARTS)
        if self._latest_part is not None and self._latest_part.item_id == item_id:
            self._latest_part = None

    def _include_previous_parts(self) -> None:
        self._parts.extend(self._previous_parts)
        self._previous_parts = []

    def _ensure_part(self, item_id: str, content_index: int, response_id: str) -> AudioPart:
        """Return the part, which is new unless deltas of two parts are interleaved."""
        for part in self._parts:
            if part.key == (item_id, content_index):
                return part
        if self._tracker is not None:
            self._sync(self._updated_at)
        new = AudioPart(item_id, content_index, response_id)
        self._parts.append(new)
        return new

    def _sync(self, now: float) -> None:
        """Update how much of every part was heard, and drop the parts before the one that plays."""
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
        # A player that subtracts its latency may report a negative position.
        self._parts[0].played_seconds = max(0.0, played_ms / 1000)
