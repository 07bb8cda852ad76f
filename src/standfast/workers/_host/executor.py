"""Run code in the worker of a session: one execution at a time, streamed, with deadlines, and stoppable."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from standfast.workers._host.output import MessageQueue
from standfast.workers._host.router import ActiveExecution, MessageRouter
from standfast.workers._host.worker import Worker
from standfast.workers.config import SessionConfig
from standfast.workers.errors import Cause, ExecutionTimeout
from standfast.workers.results import ExecutionResult, InterruptResult, ResultCollector
from standfast.workers.state import SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m

UNSET: Any = object()
"""Stands for ``SessionConfig.default_execute_timeout``, since a timeout of None means no limit."""

# Looking up a member of an enum runs Python code, which every execution would pay for.
_EXECUTION_STARTED, _EXECUTION_ENDED = WorkerSessionEvent.EXECUTION_STARTED, WorkerSessionEvent.EXECUTION_ENDED
_RUNNING_STATES = (SessionState.BUSY, SessionState.WARMING)
_FINAL_TYPES = (m.ResultMessage, m.ErrorMessage)
# How running code is stopped: the signal for the processes it has started, and the share of the grace period to wait.
_STOP_STEPS = ((None, 0.5), (signal.SIGTERM, 0.25), (signal.SIGKILL, 0.25))
_FIRST_WAKE_INTERVAL = 0.01


class QueuedExecution:
    """An execution that waits for the ones before it."""

    is_cancelled = False

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout

    def cancel(self) -> None:
        self.is_cancelled = True
        if not self.timeout.expired():
            self.timeout.reschedule(0.0)


class ExecutionHandle(msgspec.Struct, frozen=True):
    """An execution that was sent to the worker and the queue of its messages."""

    router: MessageRouter
    execution: ActiveExecution
    queue: MessageQueue
    timeout: float | None


class Executor:
    """Sends executions to the worker in the order of their callers, and counts them."""

    def __init__(self, config: SessionConfig, worker: Worker) -> None:
        self.metrics = {"cancel_event_triggers": 0, "executions_cancelled": 0}
        self.execution_count = self.error_count = 0
        self.waiting_count = 0
        self.last_used_at = worker.created_at
        self._config, self._worker = config, worker
        self._lock = asyncio.Lock()
        self._queued: dict[str, QueuedExecution] = {}
        self._is_stopping = False
        self._cleanup: asyncio.Task[None] | None = None

    async def execute(self, message: m.ExecuteMessage, timeout: float | None) -> AsyncIterator[m.Message]:
        handle = await self._open(message, timeout)
        try:
            while (item := await handle.queue.get()) is not None:
                yield item
        except TimeoutError:
            raise await self._finish_timed_out(handle) from None
        finally:
            self._close(handle)

    async def collect(
        self,
        message: m.ExecuteMessage,
        timeout: float | None,
        on_message: Callable[[m.Message], None] | None = None,
    ) -> ExecutionResult:
        """Run code to its end. A timeout becomes a result too, with the output up to then."""
        collector = ResultCollector(message.id, display_limit=self._config.display_limit)
        handle = await self._open(message, timeout)
        queue = handle.queue
        try:
            while (item := queue.get_nowait() or await queue.get()) is not None:
                if on_message is not None:
                    on_message(item)
                # The types that every execution has come first: isinstance() of a struct is slow when it is False.
                if isinstance(item, m.AckMessage):
                    continue
                if isinstance(item, _FINAL_TYPES):
                    return collector.build(item)
                collector.add(item, queue.last_size)
        except TimeoutError:
            return collector.build_timed_out(await self._finish_timed_out(handle))
        finally:
            self._close(handle)
        raise AssertionError("a stream ends with a ResultMessage or an ErrorMessage")

    async def request_when_idle(
        self, message: m.Message, *, fds: tuple[int, ...] = (), router: MessageRouter | None = None
    ) -> m.Message:
        """Send a request that must not run beside user code: it waits in the queue of the executions."""
        async with self.hold_idle() as current:
            return await (router or current).request(message, fds=fds)

    @contextlib.asynccontextmanager
    async def hold_idle(self) -> AsyncIterator[MessageRouter]:
        """Wait until no code runs, and let none run until the block ends."""
        self._worker.require_router()
        self.waiting_count += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting_count -= 1
        try:
            yield self._worker.require_router()
        finally:
            self._lock.release()

    # -- one execution

    async def _open(self, message: m.ExecuteMessage, timeout: float | None) -> ExecutionHandle:
        """Wait for the executions before this one and send the code. The caller must ``_close`` the handle."""
        limit = self._config.default_execute_timeout if timeout is UNSET else timeout
        worker = self._worker
        router = worker.require_router()
        deadline = None if limit is None else router.loop.time() + limit
        if self._lock.locked() or self.waiting_count:
            if not await self._wait_for_lock(message, limit):
                return _make_cancelled_handle(router, message)
            router = self._require_router_or_unlock()
        else:
            # The lock is free and has no waiters, so this does not suspend.
            await self._lock.acquire()
        try:
            execution = router.start_execution(message, self._on_execution_end)
        except BaseException:
            self._lock.release()
            raise
        worker.fire(_EXECUTION_STARTED)
        self.execution_count += 1
        self.last_used_at = time.time()
        if worker.resource_watch is not None:
            worker.resource_watch.start()
        if deadline is not None:
            router.set_deadline(deadline, self._on_deadline)
        return ExecutionHandle(router, execution, execution.queue, limit)

    async def _wait_for_lock(self, message: m.ExecuteMessage, timeout: float | None) -> bool:
        """Wait for the lock. Returns False, without the lock, when the execution was cancelled meanwhile."""
        self.waiting_count += 1
        queued = QueuedExecution(asyncio.timeout(timeout))
        self._queued[message.id] = queued
        try:
            async with queued.timeout:
                await self._lock.acquire()
        except TimeoutError:
            if queued.is_cancelled:
                return False
            raise ExecutionTimeout(message.id, timeout or 0.0, "preserved") from None
        finally:
            self.waiting_count -= 1
            if self._queued.get(message.id) is queued:
                del self._queued[message.id]
        if queued.is_cancelled:
            self._lock.release()
        return not queued.is_cancelled

    def _require_router_or_unlock(self) -> MessageRouter:
        try:
            return self._worker.require_router()
        except BaseException:
            self._lock.release()
            raise

    def _on_execution_end(self, last_message: m.Message) -> None:
        if self._is_stopping:
            self._is_stopping = False
            self._cleanup = self._worker.create_task(self._end_processes())
            # A callback, since a task that is cancelled before it starts runs no code of its own.
            self._cleanup.add_done_callback(lambda _: self._lock.release())
        else:
            self._lock.release()
        if not isinstance(last_message, m.ResultMessage):
            self.error_count += 1
        if self._worker.state in _RUNNING_STATES:
            self._worker.fire(_EXECUTION_ENDED)
        self.last_used_at = time.time()

    async def _end_processes(self) -> None:
        """End what the stopped code has started, before the next execution may start anything."""
        router = self._worker.router
        if router is not None and router.connection is not None and router.cause is None:
            await router.connection.end_processes(
                snapshots=len(self._worker.snapshot_points), captures=tuple(self._worker.captures)
            )

    async def _wait_for_cleanup(self) -> None:
        if self._cleanup is not None:
            await asyncio.wait([self._cleanup])

    def _on_deadline(self, router: MessageRouter, execution: ActiveExecution) -> None:
        """Stop the code at its deadline, even if its messages are not being read."""
        execution.queue.expire()
        self._worker.create_task(self._stop(router, execution, self._config.grace))

    async def _finish_timed_out(self, handle: ExecutionHandle) -> ExecutionTimeout:
        handle.queue.discard()
        await handle.execution.wait_until_ended()
        await self._wait_for_cleanup()
        state = _build_interrupt_result(handle.execution).state
        return ExecutionTimeout(handle.execution.id, handle.timeout or 0.0, state)

    def _close(self, handle: ExecutionHandle) -> None:
        """Stop code that still runs, since its messages are no longer read."""
        if handle.execution.last_message is None:
            self._count("executions_cancelled")
            handle.queue.discard()
            self._worker.create_task(self._stop(handle.router, handle.execution, self._config.grace))

    # -- input

    def respond_to_input(self, response: m.InputResponseMessage) -> bool:
        router = self._worker.require_router()
        if not router.protocol.close_input_request(response.input_id):
            return False
        self._send_input_response(router, response)
        return True

    def _close_input_requests(self, router: MessageRouter) -> bool:
        input_ids = list(router.protocol.input_requests)
        for input_id in input_ids:
            router.protocol.close_input_request(input_id)
            self._send_input_response(router, m.InputResponseMessage(input_id=input_id, eof=True))
        return bool(input_ids)

    def _send_input_response(self, router: MessageRouter, response: m.InputResponseMessage) -> None:
        router.require_connection().send(response)
        # The request may come from a thread while the main thread, which reads the socket, is busy.
        router.require_connection().wake()

    # -- stopping code

    async def interrupt(self) -> InterruptResult:
        router = self._worker.require_router()
        if router.execution is None:
            return InterruptResult(stopped=False, state="preserved", reason="no execution is running")
        self._count("cancel_event_triggers")
        return await self._stop(router, router.execution, self._config.grace)

    async def cancel(self, execution_id: str, grace: float) -> InterruptResult:
        router = self._worker.require_router()
        execution = router.execution
        queued = self._queued.get(execution_id)
        if queued is not None:
            queued.cancel()
            self._count("cancel_event_triggers", "executions_cancelled")
            return InterruptResult(stopped=True, state="preserved", reason="the execution had not started")
        if execution is None or execution.id != execution_id:
            return InterruptResult(stopped=False, state="preserved", reason="the execution is not running")
        self._count("cancel_event_triggers", "executions_cancelled")
        return await self._stop(router, execution, grace)

    async def stop_for_shutdown(self, router: MessageRouter) -> None:
        """End the running code. ``input()`` gets EOFError first, so that code that only waits can end by itself."""
        if self._close_input_requests(router) and router.execution is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.grace):
                    await router.execution.wait_until_ended()
        if router.execution is not None:
            self._count("cancel_event_triggers")
            await self._stop(router, router.execution, self._config.grace)

    async def _stop(self, router: MessageRouter, execution: ActiveExecution, grace: float) -> InterruptResult:
        """Interrupt the code, then end the processes that it may be waiting for, then kill the worker.

        Code that waits in C, as in ``os.system``, notices the interrupt only when that process has ended.
        """
        execution.queue.remove_limit()
        self._is_stopping = self._is_stopping or execution.last_message is None
        for end_processes_by, share in _STOP_STEPS:
            if router.cause is None and execution.last_message is None:
                connection = router.require_connection()
                connection.send(m.CancelMessage(execution_id=execution.id, grace_timeout_ms=int(grace * 1000)))
                connection.wake()
                if end_processes_by is not None:
                    # After the interrupt: code that still runs when its process ends must find itself interrupted.
                    connection.process_group.signal_processes(connection.token, end_processes_by)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace * share):
                    await _wake_until_ended(router, execution)
                break
        else:
            if router.connection is not None:
                router.connection.kill(Cause("killed", f"the code did not stop within {grace} s"))
            await execution.wait_until_ended()
        await self._wait_for_cleanup()
        return _build_interrupt_result(execution)

    def _count(self, *names: str) -> None:
        if self._config.enable_metrics:
            for name in names:
                self.metrics[name] += 1


async def _wake_until_ended(router: MessageRouter, execution: ActiveExecution) -> None:
    """Wait for the end of the code and wake the worker again and again.

    Python notices a signal that comes just before a system call only when the call returns.
    """
    interval = _FIRST_WAKE_INTERVAL
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await execution.wait_until_ended()
                return
        if router.cause is None:
            router.require_connection().wake()
        interval *= 2


def _make_cancelled_handle(router: MessageRouter, message: m.ExecuteMessage) -> ExecutionHandle:
    """Make the handle of an execution that was cancelled in the queue: it has a last message only."""
    last = m.ErrorMessage(
        exception_type="KeyboardInterrupt",
        exception_message="the execution was cancelled before it started",
        execution_id=message.id,
        interrupted=True,
    )
    queue = MessageQueue(limit=0, on_drained=lambda: None, loop=router.loop)
    queue.put(last, last=True)
    execution = ActiveExecution(message.id, queue, None, lambda _: None)
    execution.finish(last)
    return ExecutionHandle(router, execution, queue, None)


def _build_interrupt_result(execution: ActiveExecution) -> InterruptResult:
    last = execution.last_message
    if isinstance(last, m.ErrorMessage) and last.state == "lost":
        return InterruptResult(stopped=True, state="lost", reason=last.exception_message)
    return InterruptResult(stopped=True, state="preserved")
