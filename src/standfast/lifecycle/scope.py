"""Scopes, which own tasks and resources, deadlines, and work that must finish although its caller is cancelled.

A :class:`Scope` belongs to one task: everything started in it has ended when it is left. A :class:`Deadline` is a point
in time that is passed down, so that the steps of a shutdown share one budget.
"""

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from standfast.base.errors import Closed, StandfastError

T = TypeVar("T")


async def run_to_end(
    work: Coroutine[Any, Any, T], *, grace: float | None, on_cancel: Callable[[], object] | None = None
) -> T:
    """Run ``work`` in its own task, and return or raise only after it has ended.

    When the caller is cancelled, ``on_cancel`` is called, and the work is cancelled once after ``grace`` seconds, or
    never if ``grace`` is ``None``. Its clean-up is not interrupted by further cancellations, so the work must bound
    that itself. The caller's cancellation is raised when the work has ended, with the work's error as its cause.
    """
    task = asyncio.ensure_future(work)
    ended = asyncio.get_running_loop().create_future()

    def announce(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(announce)
    try:
        await ended
    except asyncio.CancelledError as cancelled:
        if on_cancel is not None:
            on_cancel()
        await _wait_until_done(task, timeout=grace)
        task.cancel()
        await _wait_until_done(task)
        raise cancelled from _get_exception(task)
    return task.result()


def is_cancelling() -> bool:
    """Return True if the current task was cancelled.

    If it was not, a ``CancelledError`` comes from work inside the task that was cancelled on its own.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait_until_done(task: "asyncio.Task[Any]", *, timeout: float | None = None) -> None:
    """Wait for the task to end, or for the timeout. Further cancellations are ignored: the first is raised later."""
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    while not task.done() and (until is None or loop.time() < until):
        try:
            await asyncio.wait({task}, timeout=None if until is None else max(until - loop.time(), 0))
        except asyncio.CancelledError:
            continue


def _get_exception(task: "asyncio.Task[Any]") -> BaseException | None:
    return None if task.cancelled() else task.exception()


# The time a cooperative task needs to react to a cancellation, granted even after the deadline.
_MIN_GRACE = 0.05


class AlreadyStarted(StandfastError, RuntimeError):
    """A scope or owner can be used only once; create a new one."""

    code = "already-started"


class CloseTimeout(StandfastError, TimeoutError):
    """Closing did not finish before the deadline.

    ``interrupted`` names what was cancelled and may not have released everything; ``still_running`` names what ignored
    the cancellation and is still running.
    """

    code = "cut-off"

    def __init__(self, *, interrupted: Sequence[str] = (), still_running: Sequence[str] = ()) -> None:
        super().__init__(
            f"closing did not finish before the deadline: interrupted {list(interrupted)},"
            f" still running {list(still_running)}"
        )
        self.interrupted, self.still_running = tuple(interrupted), tuple(still_running)


def _now() -> float:
    """Return the time of the running event loop, which tests may replace, or ``time.monotonic()`` without a loop."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


@dataclass(frozen=True, order=True, slots=True)
class Deadline:
    """A point on the monotonic clock. ``min(a, b)`` is the earlier of two deadlines."""

    at: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """Return the deadline ``seconds`` from now; ``None`` means no deadline."""
        return cls() if seconds is None else cls(_now() + seconds)

    @property
    def expired(self) -> bool:
        """Whether the time has come."""
        return self.at <= _now()

    def remaining(self) -> float | None:
        """Return the remaining seconds, never negative; ``None`` if there is no deadline, as in asyncio's timeouts."""
        return None if math.isinf(self.at) else max(0.0, self.at - _now())

    def limit_to(self, seconds: float | None) -> "Deadline":
        """Return this deadline or the one ``seconds`` from now, whichever is earlier."""
        return min(self, Deadline.after(seconds))

    def timeout(self) -> asyncio.Timeout:
        """Return a context manager that raises ``TimeoutError`` once the deadline has passed."""
        return asyncio.timeout_at(None if math.isinf(self.at) else self.at)


NEVER = Deadline()


def _combine_errors(first: BaseException | None, others: Sequence[BaseException]) -> BaseException | None:
    """Combine several errors into one: a single error as it is, and never a cancellation inside a group."""
    if not others:
        return first
    if first is None:
        return (
            others[0] if len(others) == 1 else BaseExceptionGroup("several tasks or releases of a scope failed", others)
        )
    if isinstance(first, Exception):
        return BaseExceptionGroup("several tasks or releases of a scope failed", [first, *others])
    first.__cause__ = first.__cause__ or _combine_errors(None, others)
    return first


class Scope:
    """Child tasks and resources that end with an ``async with`` block.

    Leaving the block normally waits for the children; leaving it by an exception cancels them and waits.
    After the last child has ended, the resources are released in reverse order. A failing child ends the
    scope: its siblings and the body are cancelled and its error is raised by the block, as it is if it is the
    only one, otherwise in an ``ExceptionGroup``. A child that is merely cancelled is not a failure.

    A cancellation from outside is never lost. While the children are ending it is deferred, so that the
    releases after them are not disturbed; one that arrives during a release interrupts only that release.
    Use an :class:`Owner` for work that must not be interrupted at all.

    ``grace`` bounds the closing in seconds, from the cancellation of the children or, if they end by
    themselves, from the first release. :class:`CloseTimeout` reports what exceeds it.
    """

    def __init__(self, *, grace: float | None = None) -> None:
        self._grace = grace
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors: list[BaseException] = []
        self._interrupted_names: list[str] = []
        self._running_names: list[str] = []
        self._owner: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._exiting = self._cancelled = self._interrupted = self._joined = self._released = False
        self._min_deadline = Deadline(-math.inf)
        self._wakeup: asyncio.Future[None] | None = None
        self._release_timeout: asyncio.Timeout | None = None
        self.deadline = NEVER
        """The deadline of closing, ``NEVER`` before. Releases read it to share the budget."""

    async def __aenter__(self) -> Self:
        if self._owner is not None:
            raise AlreadyStarted("this scope was already entered; create a new one")
        self._owner = asyncio.current_task()
        assert self._owner is not None, "a scope must be entered in a task"  # noqa: S101
        self._cancelling = self._owner.cancelling()
        return self

    def start(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run ``work`` as a child task. Children may start siblings, even while the scope waits for them to end."""
        if not self._is_open:
            work.close()
            raise Closed("cannot start a task: the scope is not open")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    async def enter(self, context: AbstractAsyncContextManager[T], *, name: str | None = None) -> T:
        """Enter ``context`` now and leave it with the scope. Call this from the task that entered the scope."""
        if not self._is_open:
            raise Closed("cannot enter a context: the scope is not open")
        value = await context.__aenter__()
        described = getattr(context, "gen", type(context)).__qualname__
        self._stack.push_async_exit(self._limit_release(context.__aexit__, name or described))
        return value

    def push_callback(self, callback: Callable[[], Awaitable[object] | object], *, name: str | None = None) -> None:
        """Call ``callback`` when the scope releases its resources, and await its result if it is awaitable.

        Allowed until the end of the scope, so that a resource acquired by hand can always be released.
        """
        if self._owner is None or self._released:
            raise Closed("cannot add a callback: the scope is not open or has released its resources")

        async def release(*_: object) -> None:
            result = callback()
            if inspect.isawaitable(result):
                await result

        described = getattr(callback, "__qualname__", repr(callback))
        self._stack.push_async_exit(self._limit_release(release, name or described))

    def cancel(self, *, deadline: Deadline = NEVER) -> None:
        """End the scope without an error: cancel the children, and the body unless it is the caller.

        ``deadline`` limits the closing in addition to the scope's grace, even if closing has already begun.
        """
        if deadline < self.deadline:
            self.deadline = deadline
            if self._release_timeout is not None and not self._release_timeout.expired():
                self._release_timeout.reschedule(max(deadline, Deadline.after(_MIN_GRACE)).at)
        if not self._cancelled:
            self._cancelled = True
            self.deadline, self._min_deadline = self.deadline.limit_to(self._grace), Deadline.after(_MIN_GRACE)
            for task in self._tasks:
                task.cancel()
            if self._owner is not None and not self._exiting and self._owner is not asyncio.current_task():
                self._interrupted = True
                self._owner.cancel()
        self._wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        owner = self._owner
        assert owner is not None  # noqa: S101
        failure = error
        self._exiting = True
        before = owner.uncancel() if self._interrupted else owner.cancelling()
        if self._interrupted and not isinstance(error, asyncio.CancelledError):
            # The body ran to its end, or was running when an eagerly started child cancelled
            # it. Then the cancellation is still pending and must not interrupt a release.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        elif self._interrupted and before <= self._cancelling:
            failure = None  # The scope itself requested this cancellation, and nothing else did.
        if failure is not None:
            self.cancel()
        deferred = await self._join()
        if deferred is not None and (failure is None or isinstance(failure, Exception)):
            self._errors[:0] = [failure] if failure is not None else []
            failure = deferred
        cancelled = isinstance(failure, asyncio.CancelledError)
        failure = await self._release(_combine_errors(failure, self._errors))
        self._errors.clear()
        if self._interrupted_names or self._running_names:
            failure = _combine_errors(
                failure, [CloseTimeout(interrupted=self._interrupted_names, still_running=self._running_names)]
            )
        outstanding = owner.cancelling() > (self._cancelling if cancelled else before)
        if outstanding and not isinstance(failure, asyncio.CancelledError):
            raise asyncio.CancelledError from failure
        if failure is None or failure is error:
            return failure is None
        context = failure.__context__
        try:
            raise failure
        finally:
            # Raising sets the body's error as the context, which would hide the child's own context.
            failure.__context__ = context
            del failure, error

    @property
    def _is_open(self) -> bool:
        return self._owner is not None and not self._cancelled and not self._joined

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)
            self.cancel()
        if not self._tasks:
            self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _join(self) -> asyncio.CancelledError | None:
        """Wait for the children. Defer a cancellation from outside and return it afterwards."""
        deferred = None
        while self._tasks:
            limit = max(self.deadline, self._min_deadline)
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait({self._wakeup}, timeout=limit.remaining())
            except asyncio.CancelledError as cancelled:
                deferred = cancelled
                self.cancel()
            if limit.expired:
                break
        self._joined = True
        for task in self._tasks:
            # Without the callback, the event loop reports an error of this task.
            task.remove_done_callback(self._on_task_done)
            task.cancel()
            self._running_names.append(task.get_name())
        return deferred

    async def _release(self, failure: BaseException | None) -> BaseException | None:
        """Release everything in reverse order, passing ``failure`` to each. Return the error that is to be raised."""
        if not self._cancelled:
            self.deadline = self.deadline.limit_to(self._grace)
        trace = failure.__traceback__ if failure is not None else None
        try:
            suppressed = await self._stack.__aexit__(type(failure) if failure is not None else None, failure, trace)
        except BaseException as raised:  # noqa: BLE001 - the caller raises it
            return raised
        finally:
            self._released = True
        return None if suppressed else failure

    def _limit_release(
        self, exit_callback: Callable[..., Coroutine[Any, Any, bool | None]], name: str
    ) -> Callable[..., Coroutine[Any, Any, bool | None]]:
        async def exit_in_time(*exc_info: Any) -> bool | None:
            self._release_timeout = budget = max(self.deadline, Deadline.after(_MIN_GRACE)).timeout()
            try:
                async with budget:
                    return await exit_callback(*exc_info)
            except (TimeoutError, asyncio.CancelledError):
                # In a task that is being cancelled, a timeout may appear as a cancellation. __aexit__
                # finds out at the end whether there was a cancellation from outside.
                if not budget.expired():
                    raise
                return False
            finally:
                self._release_timeout = None
                if budget.expired():
                    self._interrupted_names.append(name)

        return exit_in_time
