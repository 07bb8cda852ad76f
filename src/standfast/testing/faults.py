"""What a test needs around a store: a clock to turn, an owner for backends, and a driver that fails on request."""

import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

import pytest

from standfast.store.backend import Backend

B = TypeVar("B", bound=Backend)
Reopen: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the same storage each time."""


class FakeClock:
    """A clock that stands still until it is turned, forwards or backwards."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@asynccontextmanager
async def closing_backend(backend: B) -> AsyncIterator[B]:
    """The backend, closed at the end."""
    try:
        yield backend
    finally:
        await backend.close()


class DriverFault(Protocol):
    """One failure of a driver, armed for the length of a ``with``."""

    @property
    def triggered(self) -> bool:
        """Whether it happened: a sweep over all statements ends with the first fault that did not."""
        ...


class FaultInjector(Protocol):
    """Arms a fault: the driver carries out ``statements`` more statements, then fails once.

    With ``late``, the failing statement is carried out and only its answer is lost.
    """

    def __call__(self, statements: int, *, late: bool = False) -> contextlib.AbstractContextManager[DriverFault]: ...


class CountedFault:
    """A fault that lets so many statements pass."""

    def __init__(self, statements: int, late: bool) -> None:
        self.remaining = statements
        self.late = late
        self.triggered = False


class DriverFaults:
    """Arms faults, by ``after``, for a driver that asks :meth:`due` before and after each statement."""

    def __init__(self) -> None:
        self.armed: CountedFault | None = None
        self.lock = threading.Lock()

    @contextmanager
    def fail_after(self, statements: int, *, late: bool = False) -> Iterator[CountedFault]:
        self.armed = fault = CountedFault(statements, late)
        try:
            yield fault
        finally:
            self.armed = None

    def should_fail(self, *, late: bool) -> bool:
        """Whether the statement that is about to run, or has just run, is the one that fails."""
        with self.lock:
            fault = self.armed
            if fault is None or fault.triggered or fault.late != late:
                return False
            if fault.remaining:
                fault.remaining -= 1
                return False
            fault.triggered = True
            return True


class SqliteFaults(DriverFaults):
    """A driver for ``SqliteBackend(connect=faults.connect)`` whose statements fail on request."""

    def connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(*args, factory=FaultyConnection, **kwargs)
        assert isinstance(connection, FaultyConnection)
        connection.faults = self
        return connection


class FaultyConnection(sqlite3.Connection):
    """A connection that asks its :class:`SqliteFaults` before and after each statement."""

    faults: SqliteFaults

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return self.execute_with_faults(super().execute, args)

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        return self.execute_with_faults(super().executemany, args)

    def execute_with_faults(self, execute: Callable[..., sqlite3.Cursor], args: tuple[Any, ...]) -> sqlite3.Cursor:
        if self.faults.should_fail(late=False):
            raise sqlite3.OperationalError("disk I/O error (injected)")
        cursor = execute(*args)
        if self.faults.should_fail(late=True):
            cursor.close()  # an open one would hold its snapshot for as long as the traceback lives
            raise sqlite3.OperationalError("disk I/O error (injected)")
        return cursor


def get_optional_fixture(request: pytest.FixtureRequest, name: str) -> Any:
    """A fixture that a suite may supply; ``None`` where it would skip."""
    try:
        return request.getfixturevalue(name)
    except pytest.skip.Exception:
        return None


class StorageFixtures:
    """The fixtures and flags that :class:`~standfast.testing.StoreContract` and its sibling have in common."""

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
