import gc
from collections.abc import Iterator

import pytest

from factories.lifecycle import ResourceLog


@pytest.fixture
def log() -> ResourceLog:
    return ResourceLog()


@pytest.fixture(autouse=True)
def frozen_heap() -> Iterator[None]:
    """Exclude older objects from garbage collection, which makes the collections inside of tests fast."""
    gc.freeze()
    yield
    gc.unfreeze()
