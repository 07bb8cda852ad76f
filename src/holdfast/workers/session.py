"""A worker session: one persistent Python, from start to termination.

Every method may be called from any task at any time. What cannot be done any more raises ``Closed`` or
``WorkerDied`` at once; nothing waits for a worker that is gone.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Self, cast

from holdfast.base.errors import Closed
from holdfast.lifecycle.machine import IllegalTransition, Machine
from holdfast.workers.birth import Home, bear
from holdfast.workers.config import SessionConfig
from holdfast.workers.conversation import Conversation, Execution
from holdfast.workers.errors import Cause, ExecutionTimeout, StartFailed, WorkerDied
from holdfast.workers.files import Files
from holdfast.workers.interceptors import Interceptor, Interceptors
from holdfast.workers.link import Endpoints, Link
from holdfast.workers.result import (
    Checkpoint,
    ExecutionResult,
    Interrupted,
    Restored,
    SessionInfo,
    SnapshotPoint,
    WorkerUsage,
)
from holdfast.workers.states import TABLE, Event, SessionState
from holdfast.workers.usage import usage_of
from holdfast.workers.wire import messages as m

_UNSET: Any = object()
_KILL_WAIT = 5.0


class WorkerSession:
    def __init__(self, config: SessionConfig | None = None, *, session_id: str | None = None) -> None:
        self.config = config or SessionConfig()
        self.session_id = session_id or m.new_id()
        self._machine = Machine(TABLE)
        self.metadata: dict[str, Any] = {}
        self.metrics = {"cancel_event_triggers": 0, "executions_cancelled": 0}
        self.interceptors = Interceptors(
            budget=self.config.interceptor_budget, strikes=self.config.interceptor_strikes
        )
        self.files = Files(self._directory)
        self._created_at = self._last_used_at = time.time()
        self._executions = self._errors = 0
        self._heartbeat: m.HeartbeatMessage | None = None
        self._turn = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._greeted: asyncio.Future[None] | None = None
        self._home: Home | None = None
        self._talk: Conversation | None = None
        self._cause: Cause | None = None
        self._waiting = 0
        self._beat: asyncio.TimerHandle | None = None

    # -- lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Start the worker and run the warm-up code. Returns when the session is ready, or raises."""
        async with self._changing:
            await self._start()

    async def _start(self) -> None:
        if self.state is not SessionState.CREATING:
            raise Closed(f"a session that is {self.state.value} cannot be started")
        self._apply(Event.STARTED)
        try:
            async with asyncio.timeout(self.config.ready_timeout):
                await self._be_born()
            await self._warm_up()
        except BaseException as problem:
            self._apply(Event.FAILED)
            await self._tear_down(Cause("start", "the start failed"))
            if isinstance(problem, TimeoutError) and not isinstance(problem, ExecutionTimeout):
                raise StartFailed(f"not ready within {self.config.ready_timeout} s") from problem
            if isinstance(problem, WorkerDied):
                raise StartFailed(str(problem)) from problem
            raise
        if self.state is not SessionState.WARMING:
            await self._tear_down(Cause("shutdown", "stopped while starting"))
            raise Closed("the session was stopped while it started")
        self._apply(Event.SAID_READY)
        self._schedule_beat()

    async def _be_born(self) -> None:
        talk = self._converse()
        self._home, talk.link = await bear(self.config, self.session_id, talk)
        assert self._greeted is not None
        await self._greeted
        self._record_home(self._home)

    def _converse(self) -> Conversation:
        self._cause = None
        self._greeted = asyncio.get_running_loop().create_future()
        self._talk = Conversation(
            self.config, interceptors=self.interceptors, noted=self._noted, over=self._over
        )
        return self._talk

    def _record_home(self, home: Home) -> None:
        self.metadata |= {
            "mode": self.config.mode,
            "sandbox": home.locked.level,
            "sandbox_notes": (*home.server.notes, *self.metadata.pop("notes", ())),
            "preloaded": dict(home.server.preloaded),
            "preload_failed": dict(home.server.failed),
        }

    async def _warm_up(self) -> None:
        if self.config.warmup_code is None:
            return
        result = await self.run(self.config.warmup_code)
        if result.error is not None:
            raise StartFailed(f"the warm-up code failed: {result.error.traceback or result.error}")

    async def shutdown(self, reason: str = "") -> None:
        """Stop in good order: no more questions, running code interrupted, then a goodbye; all of it bounded."""
        if self.state is SessionState.TERMINATED:
            return
        if self._closing is None:
            self._apply(Event.ASKED_TO_STOP)
            self._closing = asyncio.create_task(self._shut_down(reason), name="worker-shutdown")
        await asyncio.shield(self._closing)

    async def _shut_down(self, reason: str) -> None:
        talk = self._talk
        if talk is not None and talk.link is not None and talk.cause is None:
            with contextlib.suppress(TimeoutError, WorkerDied):
                async with asyncio.timeout(self.config.shutdown_timeout):
                    if self._close_questions(talk) and talk.execution is not None:
                        # Code that was only waiting for an answer may end by itself.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(self.config.grace):
                                await asyncio.shield(talk.execution.ended)
                    if talk.execution is not None:
                        self._count("cancel_event_triggers")
                        await self._stop(talk, talk.execution, self.config.grace)
                    talk.link.send(m.ShutdownMessage(reason=reason))
                    await asyncio.shield(talk.link.gone)
        await self._finish()

    async def terminate(self) -> None:
        """Kill the worker, now. Returns when it is gone and everything of it is released."""
        if self.state is SessionState.TERMINATED:
            return
        if self._talk is not None and self._talk.link is not None:
            self._talk.link.kill(Cause("shutdown", "the session was terminated"))
        if self._closing is None:
            self._apply(Event.ASKED_TO_STOP)
            self._closing = asyncio.create_task(self._finish(), name="worker-terminate")
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        await self._tear_down(Cause("shutdown", "the session was closed"))
        self._apply(Event.CLOSED)

    async def restart(self) -> None:
        """A new worker with an empty namespace, same session. Not after termination."""
        async with self._changing:
            self._apply(Event.RESTARTED)
            await self._tear_down(Cause("shutdown", "the session was restarted"))
            await self._start()

    @property
    def is_alive(self) -> bool:
        """Whether code could be run now or after what runs now."""
        usable = self.state in (SessionState.READY, SessionState.BUSY, SessionState.IDLE)
        return usable and self._talk is not None and self._talk.cause is None

    async def _tear_down(self, reason: Cause) -> None:
        if self._beat is not None:
            self._beat.cancel()
        talk, home, self._home = self._talk, self._home, None
        if talk is not None and talk.link is not None:
            talk.link.kill(reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_WAIT):
                    await asyncio.shield(talk.link.gone)
            if talk.cause is None:
                talk.ended(reason)
        if home is not None and talk is not None and talk.link is not None:
            await home.leave(talk.link)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def state(self) -> SessionState:
        return self._machine.state

    def _apply(self, event: Event) -> None:
        try:
            self._machine.fire(event)
        except IllegalTransition as problem:
            raise Closed(f"a session that is {self.state.value} cannot have {event.value}") from problem

    # -- what the worker says about itself

    def _noted(self, message: m.Message) -> None:
        greeted = self._greeted
        match message:
            case m.HelloMessage():
                self.metadata |= {
                    "protocol": message.versions[0] if message.versions else None,
                    "features": message.features,
                    "python": message.settings.get("python"),
                    "notes": tuple(message.settings.get("notes", ())),
                }
            case m.ReadyMessage():
                if greeted is not None and not greeted.done():
                    greeted.set_result(None)
            case m.HeartbeatMessage():
                self._heartbeat = message

    def _over(self, cause: Cause) -> None:
        self._cause = cause
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(WorkerDied(cause))
            self._greeted.exception()
        if self.state not in (SessionState.CREATING, SessionState.TERMINATED):
            self._apply(Event.EXITED)

    def _schedule_beat(self) -> None:
        interval = self.config.heartbeat_interval
        if interval is None:
            return
        if self._talk is not None and self._talk.cause is None and self._talk.link is not None:
            loop = asyncio.get_running_loop()
            self._beat = loop.call_later(interval, self._ask_for_beat)

    def _ask_for_beat(self) -> None:
        talk = self._talk
        if talk is not None and talk.link is not None and talk.cause is None:
            talk.link.send(m.HeartbeatMessage())
            if talk.execution is not None:
                talk.link.ring()
            self._schedule_beat()

    @property
    def info(self) -> SessionInfo:
        """The session as it is now; a copy."""
        talk, beat = self._talk, self._heartbeat
        telemetry: dict[str, Any] = {"waiting": self._waiting}
        if talk is not None:
            outlet = talk.execution.outlet if talk.execution is not None else None
            telemetry |= {
                "control_messages": talk.counts["control"],
                "bulk_messages": talk.counts["bulk"],
                "output_bytes": talk.counts["bytes"],
                "queued_bytes": outlet.held if outlet is not None else 0,
                "general_queue": len(talk.general),
                "general_dropped": talk.general_dropped,
                "violations": talk.exchange.violations,
                "open_questions": len(talk.exchange.questions),
                "interceptors": [vars(record).copy() for record in self.interceptors.records.values()],
            }
        return SessionInfo(
            session_id=self.session_id,
            state=self.state,
            created_at=self._created_at,
            last_used_at=self._last_used_at,
            execution_count=self._executions,
            error_count=self._errors,
            memory_usage=beat.memory_usage if beat else 0,
            cpu_percent=beat.cpu_percent if beat else 0.0,
            namespace_size=beat.namespace_size if beat else 0,
            last_heartbeat_at=beat.timestamp if beat else None,
            cause=self._cause,
            metadata=dict(self.metadata),
            metrics=dict(self.metrics) if self.config.enable_metrics else {},
            telemetry=telemetry,
        )

    def _count(self, name: str) -> None:
        if self.config.enable_metrics:
            self.metrics[name] += 1

    # -- executing

    async def execute(
        self, message: m.ExecuteMessage, timeout: float | None = _UNSET
    ) -> AsyncIterator[m.Message]:
        """Run code and stream what it does: Ack, then output, displays and questions, then Result or Error.

        Callers queue in order. The timeout covers waiting and running; when it passes, the code is stopped
        and ExecutionTimeout raised. Leaving the iteration early stops the code as well. A worker that dies
        ends the stream with an ErrorMessage whose ``state`` is ``lost``.
        """
        limit = self.config.default_execute_timeout if timeout is _UNSET else timeout
        loop = asyncio.get_running_loop()
        deadline = None if limit is None else loop.time() + limit
        talk = await self._take_turn(message, limit)
        execution = self._begin(talk, message)
        outlet = execution.outlet
        timer = None if deadline is None else loop.call_at(deadline, outlet.expire)
        try:
            while (following := await outlet.get()) is not None:
                yield following
        except TimeoutError:
            outlet.discard()
            stopped = await self._stop(talk, execution, self.config.grace)
            raise ExecutionTimeout(execution.id, limit or 0.0, stopped.state) from None
        finally:
            if timer is not None:
                timer.cancel()
            if not execution.ended.done():
                self._count("executions_cancelled")
                outlet.discard()
                self._spawn(self._stop(talk, execution, self.config.grace))

    async def _take_turn(self, message: m.ExecuteMessage, limit: float | None) -> Conversation:
        talk = self._usable()
        if not self._turn.locked():
            await self._turn.acquire()
            return talk
        self._waiting += 1
        try:
            async with asyncio.timeout(limit):
                await self._turn.acquire()
        except TimeoutError:
            raise ExecutionTimeout(message.id, limit or 0.0, "preserved") from None
        finally:
            self._waiting -= 1
        try:
            return self._usable()
        except BaseException:
            self._turn.release()
            raise

    def _usable(self) -> Conversation:
        warming = self.state is SessionState.WARMING and self._changing.locked()
        if self.state in (SessionState.READY, SessionState.BUSY, SessionState.IDLE) or warming:
            assert self._talk is not None
            return self._talk
        if self.state is SessionState.ERROR and self._cause is not None:
            raise WorkerDied(self._cause)
        raise Closed(f"a session that is {self.state.value} runs no code")

    def _begin(self, talk: Conversation, message: m.ExecuteMessage) -> Execution:
        try:
            execution = talk.begin(message)
        except BaseException:
            self._turn.release()
            raise
        self._apply(Event.BEGAN)
        self._executions += 1
        self._last_used_at = time.time()
        execution.over = self._ended
        return execution

    def _ended(self, last: m.Message) -> None:
        self._turn.release()
        if isinstance(last, m.ErrorMessage):
            self._errors += 1
        if self.state in (SessionState.BUSY, SessionState.WARMING):
            self._apply(Event.ENDED)
        self._last_used_at = time.time()

    async def run(
        self, code: str, *, timeout: float | None = _UNSET, transaction: m.TransactionPolicy = "commit_always"
    ) -> ExecutionResult:
        """Run code to its end and collect everything. Errors of the code are in the result, not raised."""
        from holdfast.workers.collect import collect

        return await collect(self, m.ExecuteMessage(code=code, transaction_policy=transaction), timeout)

    async def input_response(self, input_id: str, data: str) -> bool:
        """Answer a question. False when nobody is waiting for it (any more)."""
        talk = self._usable()
        if not talk.exchange.answer(input_id):
            return False
        assert talk.link is not None
        talk.link.send(m.InputResponseMessage(input_id=input_id, data=data))
        return True

    def _close_questions(self, talk: Conversation) -> bool:
        assert talk.link is not None
        open_questions = list(talk.exchange.questions)
        for input_id in open_questions:
            talk.exchange.answer(input_id)
            talk.link.send(m.InputResponseMessage(input_id=input_id, eof=True))
        return bool(open_questions)

    def rest(self) -> None:
        """Mark a ready session as idle: a pool keeps it in stock."""
        if self.state in (SessionState.READY, SessionState.IDLE):
            self._apply(Event.RESTED)

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
        """Stop this execution if it is running, as ``interrupt`` does."""
        talk = self._usable()
        execution = talk.execution
        if execution is None or execution.id != execution_id:
            return Interrupted(stopped=False, state="preserved", reason="this execution is not running")
        self._count("cancel_event_triggers")
        self._count("executions_cancelled")
        return await self._stop(talk, execution, grace)

    async def _stop(self, talk: Conversation, execution: Execution, grace: float) -> Interrupted:
        """The ladder: ask and ring, ring again at half time, kill."""
        link = talk.link
        assert link is not None
        for _ in range(2):
            if talk.cause is None and not execution.ended.done():
                link.send(m.CancelMessage(execution_id=execution.id, grace_timeout_ms=int(grace * 1000)))
                link.ring()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace / 2):
                    await asyncio.shield(execution.ended)
                break
        else:
            link.kill(Cause("killed", f"the code did not stop within {grace} s"))
            await asyncio.shield(execution.ended)
        last = execution.ended.result()
        if isinstance(last, m.ErrorMessage) and last.state == "lost":
            return Interrupted(stopped=True, state="lost", reason=last.exception_message)
        return Interrupted(stopped=True, state="preserved")

    # -- messages

    def add_message_interceptor(self, interceptor: Interceptor) -> None:
        """Show every incoming message to ``interceptor``, before routing. It must be quick; it cannot change it."""
        self.interceptors.add(interceptor)

    def remove_message_interceptor(self, interceptor: Interceptor) -> None:
        self.interceptors.remove(interceptor)

    async def send_message(self, message: m.Message) -> None:
        """Send any message as it is. Replies that belong to no call arrive by ``receive_message``."""
        talk = self._usable()
        assert talk.link is not None
        talk.link.send(message)
        if talk.execution is not None:
            talk.link.ring()

    async def receive_message(
        self, message_type: type[m.Message] | None = None, timeout: float | None = None
    ) -> m.Message:
        """The oldest message of the general queue (of this type): background output, late and stray messages."""
        talk = self._usable()
        async with asyncio.timeout(timeout):
            while True:
                for at, message in enumerate(talk.general):
                    if message_type is None or isinstance(message, message_type):
                        del talk.general[at]
                        return message
                if talk.cause is not None:
                    raise WorkerDied(talk.cause)
                talk.arrived.clear()
                await talk.arrived.wait()

    # -- introspection

    async def namespace(self) -> tuple[m.NamespaceEntry, ...]:
        """The user's variables: names, types, sizes; never values. Answered also while code runs."""
        reply = await self._usable().request(m.NamespaceMessage())
        return cast(m.NamespaceMessage, reply).entries

    async def complete(self, code: str) -> tuple[str, ...]:
        """Names that could continue this text."""
        reply = await self._usable().request(m.CompletionMessage(code=code))
        return cast(m.CompletionMessage, reply).matches

    async def heartbeat(self) -> m.HeartbeatMessage:
        """Ask the worker for a sign of life, also while it runs code."""
        return cast(m.HeartbeatMessage, await self._usable().request(m.HeartbeatMessage()))

    def usage(self) -> WorkerUsage:
        """What the worker and its processes use, by the kernel's books."""
        return usage_of(self._home.family.host_pid) if self._home is not None else WorkerUsage()

    def _directory(self) -> tuple[int, str | None]:
        if self._home is None or self._home.family.directory is None:
            raise Closed("the session has no directory: its worker is gone")
        return self._home.family.directory, self.config.workdir

    # -- snapshots and checkpoints

    async def snapshot(self) -> SnapshotPoint:
        """Mark this moment between two executions; ``rollback`` returns to it, as often as wanted."""
        point = m.new_id()
        reply = await self._between(m.SnapshotMessage(action="take", point=point))
        return SnapshotPoint(point, cast(m.SnapshotMessage, reply).hazards)

    async def rollback(self, point: SnapshotPoint) -> None:
        """Put every variable back to what it was, exactly. Later points are forgotten."""
        await self._between(m.SnapshotMessage(action="rollback", point=point.id))

    async def drop(self, point: SnapshotPoint) -> None:
        """Forget a snapshot and free what it holds."""
        await self._between(m.SnapshotMessage(action="drop", point=point.id))

    async def fork(self) -> "WorkerSession":
        """A second session with a copy of everything in this one. They share the sandbox and its directory."""
        twin = type(self)(self.config)
        endpoints = Endpoints()
        talk, token = self._usable(), m.new_id()
        home = self._home
        assert home is not None
        conversation = twin._converse()
        twin._apply(Event.STARTED)
        link = Link(home.family, token, endpoints, conversation, limit=self.config.frame_limit)
        conversation.link = link
        home.residents += 1
        twin._home = home
        try:
            message = m.SnapshotMessage(action="fork", point=token)
            await self._between(message, fds=endpoints.theirs, talk=talk)
            assert twin._greeted is not None
            async with asyncio.timeout(self.config.ready_timeout):
                await twin._greeted
        except BaseException:
            home.family.members.pop(token, None)
            await home.leave(link)
            raise
        finally:
            endpoints.passed()
        twin.metadata |= self.metadata
        twin._apply(Event.SAID_READY)
        twin._schedule_beat()
        return twin

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """The namespace as durable bytes, and what could not be kept."""
        reply = cast(m.CheckpointMessage, await self._between(m.CheckpointMessage(name=name)))
        return Checkpoint(
            reply.data, reply.name, reply.kept, reply.lost, reply.function_count, reply.class_count
        )

    async def restore(self, checkpoint: Checkpoint | bytes, *, clear_existing: bool = True) -> Restored:
        """Load a checkpoint inside the worker. A bad one is refused and changes nothing."""
        data = checkpoint if isinstance(checkpoint, bytes) else checkpoint.data
        reply = await self._between(m.RestoreMessage(data=data, clear_existing=clear_existing))
        restored = cast(m.RestoreMessage, reply)
        return Restored(restored.kept, restored.lost)

    async def _between(
        self, message: m.Message, *, fds: tuple[int, ...] = (), talk: Conversation | None = None
    ) -> m.Message:
        """A request that must not meet running code: it queues with the executions."""
        self._usable()
        async with self._turn:
            return await (talk or self._usable()).request(message, fds=fds)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
