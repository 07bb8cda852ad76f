"""The time of day, as one injectable function. Order never depends on it; leases and expiry do."""

import time
from collections.abc import Callable

Clock = Callable[[], float]

system_clock: Clock = time.time
