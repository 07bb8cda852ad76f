"""One thread for a blocking library."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from holdfast.base.errors import Closed


class Job:
    """A request to the thread, answered once."""

    __slots__ = ("args", "future", "loop")

    def __init__(self, args: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
        self.args = args
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def set_result(self, value: Any) -> None:
        self._answer(self._resolve, value)

    def set_exception(self, error: BaseException) -> None:
        self._answer(self._reject, error)

    def _answer(self, how: Callable[[Any], None], value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever asked
            self.loop.call_soon_threadsafe(how, value)

    def _resolve(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _reject(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def one_by_one(jobs: list[Job]) -> None:
    for job in jobs:
        fn, *args = job.args
        try:
            job.set_result(fn(*args))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            job.set_exception(error)


class OneThread:
    def __init__(self, name: str, handle: Callable[[list[Job]], None] = one_by_one) -> None:
        self.name = name
        self.handle = handle
        self.closed = False
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    async def run(self, *args: Any) -> Any:
        job = Job(args, asyncio.get_running_loop())
        if self._thread is None or self.closed:
            self._start()
        self._queue.put(job)
        return await job.future

    def _start(self) -> None:
        with self._lock:
            if self.closed:
                raise Closed(f"{self.name} is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()

    def _work(self) -> None:
        ending = False
        while not ending:
            jobs = []
            job = self._queue.get()
            while True:
                if job is None:
                    ending = True
                else:
                    jobs.append(job)
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
            if jobs:
                self.handle(jobs)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join()
