"""Python as a function for agents: each conversation has its own persistent session."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.base.conversation import conversation
from holdfast.base.errors import Closed
from holdfast.workers.collect import collect
from holdfast.workers.errors import WorkerError
from holdfast.workers.pool import SessionPool
from holdfast.workers.report import as_text
from holdfast.workers.result import ExecutionResult
from holdfast.workers.session import WorkerSession
from holdfast.workers.wire.messages import ExecuteMessage

__all__ = ["PythonSessions", "Ran", "conversation", "python_function"]

_REMEMBERED = 10_000


Found: TypeAlias = Literal["variables", "files", "nothing"]


@dataclass(frozen=True)
class Ran:
    """One call of a conversation, and what it found: the variables of the calls before, their files, or nothing.

    ``first`` says that nobody knows of calls before.
    """

    result: ExecutionResult
    found: Found = "variables"
    first: bool = False


@dataclass(frozen=True)
class _Known:
    """What the next call has to be told about its session."""

    found: Found = "variables"
    first: bool = False


@dataclass(eq=False)
class _Seat:
    """A conversation's place: calls take it in turn, and ``callers`` have it or wait for it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: WorkerSession | None = None
    callers: int = 0
    news: _Known = _Known()


class PythonSessions:
    """The sessions of many conversations over one pool.

    Calls of one conversation queue in order; their time begins when it is their turn. When the pool is full, the
    session that was not used for the longest time is given up, and its conversation begins anew. Stopping the
    pool, or ``close``, gives all of them back.
    """

    def __init__(self, pool: SessionPool, *, timeout: float = 30.0) -> None:
        self.pool, self.timeout = pool, timeout
        self._seats: dict[str, _Seat] = {}
        self._lost: dict[str, None] = {}
        self._wanted = 0
        self._closed = False
        pool.on_stop(self.close)

    @classmethod
    def of(cls, pool: SessionPool) -> "PythonSessions":
        """The sessions of this pool's conversations, the same ones for everybody who asks until they are closed."""
        if pool not in _shared:
            _shared[pool] = cls(pool)
        return _shared[pool]

    async def run(self, code: str, *, key: str | None = None, timeout: float | None = None) -> Ran:
        """Run in the session of the conversation ``key`` (by default, the current one).

        Whatever the code does is in the result. ``input()`` fails at once, since nobody would answer.
        """
        async with self._seated(key) as seat:
            session = await self._provided(seat)
            news, seat.news = seat.news, _Known()
            message = ExecuteMessage(code=code, allow_input=False)
            return Ran(await collect(session, message, timeout or self.timeout), news.found, news.first)

    @contextlib.asynccontextmanager
    async def session(self, key: str | None = None) -> AsyncIterator[WorkerSession]:
        """The session of the conversation ``key`` itself, to put files there or to take files out.

        Calls of the conversation wait until the block ends.
        """
        async with self._seated(key) as seat:
            yield await self._provided(seat)

    @contextlib.asynccontextmanager
    async def _seated(self, key: str | None) -> AsyncIterator[_Seat]:
        """The conversation's place, when it is this caller's turn."""
        name = conversation.get() if key is None else key
        seat = self._seats[name] = self._seats.pop(name) if name in self._seats else _Seat()
        seat.callers += 1
        try:
            async with seat.turn:
                if seat.session is None:
                    seat.news = _Known("nothing", first=name not in self._lost)
                yield seat
                self._lost.pop(name, None)
        finally:
            seat.callers -= 1
            if not seat.callers and (self._closed or seat.session is None):
                self.end(name)
            elif self._wanted and self.pool.full:
                # Somebody waits for what this conversation might not need again for long.
                self._make_room()

    async def _provided(self, seat: _Seat) -> WorkerSession:
        if self._closed:
            raise Closed("these sessions were closed")
        if seat.session is not None:
            if seat.session.is_alive:
                return seat.session
            with contextlib.suppress(WorkerError, Closed):
                await seat.session.restart()
                seat.news = _Known("nothing" if seat.news.found == "nothing" else "files", seat.news.first)
                return seat.session
            self._give_back(seat)
            seat.news = _Known("nothing")
        if self.pool.full:
            self._make_room()
        self._wanted += 1
        try:
            seat.session = await self.pool.lease(self.timeout)
        finally:
            self._wanted -= 1
        return seat.session

    def _make_room(self) -> None:
        for name, seat in self._seats.items():
            if not seat.callers:
                self._lost[name] = None
                if len(self._lost) > _REMEMBERED:
                    del self._lost[next(iter(self._lost))]
                self.end(name)
                return

    def end(self, key: str = "") -> None:
        """The conversation is over. Its session ends, after the call that is being made if there is one."""
        seat = self._seats.get(key)
        if seat is not None and not seat.callers:
            del self._seats[key]
            self._give_back(seat)

    def close(self) -> None:
        """Give every session back; those in use when their calls have ended. Nothing can be run any more."""
        self._closed = True
        if _shared.get(self.pool) is self:
            del _shared[self.pool]
        for key in list(self._seats):
            self.end(key)

    def _give_back(self, seat: _Seat) -> None:
        session, seat.session = seat.session, None
        if session is not None:
            with contextlib.suppress(WorkerError):
                self.pool.release(session)


_shared: dict[SessionPool, PythonSessions] = {}


def python_function(pool: SessionPool, *, timeout: float = 30.0) -> Callable[[str], Awaitable[str]]:
    """A plain ``async (code) -> str`` for any framework's tool decorator.

    Variables persist between calls of one conversation: runs of holdfast say which that is, other programs set
    ``conversation``; without one, all calls share a session. The text holds what was printed, the last value or
    the traceback, and says so when the variables were lost.
    """
    sessions = PythonSessions.of(pool)

    async def run_python(code: str) -> str:
        """Run Python code in a persistent, sandboxed session. Returns printed text and the last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        ran = await sessions.run(code, timeout=timeout)
        return as_text(ran.result, found="variables" if ran.first else ran.found)

    run_python.sessions = sessions  # type: ignore[attr-defined]
    return run_python
