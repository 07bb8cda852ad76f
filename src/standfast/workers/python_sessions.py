"""Python as a tool for agents: each conversation has its own persistent session from a pool."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from standfast.base.conversations import add_conversation_listener
from standfast.base.errors import Closed, InvalidInput
from standfast.base.ids import current_conversation
from standfast.base.validation import is_integer
from standfast.workers.cell_executors import (
    CellExecutor,
    CellObserver,
    Durability,
    RunWorkspaceSource,
    WorkspaceSource,
    run_prepared,
)
from standfast.workers.errors import PrepareFailed, WorkerError
from standfast.workers.pool import SessionPool
from standfast.workers.results import ExecutionResult, as_text
from standfast.workers.session import WorkerSession

__all__ = ["PythonCallResult", "PythonSessions", "current_conversation"]

_MAX_EVICTED = 10_000


CarriedOver: TypeAlias = Literal["variables", "files", "nothing"]
DEFAULT_CHECKPOINT_MB = 256


@dataclass(frozen=True)
class PythonCallResult:
    """The result of one call, and what it had left of the calls before it: their variables, their files, or nothing.

    ``is_first_call`` is True when no earlier call of the conversation is known. ``notes`` say what was restored of a
    workspace. ``is_kept`` is True when the state before a call that lost the worker is in a store.
    """

    result: ExecutionResult
    carried_over: CarriedOver = "variables"
    is_first_call: bool = False
    notes: tuple[str, ...] = ()
    is_kept: bool = False

    def as_text(self, *, carried_over: CarriedOver | None = None) -> str:
        """Return the result as text for a model, see :func:`~standfast.workers.results.as_text`."""
        return as_text(
            self.result, carried_over=carried_over or self.carried_over, notes=self.notes, is_kept=self.is_kept
        )


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
    live: Any = None
    is_forgotten: bool = False
    prepared: set[str] = field(default_factory=set)
    """What was run to prepare the interpreter of the session."""


class PythonSessions:
    """The sessions of many conversations over one pool.

    Calls of one conversation run one after the other; the timeout of a call starts when it runs. When the pool is
    full, the least recently used session is released, and its conversation starts again with an empty one. Closing
    the pool, or ``close``, releases all sessions.

    With a ``store``, variables and files are kept there: a conversation continues in any process with that store, and
    two processes never run its code at once. Calls of durable runs are kept in the store of their runtime.
    ``durability`` is ``each_call``, ``on_pause`` (when a durable run ends or pauses, and on :meth:`save`) or ``off``. A
    workspace of more than ``max_checkpoint_mb`` is not saved; the calls after the last save are run again instead.

    With ``live_snapshots``, that many forks of each live worker sleep at its latest saved versions: a conversation
    that is rewound to one of them continues in milliseconds, however large its variables are. They count as memory of
    the worker. The largest contents of these versions stay in memory, too, and forks of the conversation map them.
    """

    def __init__(
        self,
        pool: SessionPool,
        *,
        timeout: float = 30.0,
        store: WorkspaceSource | None = None,
        durability: Durability = "each_call",
        max_checkpoint_mb: int = DEFAULT_CHECKPOINT_MB,
        live_snapshots: int = 0,
    ) -> None:
        if durability not in get_args(Durability):
            raise InvalidInput(f"durability must be each_call, on_pause or off, not {durability!r}")
        if not is_integer(max_checkpoint_mb) or max_checkpoint_mb <= 0:
            raise InvalidInput(f"max_checkpoint_mb must be a positive integer, not {max_checkpoint_mb!r}")
        self.pool, self.timeout = pool, timeout
        if not is_integer(live_snapshots) or live_snapshots < 0:
            raise InvalidInput(f"live_snapshots must be an integer >= 0, not {live_snapshots!r}")
        self.store, self.durability, self.max_checkpoint_mb = store, durability, max_checkpoint_mb
        self.live_snapshots = live_snapshots
        self._executor: CellExecutor | None = None if store is None else self._open_executor(store)
        self._slots: dict[str, _ConversationSlot] = {}
        self._evicted: dict[str, None] = {}
        self._pending_leases = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        pool.add_close_callback(self.close)
        add_conversation_listener(self)

    @classmethod
    def for_pool(cls, pool: SessionPool) -> "PythonSessions":
        """Return the object that all users of this pool share until it is closed."""
        if pool not in _sessions_by_pool:
            _sessions_by_pool[pool] = cls(pool)
        return _sessions_by_pool[pool]

    async def run(
        self,
        code: str,
        *,
        key: str | None = None,
        timeout: float | None = None,
        recorded_call: WorkspaceSource | None = None,
        is_kept: bool = True,
        origin: str = "",
        run: RunWorkspaceSource | None = None,
        store: WorkspaceSource | None = None,
        observer: CellObserver | None = None,
        prepare: str = "",
    ) -> PythonCallResult:
        """Run code in the session of the conversation ``key``, by default the current one.

        Errors of the code are in the result. ``input()`` raises at once, since there is nothing to answer it, unless
        ``observer``, which gets every message of the execution, answers. ``store`` keeps the workspace of this call.
        ``recorded_call`` is :attr:`ToolContext.recorded_call`: the call of a durable run, which keeps the workspace.
        With ``is_kept=False`` nothing is stored, for a conversation that no other process will continue. ``origin``
        identifies the tool call, as :attr:`ToolContext.idempotency_key` does: a fork of the conversation without the
        output of that call gets the variables and files without it. ``run`` is :attr:`ToolContext.workspace`: the state
        of that run refers to the variables and files, and a run that is resumed finds them. ``prepare`` is code that
        runs first unless it has run in this interpreter, see :func:`~standfast.python_tool`.
        """
        name = current_conversation.get() if key is None else key
        async with self._acquire_slot(name) as slot:
            source, executor = self._choose_executor(recorded_call, run, store)
            if executor is not None and source is not None and is_kept:
                access, workspace = _Access(self, name, slot), source.name_workspace(name)
                seconds, link = timeout or self.timeout, run if recorded_call is None else None
                return await executor.run(
                    access,
                    workspace,
                    code,
                    timeout=seconds,
                    call=recorded_call,
                    origin=origin,
                    run=link,
                    observer=observer,
                    prepare=prepare,
                )
            if run is not None:
                run.note_unkept()
            session = await self._ensure_session(slot)
            prior, slot.prior_state = slot.prior_state, _PriorState()
            due = "" if prepare in slot.prepared else prepare
            try:
                result = await run_prepared(session, code, timeout or self.timeout, observer, prepare=due)
            except PrepareFailed:  # half of it may have been run
                self._release_session(slot)
                raise
            slot.prepared.add(due)
            return PythonCallResult(result, prior.carried_over, prior.is_first_call)

    @contextlib.asynccontextmanager
    async def session(
        self, key: str | None = None, *, store: WorkspaceSource | None = None
    ) -> AsyncIterator[WorkerSession]:
        """Hold the session of the conversation ``key``, for example to read or write its files.

        Calls of the conversation wait until the block ends. ``store`` keeps the workspace instead of that of these
        sessions.
        """
        name = current_conversation.get() if key is None else key
        async with self._acquire_slot(name) as slot:
            source, executor = self._choose_executor(None, None, store)
            if executor is None or source is None:
                yield await self._ensure_session(slot)
                return
            workspace = source.name_workspace(name)
            async with executor.hold(_Access(self, name, slot), workspace, timeout=self.timeout) as session:
                yield session

    async def restart(self, key: str | None = None, *, store: WorkspaceSource | None = None) -> None:
        """End the worker of a conversation after the call under way. What a store has is there for the next call."""
        name = current_conversation.get() if key is None else key
        async with self._acquire_slot(name) as slot:
            source, executor = self._choose_executor(None, None, store)
            if executor is not None and source is not None:
                await executor.save(_Access(self, name, slot), source.name_workspace(name))
            self._release_session(slot)

    async def save(self, key: str | None = None) -> None:
        """Save the variables and files of a conversation in the store now, unless they are saved."""
        name = current_conversation.get() if key is None else key
        if self._executor is None or self.store is None:
            raise InvalidInput("these sessions have no store: pass store= to PythonSessions")
        async with self._acquire_slot(name) as slot:
            await self._executor.save(_Access(self, name, slot), self.store.name_workspace(name))

    def _choose_executor(
        self, recorded_call: WorkspaceSource | None, run: RunWorkspaceSource | None, store: WorkspaceSource | None
    ) -> tuple[WorkspaceSource | None, CellExecutor | None]:
        """Return where the workspace of a call is kept. A resumed run may have its own, for a tool without a store."""
        if recorded_call is not None:
            return recorded_call, self._open_executor(recorded_call)
        if run is not None and run.has_own_store and (self._executor is None or run.is_sealed):
            return run, self._open_source(run)
        if store is not None:
            return store, self._open_executor(store)
        return self.store, self._executor

    def _open_executor(self, source: WorkspaceSource) -> CellExecutor | None:
        if self.durability == "off":
            return None
        return self._open_source(source)

    def _open_source(self, source: WorkspaceSource) -> CellExecutor:
        return source.open_workspaces(
            durability=self.durability,
            max_checkpoint_mb=self.max_checkpoint_mb,
            live_snapshots=self.live_snapshots,
        )

    @contextlib.asynccontextmanager
    async def _acquire_slot(self, name: str) -> AsyncIterator[_ConversationSlot]:
        self._loop = asyncio.get_running_loop()
        # Moved to the end, so that the first slot is the least recently used one.
        slot = self._slots[name] = self._slots.pop(name) if name in self._slots else _ConversationSlot()
        with self._occupy(name, slot):
            async with slot.lock:
                if slot.is_forgotten:
                    self._release_session(slot)
                    slot.is_forgotten = False
                if slot.session is None:
                    slot.prior_state = _PriorState("nothing", is_first_call=name not in self._evicted)
                yield slot
                self._evicted.pop(name, None)

    @contextlib.contextmanager
    def _occupy(self, name: str, slot: _ConversationSlot) -> Iterator[None]:
        """Count a caller: a slot with callers is not released for another conversation."""
        slot.caller_count += 1
        try:
            yield
        finally:
            slot.caller_count -= 1
            if not slot.caller_count and (self._closed or slot.session is None or slot.is_forgotten):
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
                slot.prepared.clear()
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

    def forget_conversation(self, key: str) -> None:
        """Release the session of a conversation that was deleted or cleared, one in use when its calls end."""
        with contextlib.suppress(RuntimeError):  # no loop runs here
            if self._loop is asyncio.get_running_loop():
                self._forget(key)
                return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._forget, key)

    def _forget(self, key: str) -> None:
        if slot := self._slots.get(key):
            slot.is_forgotten = True
            self.end_conversation(key)

    def close(self) -> None:
        """Release every session, those in use when their calls end. Later calls raise Closed."""
        self._closed = True
        if _sessions_by_pool.get(self.pool) is self:
            del _sessions_by_pool[self.pool]
        for key in list(self._slots):
            self.end_conversation(key)

    def _release_session(self, slot: _ConversationSlot) -> None:
        session, live, slot.session, slot.live = slot.session, slot.live, None, None
        slot.prepared.clear()
        if live is not None:
            live.release()
        if session is not None:
            with contextlib.suppress(WorkerError):
                self.pool.release(session)


class _Access:
    """One slot, for an executor."""

    def __init__(self, sessions: PythonSessions, name: str, slot: _ConversationSlot) -> None:
        self._sessions, self._name, self._slot = sessions, name, slot

    @property
    def live(self) -> Any:
        return self._slot.live

    @live.setter
    def live(self, live: Any) -> None:
        self._slot.live = live

    async def acquire(self) -> WorkerSession:
        return await self._sessions._ensure_session(self._slot)

    def discard(self) -> None:
        self._sessions._release_session(self._slot)

    def keep(self) -> AbstractContextManager[None]:
        return self._sessions._occupy(self._name, self._slot)

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        return self._sessions.pool.start_work(work, name=name)

    def enter(self) -> AbstractAsyncContextManager[Any]:
        return self._sessions._acquire_slot(self._name)


_sessions_by_pool: dict[SessionPool, PythonSessions] = {}
