"""Python as a function for agents: each conversation has its own persistent session."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from standfast.base.context import current_conversation
from standfast.base.errors import Closed
from standfast.workers.errors import WorkerError
from standfast.workers.formatting import as_text
from standfast.workers.pool import SessionPool
from standfast.workers.results import ExecutionResult
from standfast.workers.session import WorkerSession

__all__ = ["PythonCallResult", "PythonSessions", "current_conversation", "python_function"]

_MAX_EVICTED = 10_000


CarriedOver: TypeAlias = Literal["variables", "files", "nothing"]


@dataclass(frozen=True)
class PythonCallResult:
    """One call of a conversation, and what it found: the variables of the calls before, their files, or nothing.

    ``first`` says that nobody knows of calls before.
    """

    result: ExecutionResult
    carried_over: CarriedOver = "variables"
    is_first_call: bool = False


@dataclass(frozen=True)
class _PriorState:
    """What the next call has to be told about its session."""

    carried_over: CarriedOver = "variables"
    is_first_call: bool = False


@dataclass(eq=False)
class _ConversationSlot:
    """A conversation's place: calls take it in turn, and ``callers`` have it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: WorkerSession | None = None
    caller_count: int = 0
    prior_state: _PriorState = _PriorState()


class PythonSessions:
    """The sessions of many conversations over one pool.

    Calls of one conversation queue in order; their time begins when it is their turn. When the pool is full, the
    session that was not used for the longest time is given up, and its conversation begins anew. Stopping the
    pool, or ``close``, gives all of them back.
    """

    def __init__(self, pool: SessionPool, *, timeout: float = 30.0) -> None:
        self.pool, self.timeout = pool, timeout
        self._slots: dict[str, _ConversationSlot] = {}
        self._evicted: dict[str, None] = {}
        self._pending_leases = 0
        self._closed = False
        pool.add_close_callback(self.close)

    @classmethod
    def for_pool(cls, pool: SessionPool) -> "PythonSessions":
        """The sessions of this pool's conversations, the same ones for everybody who asks until they are closed."""
        if pool not in _sessions_by_pool:
            _sessions_by_pool[pool] = cls(pool)
        return _sessions_by_pool[pool]

    async def run(self, code: str, *, key: str | None = None, timeout: float | None = None) -> PythonCallResult:
        """Run in the session of the conversation ``key`` (by default, the current one).

        Whatever the code does is in the result. ``input()`` fails at once, since nobody would answer.
        """
        async with self._acquire_slot(key) as seat:
            session = await self._ensure_session(seat)
            news, seat.prior_state = seat.prior_state, _PriorState()
            result = await session.run(code, timeout=timeout or self.timeout, allow_input=False)
            return PythonCallResult(result, news.carried_over, news.is_first_call)

    @contextlib.asynccontextmanager
    async def session(self, key: str | None = None) -> AsyncIterator[WorkerSession]:
        """The session of the conversation ``key`` itself, to put files there or to take files out.

        Calls of the conversation wait until the block ends.
        """
        async with self._acquire_slot(key) as seat:
            yield await self._ensure_session(seat)

    @contextlib.asynccontextmanager
    async def _acquire_slot(self, key: str | None) -> AsyncIterator[_ConversationSlot]:
        """The conversation's place, when it is this caller's turn."""
        name = current_conversation.get() if key is None else key
        seat = self._slots[name] = self._slots.pop(name) if name in self._slots else _ConversationSlot()
        seat.caller_count += 1
        try:
            async with seat.lock:
                if seat.session is None:
                    seat.prior_state = _PriorState("nothing", is_first_call=name not in self._evicted)
                yield seat
                self._evicted.pop(name, None)
        finally:
            seat.caller_count -= 1
            if not seat.caller_count and (self._closed or seat.session is None):
                self.end_conversation(name)
            elif self._pending_leases and self.pool.is_full:
                # Somebody waits for what this conversation might not need again for long.
                self._evict_idle_session()

    async def _ensure_session(self, slot: _ConversationSlot) -> WorkerSession:
        if self._closed:
            raise Closed("these sessions were closed")
        if slot.session is not None:
            if slot.session.is_alive:
                return slot.session
            with contextlib.suppress(WorkerError, Closed):
                await slot.session.restart()
                slot.prior_state = _PriorState(
                    "nothing" if slot.prior_state.carried_over == "nothing" else "files", slot.prior_state.is_first_call
                )
                return slot.session
            self._release_session(slot)
            slot.prior_state = _PriorState("nothing")
        if self.pool.is_full:
            self._evict_idle_session()
        self._pending_leases += 1
        try:
            slot.session = await self.pool.lease(self.timeout)
        finally:
            self._pending_leases -= 1
        return slot.session

    def _evict_idle_session(self) -> None:
        for name, seat in self._slots.items():
            if not seat.caller_count:
                self._evicted[name] = None
                if len(self._evicted) > _MAX_EVICTED:
                    del self._evicted[next(iter(self._evicted))]
                self.end_conversation(name)
                return

    def end_conversation(self, key: str = "") -> None:
        """The conversation is over. Its session ends, after the call that is being made if there is one."""
        seat = self._slots.get(key)
        if seat is not None and not seat.caller_count:
            del self._slots[key]
            self._release_session(seat)

    def close(self) -> None:
        """Give every session back; those in use when their calls have ended. Nothing can be run any more."""
        self._closed = True
        if _sessions_by_pool.get(self.pool) is self:
            del _sessions_by_pool[self.pool]
        for key in list(self._slots):
            self.end_conversation(key)

    def _release_session(self, slot: _ConversationSlot) -> None:
        session, slot.session = slot.session, None
        if session is not None:
            with contextlib.suppress(WorkerError):
                self.pool.release(session)


_sessions_by_pool: dict[SessionPool, PythonSessions] = {}


def python_function(pool: SessionPool, *, timeout: float = 30.0) -> Callable[[str], Awaitable[str]]:
    """A plain ``async (code) -> str`` for any framework's tool decorator.

    Variables persist between calls of one conversation: runs of standfast say which that is, other programs set
    ``conversation``; without one, all calls share a session. The text holds what was printed, the last value or
    the traceback, and says so when the variables were lost.
    """
    sessions = PythonSessions.for_pool(pool)

    async def run_python(code: str) -> str:
        """Run Python code in a persistent, sandboxed session. Returns printed text and the last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        ran = await sessions.run(code, timeout=timeout)
        return as_text(ran.result, carried_over="variables" if ran.is_first_call else ran.carried_over)

    run_python.sessions = sessions  # type: ignore[attr-defined]
    return run_python
