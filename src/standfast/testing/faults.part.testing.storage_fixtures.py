"""What both suites are given: a storage that can be opened again, a clock, and faults."""

from typing import Any

import pytest

from holdfast.testing.storage import FakeClock, FaultInjector, Reopen


def get_optional_fixture(request: pytest.FixtureRequest, name: str) -> Any:
    """A fixture that a suite may supply; ``None`` where it would skip."""
    try:
        return request.getfixturevalue(name)
    except pytest.skip.Exception:
        return None


class StorageFixtures:
    """The fixtures and flags that :class:`~holdfast.testing.StoreContract` and its sibling have in common."""

    durable = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def reopen(self) -> Reopen:
        raise NotImplementedError("a storage under contract supplies the fixture 'reopen'")

    @pytest.fixture
    def reopen_durable(self, reopen: Reopen) -> Reopen:
        """``reopen`` of a storage that outlives its closing."""
        if not self.durable:
            pytest.skip("this storage is gone when it is closed")
        return reopen

    @pytest.fixture
    def failing_after(self) -> FaultInjector:
        pytest.skip("this storage injects no faults")

    @pytest.fixture
    def faults_if_any(self, request: pytest.FixtureRequest) -> FaultInjector | None:
        """``failing_after`` for clauses that also prove something without it."""
        faults: FaultInjector | None = get_optional_fixture(request, "failing_after")
        return faults
