"""The contract suites run their random programs also without fault injection."""

from pathlib import Path

import pytest

import standfast

SOURCE = Path(standfast.__file__).parent.parent

SUITES = """
import pytest
from standfast.store.memory import MemoryBackend
from standfast.testing import SessionContract, StoreContract, closing_backend

class OverMemory:
    durable = False
    examples = 1

    @pytest.fixture
    def reopen(self, clock):
        return lambda: closing_backend(MemoryBackend(clock=clock))

class TestStore(OverMemory, StoreContract):
    pass

class TestSession(OverMemory, SessionContract):
    pass
"""


def test_random_programs_run_without_fault_injection(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\npythonpath = {SOURCE}\nasyncio_mode = auto\naddopts = -p no:cacheprovider\n")
    pytester.makepyfile(SUITES)
    pytester.runpytest_subprocess("-k", "reference").assert_outcomes(passed=2)
