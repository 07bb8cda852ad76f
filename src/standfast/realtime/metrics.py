"""Metrics of a session: latencies, and audio that was not heard."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from standfast.base.usage import Usage
from standfast.realtime._session.broadcast import DroppedEvents

MAX_SAMPLES = 512
"""How many recent values of each metric are kept."""


@dataclass(frozen=True)
class MetricSummary:
    """A summary of one metric in milliseconds. Percentiles are those of the recent values."""

    count: int
    last: float
    p50: float
    p95: float
    maximum: float


class _MetricSeries:
    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=MAX_SAMPLES)
        self.count, self.maximum = 0, 0.0

    def add(self, ms: float) -> None:
        self.values.append(ms)
        self.count += 1
        self.maximum = max(self.maximum, ms)

    def summarize(self) -> MetricSummary:
        ordered = sorted(self.values)

        def rank(part: float) -> float:
            return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]

        return MetricSummary(self.count, self.values[-1], rank(0.5), rank(0.95), self.maximum)


class RealtimeMetrics:
    """The metrics of one session, by name:

    ``time_to_first_audio``  from the end of the user's turn (or the request) to the first audio of the response
    ``interruption``         from the interruption to the end of the response
    ``tool_gap``             from a tool call to the moment at which its output was sent
    ``truncated``            audio that the model has sent and the user has not heard
    ``reconnect_gap``        from the loss of a connection to the next one that has the history

    ``usage`` is the usage so far, of responses and of runs that tools have made in the session's context.
    """

    def __init__(self, usage: Usage, *, get_dropped: Callable[[], DroppedEvents] = DroppedEvents) -> None:
        self.usage, self._get_dropped = usage, get_dropped
        self._series: dict[str, _MetricSeries] = {}

    def count_dropped_events(self) -> int:
        """Return how many events the current iterators have lost because they were too slow."""
        return self._get_dropped().count

    def count_dropped_bytes(self) -> int:
        """Return how many bytes of audio and raw messages were in these events."""
        return self._get_dropped().bytes

    def add(self, name: str, ms: float) -> None:
        """Add a measurement."""
        self._series.setdefault(name, _MetricSeries()).add(ms)

    def __getitem__(self, name: str) -> MetricSummary:
        return self._series[name].summarize()

    def __contains__(self, name: str) -> bool:
        return name in self._series

    def summaries(self) -> dict[str, MetricSummary]:
        """Return a summary of every metric."""
        return {name: series.summarize() for name, series in self._series.items()}
