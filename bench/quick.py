"""How much is measured: everything as the targets say, or with ``--quick`` enough to see that it works."""

import os
from typing import TypeVar

VARIABLE = "STANDFAST_BENCH_QUICK"

Size = TypeVar("Size")


def quick() -> bool:
    """Said in the environment, so that the processes of the peers know it too."""
    return os.environ.get(VARIABLE) == "1"


def pick(full: Size, small: Size) -> Size:
    """The size of a measurement. Groups choose when they are imported, and so do the processes of the peers."""
    return small if quick() else full
