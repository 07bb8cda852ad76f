"""Running code in a session, answering its questions, and stopping it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from holdfast.workers.collect import collect
from holdfast.workers.core import UNSET, Queued
from holdfast.workers.errors import Cause, ExecutionTimeout
from holdfast.workers.outlet import Outlet
from holdfast.workers.result import ExecutionResult, Interrupted
from holdfast.workers.states import Event, SessionState
from holdfast.workers.talking import Conversation, Execution
from holdfast.workers.watching import Watching
from holdfast.workers.wire import messages as m

# A member of an enum is looked up by Python code.
_BEGAN, _ENDED = Event.BEGAN, Event.ENDED
_RUNNING = (SessionState.BUSY, SessionState.WARMING)


class Running(msgspec.Struct, frozen=True):
    """Code that was sent and is being listened to."""

    talk: Conversation
    execution: Execution
    outlet: Outlet
    limit: float | None


class Executing(Watching):
    async def execute(self, message: m.ExecuteMessage, timeout: float | None = UNSET) -> AsyncIterator[m.Message]:
        """Run code and stream what it does: Ack, then output, displays and questions, then Result or Error.

        Callers queue in order. The timeout covers waiting and running; when it passes, the code is stopped
        and ExecutionTimeout raised. Leaving the iteration early stops the code as well. A worker that dies
        ends the stream with an ErrorMessage whose ``state`` is ``lost``.
        """
        running = await self.open(message, timeout)
        try:
            while (following := await running.outlet.get()) is not None:
                yield following
        except TimeoutError:
            raise await self.overrun(running) from None
        finally:
            self.leave(running)

    async def open(self, message: m.ExecuteMessage, timeout: float | None) -> "Running":
        """Wait for one's turn and send the code. Whoever opens must ``leave``."""
        limit = self.config.default_execute_timeout if timeout is UNSET else timeout
        talk = self._usable()
        deadline = None if limit is None else talk.loop.time() + limit
        if self._turn.locked() or self._waiting:
            if not await self._wait_for_turn(message, limit):
                return _withdrawn(talk, message)
            talk = self._with_the_turn()
        else:
            # Free, and nobody is about to have it: this does not wait.
            await self._turn.acquire()
        try:
            execution = talk.begin(message, self._ended)
        except BaseException:
            self._turn.release()
            raise
        self._apply(_BEGAN)
        self._executions += 1
        self._last_used_at = time.time()
        if self._watch is None:
            self._watch_memory()
        if deadline is not None:
            talk.expire_at(deadline, self._expire)
        return Running(talk, execution, execution.outlet, limit)

    def _expire(self, talk: Conversation, execution: Execution) -> None:
        """The time is up: stop the code now, however slowly its messages are read."""
        execution.outlet.expire()
        self._spawn(self._stop(talk, execution, self.config.grace))

    async def overrun(self, running: "Running") -> ExecutionTimeout:
        """The code that was out of time has been stopped: say what became of the variables."""
        running.outlet.discard()
        await running.execution.end()
        return ExecutionTimeout(running.execution.id, running.limit or 0.0, _outcome(running.execution).state)

    def leave(self, running: "Running") -> None:
        """Nobody listens any more; code that still runs is stopped."""
        if running.execution.last is None:
            self._count("executions_cancelled")
            running.outlet.discard()
            self._spawn(self._stop(running.talk, running.execution, self.config.grace))

    async def _wait_for_turn(self, message: m.ExecuteMessage, limit: float | None) -> bool:
        """False when it was cancelled meanwhile, and its turn will not come."""
        self._waiting += 1
        queued = Queued(asyncio.timeout(limit))
        self._queued[message.id] = queued
        try:
            async with queued.patience:
                await self._turn.acquire()
        except TimeoutError:
            if queued.withdrawn:
                return False
            raise ExecutionTimeout(message.id, limit or 0.0, "preserved") from None
        finally:
            self._waiting -= 1
            if self._queued.get(message.id) is queued:
                del self._queued[message.id]
        if queued.withdrawn:
            self._turn.release()
        return not queued.withdrawn

    def _with_the_turn(self) -> Conversation:
        try:
            return self._usable()
        except BaseException:
            self._turn.release()
            raise

    def _ended(self, last: m.Message) -> None:
        self._turn.release()
        if not isinstance(last, m.ResultMessage):
            self._errors += 1
        if self._machine.state in _RUNNING:
            self._apply(_ENDED)
        self._last_used_at = time.time()

    async def run(
        self, code: str, *, timeout: float | None = UNSET, transaction: m.TransactionPolicy = "commit_always"
    ) -> ExecutionResult:
        """Run code to its end and collect everything. Errors of the code are in the result, not raised."""
        return await collect(self, m.ExecuteMessage(code=code, transaction_policy=transaction), timeout)

    async def input_response(self, input_id: str, data: str = "", *, eof: bool = False) -> bool:
        """Answer a question, or say that there are no answers. False when nobody is waiting for it (any more)."""
        talk = self._usable()
        if not talk.exchange.answer(input_id):
            return False
        self._answer(talk, m.InputResponseMessage(input_id=input_id, data=data, eof=eof))
        return True

    def _answer(self, talk: Conversation, answer: m.InputResponseMessage) -> None:
        talk.live().send(answer)
        # A thread may have asked, and the main thread, which reads, be busy.
        talk.live().ring()

    def _close_questions(self, talk: Conversation) -> bool:
        open_questions = list(talk.exchange.questions)
        for input_id in open_questions:
            talk.exchange.answer(input_id)
            self._answer(talk, m.InputResponseMessage(input_id=input_id, eof=True))
        return bool(open_questions)

    # -- stopping code

    async def interrupt(self, *, force_restart: bool = False) -> Interrupted:
        """Stop the running code now, keeping the worker and its variables if possible.

        Returns once the execution has ended and says whether the variables survived. Code that does not
        yield within the grace period costs the worker; with ``force_restart`` a new one is started then.
        """
        talk = self._usable()
        if talk.execution is None:
            return Interrupted(stopped=False, state="preserved", reason="nothing was running")
        self._count("cancel_event_triggers")
        stopped = await self._stop(talk, talk.execution, self.config.grace)
        if stopped.state == "lost" and force_restart:
            await self.restart()
        return stopped

    async def cancel(self, execution_id: str, grace: float = 0.5) -> Interrupted:
        """Stop this execution, as ``interrupt`` does. One that waits for its turn is not run at all.

        Its caller is told by an ErrorMessage that is marked as interrupted.
        """
        talk = self._usable()
        execution = talk.execution
        queued = self._queued.get(execution_id)
        if queued is not None:
            queued.withdraw()
            self._count("cancel_event_triggers")
            self._count("executions_cancelled")
            return Interrupted(stopped=True, state="preserved", reason="it had not begun")
        if execution is None or execution.id != execution_id:
            return Interrupted(stopped=False, state="preserved", reason="this execution is not running")
        self._count("cancel_event_triggers")
        self._count("executions_cancelled")
        return await self._stop(talk, execution, grace)

    async def _stop(self, talk: Conversation, execution: Execution, grace: float) -> Interrupted:
        """The ladder: ask and ring, ring again at half time, kill."""
        execution.outlet.unbound()
        for _ in range(2):
            if talk.cause is None and execution.last is None:
                link = talk.live()
                link.send(m.CancelMessage(execution_id=execution.id, grace_timeout_ms=int(grace * 1000)))
                link.ring()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace / 2):
                    await execution.end()
                break
        else:
            if talk.link is not None:
                talk.link.kill(Cause("killed", f"the code did not stop within {grace} s"))
            await execution.end()
        return _outcome(execution)


def _withdrawn(talk: Conversation, message: m.ExecuteMessage) -> Running:
    """What is left of code that was cancelled before it began: its last message."""
    last = m.ErrorMessage(
        exception_type="KeyboardInterrupt",
        exception_message="cancelled before it began",
        execution_id=message.id,
        interrupted=True,
    )
    outlet = Outlet(limit=0, emptied=lambda: None, loop=talk.loop)
    outlet.put(last, last=True)
    execution = Execution(message.id, outlet, None, lambda _: None)
    execution.finish(last)
    return Running(talk, execution, outlet, None)


def _outcome(execution: Execution) -> Interrupted:
    last = execution.last
    if isinstance(last, m.ErrorMessage) and last.state == "lost":
        return Interrupted(stopped=True, state="lost", reason=last.exception_message)
    return Interrupted(stopped=True, state="preserved")
