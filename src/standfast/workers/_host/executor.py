"""Running code in a session, answering its questions, and stopping it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from standfast.workers._host.memory_watch import MemoryWatchMixin
from standfast.workers._host.output import MessageQueue
from standfast.workers._host.router import ActiveExecution, MessageRouter
from standfast.workers.core import UNSET, QueuedExecution
from standfast.workers.errors import Cause, ExecutionTimeout
from standfast.workers.results import ExecutionResult, InterruptResult, collect_result
from standfast.workers.state import SessionState, WorkerSessionEvent
from standfast.workers.wire import messages as m

# A member of an enum is looked up by Python code.
_EXECUTION_STARTED, _EXECUTION_ENDED = WorkerSessionEvent.EXECUTION_STARTED, WorkerSessionEvent.EXECUTION_ENDED
_RUNNING_STATES = (SessionState.BUSY, SessionState.WARMING)


class ExecutionHandle(msgspec.Struct, frozen=True):
    """Code that was sent and is being listened to."""

    router: MessageRouter
    execution: ActiveExecution
    queue: MessageQueue
    timeout: float | None


class ExecutionMixin(MemoryWatchMixin):
    async def execute(self, message: m.ExecuteMessage, timeout: float | None = UNSET) -> AsyncIterator[m.Message]:
        """Run code and stream what it does: Ack, then output, displays and questions, then Result or Error.

        Callers queue in order. The timeout covers waiting and running; when it passes, the code is stopped
        and ExecutionTimeout raised. Leaving the iteration early stops the code as well. A worker that dies
        ends the stream with an ErrorMessage whose ``state`` is ``lost``.
        """
        running = await self.open_execution(message, timeout)
        try:
            while (following := await running.queue.get()) is not None:
                yield following
        except TimeoutError:
            raise await self.finish_timed_out(running) from None
        finally:
            self.close_execution(running)

    async def open_execution(self, message: m.ExecuteMessage, timeout: float | None) -> "ExecutionHandle":
        """Wait for one's turn and send the code. Whoever opens must ``leave``."""
        limit = self.config.default_execute_timeout if timeout is UNSET else timeout
        talk = self._require_router()
        deadline = None if limit is None else talk.loop.time() + limit
        if self._execution_lock.locked() or self._waiting:
            if not await self._wait_for_lock(message, limit):
                return _make_cancelled_handle(talk, message)
            talk = self._require_router_or_unlock()
        else:
            # Free, and nobody is about to have it: this does not wait.
            await self._execution_lock.acquire()
        try:
            execution = talk.start_execution(message, self._on_execution_end)
        except BaseException:
            self._execution_lock.release()
            raise
        self._fire(_EXECUTION_STARTED)
        self._executions += 1
        self._last_used_at = time.time()
        if self._memory_timer is None:
            self._schedule_memory_check()
        if deadline is not None:
            talk.set_deadline(deadline, self._on_deadline)
        return ExecutionHandle(talk, execution, execution.queue, limit)

    def _on_deadline(self, router: MessageRouter, execution: ActiveExecution) -> None:
        """The time is up: stop the code now, however slowly its messages are read."""
        execution.queue.expire()
        self._create_task(self._stop_execution(router, execution, self.config.grace))

    async def finish_timed_out(self, handle: "ExecutionHandle") -> ExecutionTimeout:
        """The code that was out of time has been stopped: say what became of the variables."""
        handle.queue.discard()
        await handle.execution.wait_until_ended()
        return ExecutionTimeout(
            handle.execution.id, handle.timeout or 0.0, _build_interrupt_result(handle.execution).state
        )

    def close_execution(self, handle: "ExecutionHandle") -> None:
        """Nobody listens any more; code that still runs is stopped."""
        if handle.execution.last_message is None:
            self._increment_metric("executions_cancelled")
            handle.queue.discard()
            self._create_task(self._stop_execution(handle.router, handle.execution, self.config.grace))

    async def _wait_for_lock(self, message: m.ExecuteMessage, timeout: float | None) -> bool:
        """False when it was cancelled meanwhile, and its turn will not come."""
        self._waiting += 1
        queued = QueuedExecution(asyncio.timeout(timeout))
        self._queued_executions[message.id] = queued
        try:
            async with queued.timeout:
                await self._execution_lock.acquire()
        except TimeoutError:
            if queued.is_cancelled:
                return False
            raise ExecutionTimeout(message.id, timeout or 0.0, "preserved") from None
        finally:
            self._waiting -= 1
            if self._queued_executions.get(message.id) is queued:
                del self._queued_executions[message.id]
        if queued.is_cancelled:
            self._execution_lock.release()
        return not queued.is_cancelled

    def _require_router_or_unlock(self) -> MessageRouter:
        try:
            return self._require_router()
        except BaseException:
            self._execution_lock.release()
            raise

    def _on_execution_end(self, last_message: m.Message) -> None:
        self._execution_lock.release()
        if not isinstance(last_message, m.ResultMessage):
            self._errors += 1
        if self._machine.state in _RUNNING_STATES:
            self._fire(_EXECUTION_ENDED)
        self._last_used_at = time.time()

    async def run(
        self, code: str, *, timeout: float | None = UNSET, transaction: m.TransactionPolicy = "commit_always"
    ) -> ExecutionResult:
        """Run code to its end and collect everything. Errors of the code are in the result, not raised."""
        return await collect_result(self, m.ExecuteMessage(code=code, transaction_policy=transaction), timeout)

    async def input_response(self, input_id: str, data: str = "", *, eof: bool = False) -> bool:
        """Answer a question, or say that there are no answers. False when nobody is waiting for it (any more)."""
        talk = self._require_router()
        if not talk.protocol.close_input_request(input_id):
            return False
        self._send_input_response(talk, m.InputResponseMessage(input_id=input_id, data=data, eof=eof))
        return True

    def _send_input_response(self, router: MessageRouter, response: m.InputResponseMessage) -> None:
        router.require_connection().send(response)
        # A thread may have asked, and the main thread, which reads, be busy.
        router.require_connection().wake()

    def _close_input_requests(self, router: MessageRouter) -> bool:
        open_questions = list(router.protocol.input_requests)
        for input_id in open_questions:
            router.protocol.close_input_request(input_id)
            self._send_input_response(router, m.InputResponseMessage(input_id=input_id, eof=True))
        return bool(open_questions)

    # -- stopping code

    async def interrupt(self, *, force_restart: bool = False) -> InterruptResult:
        """Stop the running code now, keeping the worker and its variables if possible.

        Returns once the execution has ended and says whether the variables survived. Code that does not
        yield within the grace period costs the worker; with ``force_restart`` a new one is started then.
        """
        talk = self._require_router()
        if talk.execution is None:
            return InterruptResult(stopped=False, state="preserved", reason="nothing was running")
        self._increment_metric("cancel_event_triggers")
        stopped = await self._stop_execution(talk, talk.execution, self.config.grace)
        if stopped.state == "lost" and force_restart:
            await self.restart()
        return stopped

    async def cancel(self, execution_id: str, grace: float = 0.5) -> InterruptResult:
        """Stop this execution, as ``interrupt`` does. One that waits for its turn is not run at all.

        Its caller is told by an ErrorMessage that is marked as interrupted.
        """
        talk = self._require_router()
        execution = talk.execution
        queued = self._queued_executions.get(execution_id)
        if queued is not None:
            queued.cancel()
            self._increment_metric("cancel_event_triggers")
            self._increment_metric("executions_cancelled")
            return InterruptResult(stopped=True, state="preserved", reason="it had not begun")
        if execution is None or execution.id != execution_id:
            return InterruptResult(stopped=False, state="preserved", reason="this execution is not running")
        self._increment_metric("cancel_event_triggers")
        self._increment_metric("executions_cancelled")
        return await self._stop_execution(talk, execution, grace)

    async def _stop_execution(self, router: MessageRouter, execution: ActiveExecution, grace: float) -> InterruptResult:
        """The ladder: ask and ring, ring again at half time, kill."""
        execution.queue.remove_limit()
        for _ in range(2):
            if router.cause is None and execution.last_message is None:
                link = router.require_connection()
                link.send(m.CancelMessage(execution_id=execution.id, grace_timeout_ms=int(grace * 1000)))
                link.wake()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace / 2):
                    await execution.wait_until_ended()
                break
        else:
            if router.connection is not None:
                router.connection.kill(Cause("killed", f"the code did not stop within {grace} s"))
            await execution.wait_until_ended()
        return _build_interrupt_result(execution)


def _make_cancelled_handle(router: MessageRouter, message: m.ExecuteMessage) -> ExecutionHandle:
    """What is left of code that was cancelled before it began: its last message."""
    last = m.ErrorMessage(
        exception_type="KeyboardInterrupt",
        exception_message="cancelled before it began",
        execution_id=message.id,
        interrupted=True,
    )
    outlet = MessageQueue(limit=0, on_drained=lambda: None, loop=router.loop)
    outlet.put(last, last=True)
    execution = ActiveExecution(message.id, outlet, None, lambda _: None)
    execution.finish(last)
    return ExecutionHandle(router, execution, outlet, None)


def _build_interrupt_result(execution: ActiveExecution) -> InterruptResult:
    last = execution.last_message
    if isinstance(last, m.ErrorMessage) and last.state == "lost":
        return InterruptResult(stopped=True, state="lost", reason=last.exception_message)
    return InterruptResult(stopped=True, state="preserved")
