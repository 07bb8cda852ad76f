"""Until when the answers that were passed on are heard, if nothing stops them: played as they come, or as somebody says
who plays them."""

import asyncio
from collections.abc import Collection, Iterable

from standfast.base.collections import BoundedDict
from standfast.realtime._session.playback import (
    MAX_PARTS,
    AudioTruncation,
    PartPlaybackTracker,
    Playback,
    read_tracker_position,
)
from standfast.realtime._session.responses import TrackedResponse
from standfast.realtime.audio import parse_audio_format
from standfast.realtime.config import RealtimeAudioFormat
from standfast.realtime.events import RealtimeAudio
from standfast.realtime.model import RealtimePlaybackState, RealtimePlaybackTracker

MAX_PLAYER_LAG = 60.0
"""By how many seconds a player may be late. What it has not reported by then counts as heard."""
FINALITY_DELAY = 2.0
"""How many seconds after its end an answer is safe from being cut, also by a server that plays it itself."""
ROUNDING_TOLERANCE_MS = 100.0
POLL_INTERVAL = 1.0


class PlaybackSchedule:
    """One answer plays after the other."""

    def __init__(self, tracker: RealtimePlaybackTracker | None) -> None:
        self._tracker = tracker
        self._ends_at = self._stopped_at = 0.0

    def schedule(self, response: TrackedResponse, duration_ms: float) -> None:
        self._ends_at = response.playback_ends_at = max(self._ends_at, _now()) + duration_ms / 1000

    def stop(self, response: TrackedResponse, responses: Iterable[TrackedResponse]) -> None:
        response.playback_ends_at = self._stopped_at = _now()
        self._ends_at = max(other.playback_ends_at for other in (response, *responses))

    def has_played_out(self, response: TrackedResponse) -> bool:
        """Whether so much time has passed."""
        return response.playback_ends_at <= _now()

    def is_final(self, response: TrackedResponse) -> bool:
        """Whether something of it was played, and nothing of it can be taken back any more."""
        return response.playback_ends_at > 0 and response.playback_ends_at + FINALITY_DELAY <= _now()

    def is_still_playing(
        self, response: TrackedResponse, item_id: str, end: tuple[int, float], *, later_item_ids: Collection[str]
    ) -> bool:
        """Whether the player says that it has not come to the ``end`` of an item, a part and its milliseconds."""
        if self._tracker is None or response.playback_ends_at + MAX_PLAYER_LAG <= _now():
            return False
        name, part, elapsed_ms = read_tracker_position(self._tracker)
        if name is None:  # Nothing was played yet, or nothing since all that there was had been stopped.
            return response.playback_ends_at > self._stopped_at or _now() < self._stopped_at + FINALITY_DELAY
        if name in later_item_ids:
            return False
        return name != item_id or (part, elapsed_ms + ROUNDING_TOLERANCE_MS) < end

    @property
    def next_check_delay(self) -> float | None:
        """In how many seconds there may be news."""
        now = _now()
        for due in (self._ends_at, self._ends_at + FINALITY_DELAY):
            if due > now:
                return due - now
        return POLL_INTERVAL if self._tracker is not None and self._ends_at + MAX_PLAYER_LAG > now else None


def _now() -> float:
    return asyncio.get_running_loop().time()


class ReleasedAudioTracker(PartPlaybackTracker):
    """Takes audio for heard at the speed of speech from the moment at which it was passed on.

    For sessions that hold audio back: by the time at which they received it, it would count as heard too early.
    """

    def __init__(self) -> None:
        super().__init__()
        self._playback = Playback()
        self._released_seconds: BoundedDict[tuple[str, int], float] = BoundedDict(MAX_PARTS)

    def add_audio(self, audio: RealtimeAudio) -> None:
        length, response_id = len(audio.audio.data), audio.audio.response_id
        self._playback.add_audio(audio.item_id, audio.content_index, response_id, length, self._now())
        place = (audio.item_id, audio.content_index)
        self._released_seconds[place] = (
            self._released_seconds.get(place, 0.0) + self._playback.format.duration_ms(length) / 1000
        )

    def stop_response(self, response_id: str) -> None:
        """Nothing more of a response is played; what was passed on behind it plays from now on."""
        self._discard(self._playback.stop(self._now(), response_id=response_id))

    def on_interrupted(self) -> None:
        super().on_interrupted()
        self._discard(self._playback.stop(self._now()))

    def get_heard_seconds(self, item_id: str, content_index: int) -> float:
        passed_on = self._released_seconds.get((item_id, content_index), 0.0)
        return max(0.0, passed_on - self._playback.get_remaining_seconds(item_id, content_index, self._now()))

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:
        super().set_audio_format(format)
        self._playback.set_format(parse_audio_format(format) or self._playback.format)

    def get_state(self) -> RealtimePlaybackState:
        part = self._playback.get_current_part(self._now())
        if part is None:
            return super().get_state()
        return {
            "current_item_id": part.item_id,
            "current_item_content_index": part.content_index,
            "elapsed_ms": part.played_seconds * 1000,
        }

    def _discard(self, cuts: list[AudioTruncation]) -> None:
        """What was cut was not heard although it was passed on."""
        for cut in cuts:
            self._released_seconds[cut.item_id, cut.content_index] = cut.heard_ms / 1000

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
