"""Until when the answers that were passed on are heard, if nothing stops them: played as they come, or as somebody says
who plays them."""

import asyncio
from collections.abc import Collection, Iterable

from holdfast.realtime.model import RealtimePlaybackTracker
from holdfast.realtime.playback import state_of
from holdfast.realtime.responses import Response

BEHIND = 60.0
"""By how many seconds a player may be late. What it has not reported by then counts as heard."""
SETTLED = 2.0
"""How many seconds after its end an answer is safe from being cut, also by a server that plays it itself."""
ROUNDING_MS = 100.0
LOOK_AGAIN = 1.0


class Playing:
    """One answer plays after the other."""

    def __init__(self, tracker: RealtimePlaybackTracker | None) -> None:
        self._tracker = tracker
        self._until = self._stopped_at = 0.0

    def play(self, response: Response, lasts_ms: float) -> None:
        self._until = response.heard_by = max(self._until, _now()) + lasts_ms / 1000

    def stop(self, response: Response, known: Iterable[Response]) -> None:
        response.heard_by = self._stopped_at = _now()
        self._until = max(other.heard_by for other in (response, *known))

    def may_be_heard(self, response: Response) -> bool:
        """Whether so much time has passed."""
        return response.heard_by <= _now()

    def was_heard(self, response: Response) -> bool:
        """Whether something of it was played, and nothing of it can be taken back any more."""
        return response.heard_by > 0 and response.heard_by + SETTLED <= _now()

    def is_awaited(self, response: Response, item_id: str, end: tuple[int, float], *, later: Collection[str]) -> bool:
        """Whether the player says that it has not come to the ``end`` of an item, a part and its milliseconds."""
        if self._tracker is None or response.heard_by + BEHIND <= _now():
            return False
        name, part, elapsed_ms = state_of(self._tracker)
        if name is None:  # Nothing was played yet, or nothing since all that there was had been stopped.
            return response.heard_by > self._stopped_at or _now() < self._stopped_at + SETTLED
        if name in later:
            return False
        return name != item_id or (part, elapsed_ms + ROUNDING_MS) < end

    @property
    def look_again(self) -> float | None:
        """In how many seconds there may be news."""
        now = _now()
        for due in (self._until, self._until + SETTLED):
            if due > now:
                return due - now
        return LOOK_AGAIN if self._tracker is not None and self._until + BEHIND > now else None


def _now() -> float:
    return asyncio.get_running_loop().time()
