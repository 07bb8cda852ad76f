"""A single thread for a library that blocks, or that wants to be used by one thread only."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as SharedFuture
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

from holdfast.base.errors import Closed, HoldfastError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Unanswered(HoldfastError):
    """A handler returned without answering a job that it was given."""

    code = "unanswered"


class _WayBack:
    """From the thread into one event loop. Answers that come close together share one wake-up."""

    __slots__ = ("_answers", "_awake", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._awake = False

    def post(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._answers.append((future, value, error))
        # Appended before looking, as the loop looks away before it empties: an answer may
        # be announced twice, but none is left lying.
        if not self._awake:
            self._awake = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                # The loop was closed; nobody waits there any more.
                self._answers.clear()
                self._awake = False

    def _deliver(self) -> None:
        self._awake = False
        while self._answers:
            future, value, error = self._answers.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


class Job:
    """One call that waits for the thread. The first answer counts; the caller may be gone by then."""

    __slots__ = ("_back", "_future", "answered", "args", "function")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], future: asyncio.Future[Any], back: _WayBack
    ) -> None:
        self.function, self.args = function, args
        self.answered = False
        self._future, self._back = future, back

    def call(self) -> Any:
        """Do the work in the calling thread, without answering."""
        return self.function(*self.args)

    def set_result(self, value: Any) -> None:
        self._answer(value, None)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, StopIteration):  # A future refuses to hold one.
            stopped, error = error, RuntimeError("the job raised StopIteration")
            error.__cause__ = stopped
        self._answer(None, error)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        if not self.answered:
            self.answered = True
            self._back.post(self._future, value, error)


def one_by_one(jobs: list[Job]) -> None:
    """Do the jobs in order and answer each as soon as it is done."""
    for job in jobs:
        try:
            value = job.call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            job.set_exception(error)
        else:
            job.set_result(value)


class OneThread:
    """Runs functions in one thread of its own, in the order of the calls, for any number of event loops.

    The thread starts with the first call. ``handle`` is given all the jobs that are waiting, at once, in
    order, and must answer every one of them; so a database thread may let many callers share a commit. If
    it raises, the jobs that it has not answered get what it raised.

    Forgetting to close one does not keep the interpreter from exiting, but then queued jobs may not be run.
    """

    def __init__(self, name: str, *, handle: Callable[[list[Job]], object] = one_by_one) -> None:
        self._name = name
        self._handle = handle
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ended: SharedFuture[None] = SharedFuture()
        self._ended.set_running_or_notify_cancel()  # A closer that is cancelled must not cancel it for all.
        self._ways_back: dict[asyncio.AbstractEventLoop, _WayBack] = {}

    @property
    def closed(self) -> bool:
        return self._closed

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``function`` in the thread and give what it returns or raises.

        Cancelling the caller does not stop the job: it is done in its turn and its result dropped. Context
        variables do not travel along.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise Closed(f"the thread {self._name!r} is closed")
            back = self._ways_back.get(loop) or self._way_back_to(loop)
            self._jobs.put(Job(function, args, future, back))
            if self._thread is None:
                self._start()
        return await future

    async def close(self) -> None:
        """Let the thread finish what is queued, and join it. Anyone may, any number of times."""
        self._ask_to_end()
        if self._thread is not None:
            await asyncio.wrap_future(self._ended)
            self._thread.join()

    def close_now(self) -> None:
        """The same for those who are not in an event loop; it blocks until the queued jobs are done."""
        self._ask_to_end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _ask_to_end(self) -> None:
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

    def _way_back_to(self, loop: asyncio.AbstractEventLoop) -> _WayBack:
        for gone in [known for known in self._ways_back if known.is_closed()]:
            del self._ways_back[gone]
        return self._ways_back.setdefault(loop, _WayBack(loop))

    def _start(self) -> None:
        # The thread knows the queue but not this object, so that it ends with a forgotten one.
        weakref.finalize(self, self._jobs.put, None).atexit = False
        arguments = (self._jobs, self._handle, self._ended)
        self._thread = threading.Thread(target=_serve, args=arguments, name=self._name, daemon=True)
        self._thread.start()


def _serve(jobs: SimpleQueue[Job | None], handle: Callable[[list[Job]], object], ended: SharedFuture[None]) -> None:
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
            _answer_all(handle, batch)
        del batch, job  # Or what they hold would live until the next call.
    ended.set_result(None)


def _answer_all(handle: Callable[[list[Job]], object], batch: list[Job]) -> None:
    try:
        handle(batch.copy())
    except BaseException as error:  # noqa: BLE001 - it is the callers'
        for job in batch:
            job.set_exception(error)
    for job in batch:
        if not job.answered:
            job.set_exception(Unanswered("the handler left this job without an answer"))
