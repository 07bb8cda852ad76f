"""Tools for tests of storage: a manual clock, drivers that fail on request, and the fixtures of both suites."""

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
"""Opens the same storage on each call."""


class FakeClock:
    """A clock that only moves when it is advanced, by a positive or negative number of seconds."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@asynccontextmanager
async def closing_backend(backend: B) -> AsyncIterator[B]:
    """Close the backend at the end of the block."""
    try:
        yield backend
    finally:
        await backend.close()


class DriverFault(Protocol):
    """One failure of a driver, armed within a ``with`` block."""

    @property
    def triggered(self) -> bool:
        """Whether the failure happened. A sweep over all statements ends with the first fault that was not reached."""
        ...


class FaultInjector(Protocol):
    """Arms a fault: the driver executes ``statements`` more statements, then fails once.

    With ``late``, the failing statement is executed and only its result is lost.
    """

    def __call__(self, statements: int, *, late: bool = False) -> contextlib.AbstractContextManager[DriverFault]: ...


class CountedFault:
    """A fault after a number of statements."""

    def __init__(self, statements: int, late: bool) -> None:
        self.remaining = statements
        self.late = late
        self.triggered = False


class DriverFaults:
    """Arms faults for a driver that calls :meth:`should_fail` before and after each statement."""

    def __init__(self) -> None:
        self.armed: CountedFault | None = None
        self.lock = threading.Lock()

    @contextmanager
    def fail_after(self, statements: int, *, late: bool = False) -> Iterator[CountedFault]:
        """Let the driver fail after so many statements while the block lasts."""
        self.armed = fault = CountedFault(statements, late)
        try:
            yield fault
        finally:
            self.armed = None

    def should_fail(self, *, late: bool) -> bool:
        """Return whether the statement that is about to run, or with ``late`` has just run, is the one that fails."""
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
        """Open a connection that fails as configured, in place of ``sqlite3.connect``."""
        connection = sqlite3.connect(*args, factory=FaultyConnection, **kwargs)
        assert isinstance(connection, FaultyConnection)
        connection.faults = self
        return connection


class FaultyConnection(sqlite3.Connection):
    """A connection that checks its :class:`SqliteFaults` before and after each statement."""

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
            cursor.close()  # an open cursor would hold its snapshot as long as the traceback exists
            raise sqlite3.OperationalError("disk I/O error (injected)")
        return cursor


def get_optional_fixture(request: pytest.FixtureRequest, name: str) -> Any:
    """Return the value of a fixture, or ``None`` if the fixture skips."""
    try:
        return request.getfixturevalue(name)
    except pytest.skip.Exception:
        return None


class StorageFixtures:
    """The fixtures and flags that StoreContract and SessionContract have in common."""

    durable = True

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of the storage."""
        return FakeClock()

    @pytest.fixture
    def reopen(self) -> Reopen:
        """Opens the storage, again with the same content. Subclasses supply it."""
        raise NotImplementedError("subclasses must supply the fixture 'reopen'")

    @pytest.fixture
    def reopen_durable(self, reopen: Reopen) -> Reopen:
        """``reopen``, for clauses that need a storage which is kept when it is closed."""
        if not self.durable:
            pytest.skip("this storage is not durable")
        return reopen

    @pytest.fixture
    def failing_after(self) -> FaultInjector:
        """Lets the storage fail after a number of statements. Skips tests unless it is overridden."""
        pytest.skip("this storage supplies no fault injection")

    @pytest.fixture
    def faults_if_any(self, request: pytest.FixtureRequest) -> FaultInjector | None:
        """``failing_after``, or ``None``, for clauses that do not depend on it."""
        faults: FaultInjector | None = get_optional_fixture(request, "failing_after")
        return faults
