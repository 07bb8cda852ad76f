"""Until when the answers that were passed on are heard, if nothing stops them: played as they come, or as somebody says
who plays them."""

import asyncio
from collections.abc import Collection, Iterable

from holdfast.realtime.model import RealtimePlaybackTracker
from holdfast.realtime.playback import read_tracker_position
from holdfast.realtime.responses import TrackedResponse

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
