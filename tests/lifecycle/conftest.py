import pytest

from factories.lifecycle import ResourceLog


@pytest.fixture
def log() -> ResourceLog:
    return ResourceLog()
