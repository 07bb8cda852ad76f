"""How well a call goes: what the user had to wait for, and what was said in vain."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from standfast.base.usage import Usage
from standfast.realtime._session.broadcast import DroppedEvents

MAX_SAMPLES = 512
"""How many of the latest values of a measurement are kept."""


@dataclass(frozen=True)
class MetricSummary:
    """One measurement over a session, in milliseconds; percentiles are those of the latest values."""

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
    """The measurements of one session, by name:

    ``time_to_first_audio``  from the end of what the user said (or the request) to the first audio of the answer
    ``interruption``         from the interruption to the end of the response
    ``tool_gap``             from a call to the moment at which its output was sent
    ``truncated``            audio that the model had sent and nobody heard
    ``reconnect_gap``        from the loss of a connection to the next that knows the history

    ``usage`` is what was consumed so far, by responses and by what tools have run in the session's context.
    """

    def __init__(self, usage: Usage, *, get_dropped: Callable[[], DroppedEvents] = DroppedEvents) -> None:
        self.usage, self._get_dropped = usage, get_dropped
        self._series: dict[str, _MetricSeries] = {}

    def dropped_events(self) -> int:
        """How many events the present iterators have lost because they were too slow."""
        return self._get_dropped().count

    def dropped_bytes(self) -> int:
        """How many bytes of audio and raw messages were in these."""
        return self._get_dropped().bytes

    def add(self, name: str, ms: float) -> None:
        self._series.setdefault(name, _MetricSeries()).add(ms)

    def __getitem__(self, name: str) -> MetricSummary:
        return self._series[name].summarize()

    def __contains__(self, name: str) -> bool:
        return name in self._series

    def summaries(self) -> dict[str, MetricSummary]:
        """Everything that was measured so far."""
        return {name: series.summarize() for name, series in self._series.items()}
