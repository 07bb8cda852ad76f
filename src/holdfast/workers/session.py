"""A worker session: one persistent Python, from start to termination.

Every method may be called from any task at any time. What cannot be done any more raises ``Closed`` or
``WorkerDied`` at once; nothing waits for a worker that is gone.
"""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import Self, cast

from holdfast.base.errors import Closed
from holdfast.workers.birth import Home, bear
from holdfast.workers.carrying import carry_work
from holdfast.workers.errors import Cause, ExecutionTimeout, RequestFailed, StartFailed, WorkerDied
from holdfast.workers.executing import Executing
from holdfast.workers.link import Endpoints, Link
from holdfast.workers.looking import Looking
from holdfast.workers.returning import Returning
from holdfast.workers.states import Event, SessionState
from holdfast.workers.talking import Conversation
from holdfast.workers.wire import messages as m

_KILL_WAIT = 5.0


class WorkerSession(Executing, Looking, Returning):
    """``async with WorkerSession(config) as session: result = await session.run("6 * 7")``"""

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
                self._birth = asyncio.create_task(self._be_born(), name="worker-birth")
                await self._birth
            await self._warm_up()
        except BaseException as problem:
            self._apply(Event.FAILED)
            await self._tear_down(Cause("start", "the start failed"))
            if self._closing is not None and not isinstance(problem, Exception) and not _cancelling():
                raise Closed("the session was stopped while it started") from None
            if isinstance(problem, TimeoutError) and not isinstance(problem, ExecutionTimeout):
                raise StartFailed(f"not ready within {self.config.ready_timeout} s") from problem
            if isinstance(problem, WorkerDied):
                raise StartFailed(f"{problem}{self._last_words()}") from problem
            raise
        if not self._machine.allows(Event.SAID_READY) or self._closing is not None:
            await self._tear_down(Cause("shutdown", "stopped while starting"))
            raise Closed("the session was stopped while it started")
        self._apply(Event.SAID_READY)
        if self._talk is not None and self._talk.execution is not None:
            # Somebody was quick, and waited only for the warm-up.
            self._apply(Event.BEGAN)
        self._schedule_beat()

    async def _be_born(self) -> None:
        talk, greeted = self._converse()
        self._home, talk.link = await bear(self.config, self.session_id, talk)
        await greeted
        self._record_home(self._home)
        carried, self._carried = self._carried, None
        if carried is not None and self._home.family.directory is not None:
            self.metadata["left_behind"] = await carry_work(carried, self._home.family.directory)

    def _converse(self) -> tuple[Conversation, "asyncio.Future[None]"]:
        """A new conversation, and the moment at which the worker has said that it is ready."""
        self._cause = None
        self._greeted = asyncio.get_running_loop().create_future()
        self._talk = Conversation(self.config, interceptors=self.interceptors, noted=self._noted, over=self._over)
        return self._talk, self._greeted

    def _last_words(self) -> str:
        """What the worker said about its death, if it could."""
        said = self._talk.general.take(m.ErrorMessage) if self._talk is not None else None
        return f": {cast(m.ErrorMessage, said).exception_message}" if said is not None else ""

    def _record_home(self, home: Home) -> None:
        self.metadata |= {
            "mode": "spawn" if home.fallback else self.config.mode,
            "sandbox": home.locked.level,
            "sandbox_notes": (*home.server.notes, *home.family.groups.notes, *self.metadata.pop("notes", ())),
            "start_notes": (home.fallback,) if home.fallback else (),
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
        """Stop in good order, within bounds: questions closed, running code interrupted, then a goodbye."""
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
                                await talk.execution.end()
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
        if self._birth is not None:
            self._birth.cancel()
        await self._tear_down(Cause("shutdown", "the session was closed"))
        # A start that was under way cleans up after itself.
        async with self._changing:
            self._apply(Event.CLOSED)

    async def restart(self) -> None:
        """A new worker with an empty namespace; the session and its files stay. Not after termination.

        Files that could not be kept are named in ``info.metadata["left_behind"]``.
        """
        async with self._changing:
            self._apply(Event.RESTARTED)
            async with AsyncExitStack() as until_started:
                if self._home is not None:
                    self._carried = await until_started.enter_async_context(self._home.directory())
                await self._tear_down(Cause("shutdown", "the session was restarted"))
                await self._start()

    @property
    def is_alive(self) -> bool:
        """Whether code could be run now or after what runs now."""
        usable = self.state in (SessionState.READY, SessionState.BUSY, SessionState.IDLE)
        return usable and self._talk is not None and self._talk.cause is None

    async def _tear_down(self, reason: Cause) -> None:
        for timer in (self._beat, self._watch):
            if timer is not None:
                timer.cancel()
        self._watch = None
        talk, home, self._home = self._talk, self._home, None
        if talk is not None and talk.link is not None:
            talk.link.kill(reason)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_KILL_WAIT):
                        await asyncio.shield(talk.link.gone)
            finally:
                # Also when nobody waits for it any more.
                if talk.cause is None:
                    talk.ended(reason)
                if home is not None:
                    await home.leave(talk.link)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rest(self) -> None:
        """Mark a ready session as idle: a pool keeps it in stock."""
        if self.state in (SessionState.READY, SessionState.IDLE):
            self._apply(Event.RESTED)

    async def fork(self) -> "WorkerSession":
        """A second session with a copy of everything in this one; both share sandbox and directory.

        What a copy does not have, threads for one, is named in its ``info.metadata["hazards"]``.
        """
        home, talk = self._home, self._usable()
        if home is None:
            raise Closed("the session's worker is gone")
        twin, endpoints, token = type(self)(self.config), Endpoints(), m.new_id()
        conversation, greeted = twin._converse()
        conversation.link = Link(home.family, token, endpoints, conversation, limit=self.config.frame_limit)
        twin._home = home.joined()
        twin._apply(Event.STARTED)
        try:
            message = m.SnapshotMessage(action="fork", point=token)
            reply = cast(m.SnapshotMessage, await self._between(message, fds=endpoints.theirs, talk=talk))
            async with asyncio.timeout(self.config.ready_timeout):
                await greeted
            twin.metadata |= {**self.metadata, "hazards": reply.hazards}
            twin._apply(Event.SAID_READY)
        except BaseException as problem:
            if isinstance(problem, RequestFailed):
                conversation.link.never_was()
            await twin.terminate()
            raise
        finally:
            endpoints.passed()
        twin._schedule_beat()
        return twin

    # -- what the worker says about itself

    def _noted(self, message: m.Message) -> None:
        if isinstance(message, m.HeartbeatMessage):
            self._heartbeat = message
        greeted = self._greeted
        if greeted is None or greeted.done():
            # User code can say hello as well; what was negotiated stands.
            return
        if isinstance(message, m.HelloMessage):
            self.metadata |= {
                "protocol": message.versions[0] if message.versions else None,
                "features": message.features,
                "python": message.settings.get("python"),
                "notes": tuple(message.settings.get("notes", ())),
            }
        elif isinstance(message, m.ReadyMessage):
            greeted.set_result(None)

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
            self._watch_memory()
            self._schedule_beat()


def _cancelling() -> bool:
    """Whether somebody wants the task that runs this to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
