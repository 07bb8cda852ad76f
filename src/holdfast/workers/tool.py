"""Python as a function for agents: each conversation has its own persistent session."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from holdfast.workers.errors import WorkerError
from holdfast.workers.pool import SessionPool
from holdfast.workers.result import ExecutionResult
from holdfast.workers.session import WorkerSession

conversation: ContextVar[str] = ContextVar("holdfast_conversation", default="")
"""Which conversation the current call belongs to. Without one, all calls share one session."""


class PythonSessions:
    """The sessions of many conversations over one pool. Close it to give them back."""

    def __init__(self, pool: SessionPool, *, timeout: float = 30.0, most: int | None = None) -> None:
        self.pool, self.timeout = pool, timeout
        self._most = most
        self._sessions: dict[str, WorkerSession] = {}
        self._lock = asyncio.Lock()

    async def run(self, code: str, *, key: str | None = None) -> ExecutionResult:
        """Run in the conversation's session; a dead one is replaced, and its loss stands in the result."""
        session = await self._session(conversation.get() if key is None else key)
        return await session.run(code, timeout=self.timeout)

    async def _session(self, key: str) -> WorkerSession:
        async with self._lock:
            held = self._sessions.pop(key, None)
            if held is not None and not held.is_alive:
                self._give_back(held)
                held = None
            if held is None:
                if self._most is not None and len(self._sessions) >= self._most:
                    self._give_back(self._sessions.pop(next(iter(self._sessions))))
                held = await self.pool.lease(self.timeout)
            self._sessions[key] = held
            return held

    def end(self, key: str = "") -> None:
        """The conversation is over; its session ends."""
        held = self._sessions.pop(key, None)
        if held is not None:
            self._give_back(held)

    def close(self) -> None:
        for key in list(self._sessions):
            self.end(key)

    def _give_back(self, session: WorkerSession) -> None:
        with contextlib.suppress(WorkerError):
            self.pool.release(session)


def python_function(pool: SessionPool, *, timeout: float = 30.0) -> Callable[[str], Awaitable[str]]:
    """A plain ``async (code) -> str`` for any framework's tool decorator.

    Variables persist between calls of one conversation (see ``conversation``). The text holds what was
    printed, the last value or the traceback, and says so when the variables were lost.
    """
    sessions = PythonSessions(pool, timeout=timeout)

    async def run_python(code: str) -> str:
        """Run Python code in a persistent, sandboxed session. Returns printed text and the last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        return as_text(await sessions.run(code))

    run_python.sessions = sessions  # type: ignore[attr-defined]
    return run_python


def as_text(result: ExecutionResult, *, limit: int = 20_000) -> str:
    """A result as a model should read it."""
    parts = [result.stdout]
    if result.stderr:
        parts.append(f"[stderr]\n{result.stderr}")
    if result.repr:
        parts.append(result.repr)
    kinds = sorted({mime for item in result.displays for mime in item.data if mime != "text/plain"})
    if kinds:
        parts.append(f"[displayed: {', '.join(kinds)}]")
    if result.error is not None:
        parts.append(result.error.traceback or f"{result.error.exception_type}: {result.error.exception_message}")
    if result.state == "lost":
        parts.append("[the session was lost; all variables are gone]")
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
    return text or "[no output]"
