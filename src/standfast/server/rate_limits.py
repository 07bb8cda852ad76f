"""Limits on how often one principal, or one address, sends requests."""

import time
from collections import OrderedDict

_BURST_SECONDS = 5.0
_MAX_BUCKETS = 10_000


class RateLimiter:
    """One token bucket per name. A bucket holds what ``rate`` gives in five seconds."""

    def __init__(self, rate: float) -> None:
        self.rate, self.capacity = rate, max(rate * _BURST_SECONDS, 1.0)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = time.monotonic()
        tokens, at = self._buckets.get(name, (self.capacity, now))
        tokens = min(self.capacity, tokens + (now - at) * self.rate)
        accepted = tokens >= 1.0
        self._buckets[name] = (tokens - 1.0 if accepted else tokens), now
        self._buckets.move_to_end(name)
        if len(self._buckets) > _MAX_BUCKETS:  # the name that was not seen for the longest time
            self._buckets.popitem(last=False)
        return 0.0 if accepted else (1.0 - tokens) / self.rate
