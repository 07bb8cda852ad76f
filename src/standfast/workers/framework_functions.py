"""Python as a plain function, for the tools of other agent frameworks."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from standfast.base.ids import current_conversation
from standfast.workers.integrations.run_conversations import RunConversations
from standfast.workers.pool import SessionPool
from standfast.workers.python_sessions import PythonSessions


def python_function(
    pool: SessionPool | PythonSessions, *, conversation: str | None = None, timeout: float = 30.0
) -> Callable[[str], Awaitable[str]]:
    """Return a plain ``async (code) -> str`` function for any framework's tool decorator.

    Variables persist between the calls of one conversation: that of the context (``current_conversation``, which runs
    of standfast set themselves), or else ``conversation``. Without either, each run of openai-agents or pydantic-ai has
    a session of its own, which ends with it, and elsewhere each asyncio task has. The text contains the output, the
    last value or the traceback, and a note when the variables were lost. With a :class:`PythonSessions` that has a
    store, a conversation that has a name continues in any process with that store.
    """
    sessions = pool if isinstance(pool, PythonSessions) else PythonSessions.for_pool(pool)
    runs = RunConversations(sessions.end_conversation)

    async def run_python(code: str) -> str:
        """Run Python code in a persistent, sandboxed session. Returns printed text and the last value.

        Args:
            code: The Python code to run. Variables, imports and files stay for the next call.
        """
        name = current_conversation.get() or conversation
        work = sessions.run(code, key=name or runs.find_current(), timeout=timeout, is_kept=bool(name))
        # What a session schedules keeps the context in which it was scheduled, and the run in it would never end.
        call = await (work if name else asyncio.create_task(work, context=contextvars.Context()))
        return call.as_text(carried_over="variables" if call.is_first_call else call.carried_over)

    run_python.sessions = sessions  # type: ignore[attr-defined]
    return run_python
