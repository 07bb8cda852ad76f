"""An executor with a single thread, for libraries that block or must be used from one thread only."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as SharedFuture
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

from standfast.base.errors import Closed, StandfastError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class UnansweredJob(StandfastError):
    """A handler returned without setting the outcome of a job."""

    code = "unanswered"


class _ResultDispatcher:
    """Delivers outcomes from the thread to one event loop. Outcomes that come close together share one wake-up."""

    __slots__ = ("_loop", "_results", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._scheduled = False

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._results.append((future, value, error))
        # The thread appends before it tests the flag, and the loop clears the flag before it empties the
        # queue: a wake-up may be superfluous, but no outcome is forgotten.
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._set_results)
            except RuntimeError:
                # The loop was closed, so no caller is waiting there.
                self._results.clear()
                self._scheduled = False

    def _set_results(self) -> None:
        self._scheduled = False
        while self._results:
            future, value, error = self._results.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class Job:
    """A call that waits for the thread. Only the first outcome counts; the caller may have been cancelled by then."""

    __slots__ = ("_dispatcher", "_future", "args", "done", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        future: asyncio.Future[Any],
        dispatcher: _ResultDispatcher,
    ) -> None:
        self.function, self.args = function, args
        self.done = False
        self._future, self._dispatcher = future, dispatcher

    def call(self) -> Any:
        """Call the function in the current thread, without setting the outcome."""
        return self.function(*self.args)

    def set_result(self, value: Any) -> None:
        """Let the job succeed with this value."""
        self._set_outcome(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Let the job fail."""
        if isinstance(error, StopIteration):  # A future cannot hold it.
            stopped, error = error, RuntimeError("the job raised StopIteration")
            error.__cause__ = stopped
        self._set_outcome(None, error)

    def _set_outcome(self, value: Any, error: BaseException | None) -> None:
        if not self.done:
            self.done = True
            self._dispatcher.put(self._future, value, error)


def run_jobs_in_order(jobs: list[Job]) -> None:
    """Run the jobs in order and set the outcome of each as soon as it is known."""
    for job in jobs:
        try:
            value = job.call()
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            job.set_exception(error)
        else:
            job.set_result(value)


class SingleThreadExecutor:
    """Runs functions in a single thread, in the order of the calls, for any number of event loops.

    The thread starts with the first call. ``handle`` is called with all waiting jobs in order and must set the
    outcome of each; so a database thread can let many callers share a commit. If it raises, its exception becomes
    the outcome of the jobs that have none.

    An executor that is not closed does not keep the interpreter from exiting, but then queued jobs may not run.
    """

    def __init__(self, name: str, *, handle: Callable[[list[Job]], object] = run_jobs_in_order) -> None:
        self._name = name
        self._handle = handle
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._thread_ended: SharedFuture[None] = SharedFuture()
        # A running future cannot be cancelled: cancelling one caller of close() must not affect the others.
        self._thread_ended.set_running_or_notify_cancel()
        self._dispatchers: dict[asyncio.AbstractEventLoop, _ResultDispatcher] = {}

    @property
    def closed(self) -> bool:
        """Whether the executor accepts no more jobs."""
        return self._closed

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``function`` in the thread and return its result.

        Cancelling the caller does not stop the job: it runs in its turn and its result is discarded. Context
        variables are not passed to the thread.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise Closed(f"the executor {self._name!r} is closed")
            dispatcher = self._dispatchers.get(loop) or self._get_dispatcher(loop)
            self._jobs.put(Job(function, args, future, dispatcher))
            if self._thread is None:
                self._start()
        return await future

    async def close(self) -> None:
        """Let the thread finish the queued jobs, and join it. Any task may call this, any number of times."""
        self._request_close()
        if self._thread is not None:
            await asyncio.wrap_future(self._thread_ended)
            self._thread.join()

    def close_sync(self) -> None:
        """Close without an event loop. Blocks until the queued jobs are done."""
        self._request_close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _request_close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _get_dispatcher(self, loop: asyncio.AbstractEventLoop) -> _ResultDispatcher:
        for closed in [other for other in self._dispatchers if other.is_closed()]:
            del self._dispatchers[closed]
        return self._dispatchers.setdefault(loop, _ResultDispatcher(loop))

    def _start(self) -> None:
        # The thread references the queue but not this object, so it ends when the object is garbage collected.
        weakref.finalize(self, self._jobs.put, None).atexit = False
        arguments = (self._jobs, self._handle, self._thread_ended)
        self._thread = threading.Thread(target=_run_thread, args=arguments, name=self._name, daemon=True)
        self._thread.start()


def _run_thread(
    jobs: SimpleQueue[Job | None], handle: Callable[[list[Job]], object], ended: SharedFuture[None]
) -> None:
    more = True
    while more:
        batch = []
        while (job := jobs.get()) is not None:
            batch.append(job)
            if jobs.empty():
                break
        else:
            more = False
        if batch:
            _handle_batch(handle, batch)
        del batch, job  # Otherwise their arguments would stay alive until the next call.
    ended.set_result(None)


def _handle_batch(handle: Callable[[list[Job]], object], batch: list[Job]) -> None:
    try:
        handle(batch.copy())
    except BaseException as error:  # noqa: BLE001 - passed on to the callers
        for job in batch:
            job.set_exception(error)
    for job in batch:
        if not job.done:
            job.set_exception(UnansweredJob("the handler returned without setting the outcome of this job"))
