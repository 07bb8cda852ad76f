"""The wall clock as an injectable function. Leases and expiry depend on it, the order of records never does."""

import time
from collections.abc import Callable

Clock = Callable[[], float]

system_clock: Clock = time.time
