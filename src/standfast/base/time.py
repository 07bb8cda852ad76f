"""Time: the wall clock as an injectable function, and the delays of an exponential back-off."""

import math
import random
import time
from collections.abc import Callable

Clock = Callable[[], float]

system_clock: Clock = time.time
"""The wall clock. Leases and expiry depend on it, the order of records never does."""


def compute_delay(
    attempt: int,
    *,
    initial: float,
    maximum: float = math.inf,
    multiplier: float = 2.0,
    jitter: float = 0.0,
    rng: Callable[[], float] = random.random,
) -> float:
    """Return the seconds to wait after the failed attempt number ``attempt``, counted from 0.

    The delay is ``initial * multiplier ** attempt`` and never more than ``maximum``. ``jitter`` is the fraction of it
    that is random: with 0.25 the result lies between 75 % and 100 % of the delay, with 1.0 between 0 and 100 %.
    """
    try:
        delay = min(initial * multiplier**attempt, maximum)
    except OverflowError:
        delay = maximum if initial else 0.0
    return delay * (1 - jitter * rng()) if jitter else delay


class Backoff:
    """Delays that grow from ``initial`` to ``maximum`` seconds until :meth:`reset`; see :func:`compute_delay`."""

    def __init__(
        self,
        *,
        initial: float = 0.02,
        maximum: float = 1.0,
        multiplier: float = 2.0,
        jitter: float = 0.0,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.initial, self.maximum, self.multiplier, self.jitter = initial, maximum, multiplier, jitter
        self.attempt = 0
        self._rng = rng

    def next_delay(self) -> float:
        """Return the delay of this attempt and count it."""
        delay = compute_delay(
            self.attempt,
            initial=self.initial,
            maximum=self.maximum,
            multiplier=self.multiplier,
            jitter=self.jitter,
            rng=self._rng,
        )
        self.attempt += 1
        return delay

    def reset(self) -> None:
        """Start again from ``initial``, after a success."""
        self.attempt = 0
