"""The store contract, applied to databases behind SQLAlchemy."""

from pathlib import Path

import pytest

from holdfast.store.sql import SqlBackend
from holdfast.testing import FakeClock, StoreContract, owned


class TestPostgresql(StoreContract):
    """One statement per commit, by the function."""

    @pytest.fixture
    def reopen(self, postgres_url: str, clock: FakeClock):
        return lambda: owned(SqlBackend.from_url(postgres_url, clock=clock))


class TestAioSqlite(StoreContract):
    """The portable path that every other dialect takes."""

    @pytest.fixture
    def reopen(self, tmp_path: Path, clock: FakeClock):
        return lambda: owned(SqlBackend.from_url(f"sqlite+aiosqlite:///{tmp_path}/store.db", clock=clock))
