"""The base of the differential state machines: random programs on a backend and on the in-memory reference.

After each step, all reads of both are compared. Programs are derived from a fixed seed, so that failures are
reproducible.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from standfast.base.errors import StandfastError
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.testing.faults import FakeClock, FaultInjector, Reopen

MACHINE_STEPS = 30

positions = st.integers(0, 8)
small_counts = st.integers(0, 3)
fault_points = st.none() | st.none() | st.integers(0, 12)


def make_settings(examples: int) -> settings:
    """Return settings for the same programs in every run, without deadlines."""
    return settings(
        max_examples=examples,
        stateful_step_count=MACHINE_STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class DifferentialStateMachine(RuleBasedStateMachine):
    """A storage and the reference, with one clock and one event loop for both."""

    def __init__(
        self, reopen: Reopen, *, clock: FakeClock, failing_after: FaultInjector | None = None, durable: bool = True
    ) -> None:
        super().__init__()
        self.reopen = reopen
        self.clock = clock
        self.failing_after = failing_after
        self.durable = durable
        self.prefix = f"x{secrets.token_hex(6)}"
        self.reference = MemoryBackend(clock=clock)
        self.runner = asyncio.Runner()
        self.open_context: AbstractAsyncContextManager[Any] | None = None
        self.open()

    def open(self) -> None:
        opened = self.reopen()
        self.storage = self.runner.run(opened.__aenter__())
        self.open_context = opened

    def close(self) -> None:
        opened, self.open_context = self.open_context, None
        if opened is not None:
            self.runner.run(opened.__aexit__(None, None, None))

    def teardown(self) -> None:
        try:
            self.close()
        finally:
            self.runner.close()

    def backend(self) -> Backend:
        """Return the backend of the opened storage."""
        backend: Backend = self.storage
        return backend

    @precondition(lambda self: self.durable)
    @rule()
    def reopen_storage(self) -> None:
        self.close()
        self.open()

    @rule(seconds=st.integers(-5, 20))
    def advance_clock(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def run_both(
        self, on_backend: Callable[[], Awaitable[Any]], on_reference: Callable[[], Awaitable[Any]], fault: int | None
    ) -> Any:
        """Make a call on both sides. Returns their common result, or ``None`` if an injected fault prevented it."""
        if fault is not None and self.failing_after is not None:
            with self.failing_after(fault) as injected:
                actual = self.runner.run(capture_result(on_backend))
            if injected.triggered and isinstance(actual, Exception):
                return None
        else:
            actual = self.runner.run(capture_result(on_backend))
        expected = self.runner.run(capture_result(on_reference))
        assert normalize_result(actual) == normalize_result(expected)
        return actual


async def capture_result(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except StandfastError as error:
        return error


def normalize_result(result: Any) -> Any:
    """Return a result in a form that can be compared between backends."""
    if isinstance(result, StandfastError):
        return (result.code, getattr(result, "expected", None), getattr(result, "found", None))
    return getattr(result, "session_id", result)
