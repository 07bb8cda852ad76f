"""The sizes of measurements: those of the targets, or small ones with ``--quick``."""

import os
from typing import TypeVar

VARIABLE = "STANDFAST_BENCH_QUICK"

Size = TypeVar("Size")


def is_quick() -> bool:
    """Whether this is a quick run; an environment variable, so that processes of competitors know it too."""
    return os.environ.get(VARIABLE) == "1"


def pick_size(full: Size, small: Size) -> Size:
    """Return the size of a measurement. Groups call this when they are imported, in all processes."""
    return small if is_quick() else full
