import pytest
from witness import Log


@pytest.fixture
def log():
    return Log()
