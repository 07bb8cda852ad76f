"""Python as a tool for agents: each conversation has its own persistent session from a pool."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from standfast.base.errors import Closed
from standfast.base.ids import current_conversation
from standfast.workers.errors import WorkerError
from standfast.workers.pool import SessionPool
from standfast.workers.results import ExecutionResult, as_text
from standfast.workers.run_conversations import RunConversations
from standfast.workers.session import WorkerSession

__all__ = ["PythonCallResult", "PythonSessions", "current_conversation", "python_function"]

_MAX_EVICTED = 10_000


CarriedOver: TypeAlias = Literal["variables", "files", "nothing"]


@dataclass(frozen=True)
class PythonCallResult:
    """The result of one call, and what it still had of the calls before it: their variables, their files, or nothing.

    ``is_first_call`` is True when no earlier call of the conversation is known.
    """

    result: ExecutionResult
    carried_over: CarriedOver = "variables"
    is_first_call: bool = False


@dataclass(frozen=True)
class _PriorState:
    """What the next call finds in its session."""

    carried_over: CarriedOver = "variables"
    is_first_call: bool = False


@dataclass(eq=False)
class _ConversationSlot:
    """The session of one conversation. ``caller_count`` callers hold the lock or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: WorkerSession | None = None
    caller_count: int = 0
    prior_state: _PriorState = _PriorState()


class PythonSessions:
    """The sessions of many conversations over one pool.

    Calls of one conversation run one after the other; the timeout of a call starts when it runs. When the pool is
    full, the least recently used session is released, and its conversation starts again with an empty one. Closing
    the pool, or ``close``, releases all sessions.
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
        """Return the object that all users of this pool share until it is closed."""
        if pool not in _sessions_by_pool:
            _sessions_by_pool[pool] = cls(pool)
        return _sessions_by_pool[pool]

    async def run(self, code: str, *, key: str | None = None, timeout: float | None = None) -> PythonCallResult:
        """Run code in the session of the conversation ``key``, by default the current one.

        Errors of the code are in the result. ``input()`` raises at once, since there is nothing to answer it.
        """
        async with self._acquire_slot(key) as slot:
            session = await self._ensure_session(slot)
            prior, slot.prior_state = slot.prior_state, _PriorState()
            result = await session.run(code, timeout=timeout or self.timeout, allow_input=False)
            return PythonCallResult(result, prior.carried_over, prior.is_first_call)

    @contextlib.asynccontextmanager
    async def session(self, key: str | None = None) -> AsyncIterator[WorkerSession]:
        """Hold the session of the conversation ``key``, for example to read or write its files.

        Calls of the conversation wait until the block ends.
        """
        async with self._acquire_slot(key) as slot:
            yield await self._ensure_session(slot)

    @contextlib.asynccontextmanager
    async def _acquire_slot(self, key: str | None) -> AsyncIterator[_ConversationSlot]:
        name = current_conversation.get() if key is None else key
        # Moved to the end, so that the first slot is the least recently used one.
        slot = self._slots[name] = self._slots.pop(name) if name in self._slots else _ConversationSlot()
        slot.caller_count += 1
        try:
            async with slot.lock:
                if slot.session is None:
                    slot.prior_state = _PriorState("nothing", is_first_call=name not in self._evicted)
                yield slot
                self._evicted.pop(name, None)
        finally:
            slot.caller_count -= 1
            if not slot.caller_count and (self._closed or slot.session is None):
                self.end_conversation(name)
            elif self._pending_leases and self.pool.is_full:
                # Another conversation waits for a session, and this one may not need its own again soon.
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
        for name, slot in self._slots.items():
            if not slot.caller_count:
                self._evicted[name] = None
                if len(self._evicted) > _MAX_EVICTED:
                    del self._evicted[next(iter(self._evicted))]
                self.end_conversation(name)
                return

    def end_conversation(self, key: str = "") -> None:
        """Release the session of a conversation. A session in use stays with its conversation."""
        slot = self._slots.get(key)
        if slot is not None and not slot.caller_count:
            del self._slots[key]
            self._release_session(slot)

    def close(self) -> None:
        """Release every session, those in use when their calls end. Later calls raise Closed."""
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


def python_function(
    pool: SessionPool, *, conversation: str | None = None, timeout: float = 30.0
) -> Callable[[str], Awaitable[str]]:
    """Return a plain ``async (code) -> str`` function for any framework's tool decorator.

    Variables persist between the calls of one conversation: that of the context (``current_conversation``, which runs
    of standfast set themselves), or else ``conversation``. Without either, each run of openai-agents or pydantic-ai has
    a session of its own, which ends with it, and elsewhere each asyncio task has. The text contains the output, the
    last value or the traceback, and a note when the variables were lost.
    """
    sessions = PythonSessions.for_pool(pool)
    runs = RunConversations(sessions.end_conversation)

    async def run_python(code: str) -> str:
        """Run Python code in a persistent, sandboxed session. Returns printed text and the last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        key = current_conversation.get() or conversation or runs.find_current()
        call = await sessions.run(code, key=key, timeout=timeout)
        return as_text(call.result, carried_over="variables" if call.is_first_call else call.carried_over)

    run_python.sessions = sessions  # type: ignore[attr-defined]
    return run_python
