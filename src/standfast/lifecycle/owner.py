"""A task that holds an asynchronous context manager open, so that any other task may close it.

:class:`Opener` is what a function returns whose result may be used with ``async with`` or with ``await``.
"""

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from standfast.base.errors import Closed
from standfast.lifecycle.scope import NEVER, AlreadyStarted, CloseTimeout, Deadline

T = TypeVar("T")

# The owners inside whose contexts the current task was started, directly or indirectly.
_enclosing_owners: ContextVar[tuple["Owner[Any]", ...]] = ContextVar("standfast_within_owners", default=())


class Owner(Generic[T]):
    """Holds a context manager open in its own task, so that any task may close it.

    Timeouts, scopes and context variables must be left by the task that entered them. Only the owner's task enters and
    leaves the context; other tasks ask it to. The context acquires the resources, preferably in a scope::

        @asynccontextmanager
        async def open_call() -> AsyncIterator[Call]:
            async with Scope() as scope:
                connection = await scope.enter(connect())
                scope.start(receive(connection))
                yield Call(connection)
                scope.cancel()

    The context must release what it acquired if it fails half way, as the one above does: Python does not
    call ``__aexit__`` after a failed ``__aenter__``. :meth:`start` follows the same rule: when it raises, nothing is
    left open, so it can be the whole body of an ``__aenter__``.
    """

    def __init__(self, factory: Callable[[], AbstractAsyncContextManager[T]], *, name: str | None = None) -> None:
        self._factory = factory
        self._name = name or str(getattr(factory, "__qualname__", type(factory).__qualname__))
        self._task: asyncio.Task[None] | None = None
        self._close_requested = asyncio.Event()
        self._opened = self._timed_out = False
        self._timer: asyncio.TimerHandle | None = None
        self.deadline = NEVER
        """The earliest deadline given to :meth:`close`. Releases read it to share the budget."""

    @property
    def closing(self) -> bool:
        """True once :meth:`close` was called."""
        return self._close_requested.is_set()

    @property
    def closed(self) -> bool:
        """True once everything is released."""
        return self._close_requested.is_set() if self._task is None else self._task.done()

    async def start(self) -> T:
        """Enter the context in the owner's task and return its value.

        If the context fails to open, its error is raised after the release of everything acquired so far;
        :class:`Closed` is raised if :meth:`close` was called in the meantime. Cancelling the caller cancels the opening
        and waits for its end.
        """
        if self.closing:
            raise Closed(f"{self._name} was closed" + (" before it was started" if self._task is None else ""))
        if self._task is not None:
            raise AlreadyStarted(f"{self._name} was already started; create a new owner")
        opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = task = asyncio.create_task(self._run(opened), name=self._name)
        task.add_done_callback(self._on_task_done)
        either: set[asyncio.Future[Any]] = {opened, task}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as cancelled:
            self._close_requested.set()
            task.cancel()
            while not task.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({task})
            raise cancelled from (None if task.cancelled() else task.exception())
        if opened.done() and not self.closing:
            return opened.result()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        raise Closed(f"{self._name} was closed while it was opening")

    async def close(self, *, deadline: Deadline = NEVER, grace: float = 1.0) -> None:
        """Request that the context is left, and wait for it. Any task may call this, any number of times.

        An error that ended the context early or occurred during its release is raised to every caller. When the
        deadline passes, the release is cancelled, given ``grace`` more seconds, and :class:`CloseTimeout` is raised.
        A context that is still opening is cancelled. The request stands even if the caller is cancelled. In a task
        that was started inside the context this method returns at once, because it would wait for itself.
        """
        self._request_close(deadline)
        if self._task is None or self in _enclosing_owners.get():
            return
        remaining = deadline.remaining()
        await asyncio.wait({self._task}, timeout=None if remaining is None else remaining + grace)
        self._raise_outcome()

    async def wait(self) -> None:
        """Wait for the end without requesting it. Raises as :meth:`close` does. Must not be called from inside."""
        if self._task is not None:
            await asyncio.wait({self._task})
            self._raise_outcome()

    async def _run(self, opened: asyncio.Future[T]) -> None:
        _enclosing_owners.set((*_enclosing_owners.get(), self))
        async with self._factory() as value:
            self._opened = True
            opened.set_result(value)
            del opened, value
            await self._close_requested.wait()

    def _request_close(self, deadline: Deadline) -> None:
        first = not self._close_requested.is_set()
        self._close_requested.set()
        if self._task is None or self._task.done():
            return
        if first and not self._opened:
            self._task.cancel()
        if deadline < self.deadline:
            self.deadline = deadline
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(deadline.at, self._on_deadline)

    def _on_deadline(self) -> None:
        assert self._task is not None  # noqa: S101
        self._timed_out = True
        self._task.cancel()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _raise_outcome(self) -> None:
        assert self._task is not None  # noqa: S101
        if not self._task.done():
            raise CloseTimeout(still_running=[self._name])
        error = None if self._task.cancelled() else self._task.exception()
        if self._timed_out:
            raise CloseTimeout(interrupted=[self._name]) from error
        if error is not None and self._opened:
            raise error


class Opener(Generic[T]):
    """The result of a function that opens something: use it with ``async with``, or ``await`` it.

    ``async with`` also closes. What was awaited stays open until the program closes it. Using it as if it were open
    raises an error that shows both forms, and dropping it without having opened it gives a warning.
    """

    def __init__(
        self,
        call: str,
        *,
        hold: Callable[[], AbstractAsyncContextManager[T]],
        open: Callable[[], Coroutine[Any, Any, T]],
    ) -> None:
        self._call, self._hold, self._open = call, hold, open
        self._context: AbstractAsyncContextManager[T] | None = None
        self._used = False

    def __await__(self) -> Generator[Any, None, T]:
        self._used = True
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._used = True
        self._context = self._hold()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        context, self._context = self._context, None
        return None if context is None else await context.__aexit__(kind, error, traceback)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self._call} is not open yet, so it has no {name!r}: write `async with {self._call} as opened:`, or"
            f" `opened = await {self._call}` and `await opened.close()` in the end",
            name=name,
        )

    def __del__(self) -> None:
        if not self.__dict__.get("_used", True):
            warnings.warn(
                f"{self._call} was called and never opened: write `async with {self._call} as opened:`",
                RuntimeWarning,
                source=self,
                stacklevel=2,
            )
