"""What :class:`PythonSessions` needs of those that keep workspaces, and of those that watch an execution."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from standfast.workers.errors import PrepareFailed
from standfast.workers.results import ExecutionResult, as_text
from standfast.workers.session import WorkerSession
from standfast.workers.wire.messages import Message

if TYPE_CHECKING:
    from standfast.workers.python_sessions import PythonCallResult

Durability: TypeAlias = Literal["each_call", "on_pause", "off"]


class CellObserver(Protocol):
    """Watches one execution. ``allow_input`` says whether it answers what the code asks for."""

    allow_input: bool

    def start(self, session: WorkerSession) -> None:
        """Get the session in which the code is about to run, to answer its input or to interrupt it."""
        ...

    def receive(self, message: Message) -> None:
        """Get a message of the execution, in order. Must not block."""
        ...


async def run_observed(
    session: WorkerSession, code: str, timeout: float | None, observer: CellObserver | None, *, seed: int | None = None
) -> ExecutionResult:
    """Run code to its end; without an observer, ``input()`` raises at once."""
    if observer is None:
        return await session.run(code, timeout=timeout, allow_input=False, seed=seed)
    observer.start(session)
    receive = observer.receive
    return await session.run(code, timeout=timeout, allow_input=observer.allow_input, on_message=receive, seed=seed)


async def run_prepared(
    session: WorkerSession,
    code: str,
    timeout: float | None,
    observer: CellObserver | None = None,
    *,
    prepare: str = "",
    seed: int | None = None,
) -> ExecutionResult:
    """Run ``prepare``, if there is any, and then code. ``seed`` is for what is run first.

    Returns the result of ``prepare`` if the worker is lost in it, and raises PrepareFailed if it fails in another way.
    """
    if prepare:
        prepared = await session.run(prepare, timeout=timeout, allow_input=False, seed=seed)
        if prepared.state == "lost":
            return prepared
        if prepared.error is not None or prepared.timed_out:
            raise PrepareFailed(f"the code that prepares the Python session has failed:\n{as_text(prepared)}")
        seed = None
    return await run_observed(session, code, timeout, observer, seed=seed)


class SlotAccess(Protocol):
    """The place of one conversation in :class:`PythonSessions`.

    ``live`` is the executor's state of it. Its method ``release`` is called when the session is not used any more.
    """

    live: Any

    async def acquire(self) -> WorkerSession:
        """Return the session, which is started if necessary."""
        ...

    def discard(self) -> None:
        """Release the session, with its variables and files."""
        ...

    def keep(self) -> AbstractContextManager[None]:
        """Keep the session from being released for another conversation."""
        ...

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        """Run work that belongs to the session; the pool owns it."""
        ...

    def enter(self) -> AbstractAsyncContextManager[Any]:
        """Wait for the calls of the conversation, and keep others out."""
        ...


class CellExecutor(Protocol):
    """Runs calls in workspaces that outlive the process, see :mod:`standfast.workspaces.executor`."""

    async def run(
        self,
        slot: SlotAccess,
        key: str,
        code: str,
        *,
        timeout: float,
        call: Any,
        origin: str,
        run: Any,
        observer: "CellObserver | None",
        prepare: str,
    ) -> "PythonCallResult": ...

    def hold(self, slot: SlotAccess, key: str, *, timeout: float) -> AbstractAsyncContextManager[WorkerSession]: ...

    async def save(self, slot: SlotAccess, key: str) -> None: ...


class WorkspaceSource(Protocol):
    """A store, or the call of a durable run, which can keep workspaces."""

    def open_workspaces(
        self, *, durability: Durability, max_checkpoint_mb: int, live_snapshots: int
    ) -> CellExecutor: ...

    def name_workspace(self, conversation: str) -> str:
        """Return the key of the workspace of a conversation."""
        ...


class RunWorkspaceSource(WorkspaceSource, Protocol):
    """The run that makes a call, see :class:`standfast.workspaces.run_workspace.RunWorkspace`."""

    @property
    def has_own_store(self) -> bool: ...

    @property
    def is_sealed(self) -> bool: ...

    def note_unkept(self) -> None: ...
