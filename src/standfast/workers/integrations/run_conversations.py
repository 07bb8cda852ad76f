"""Which conversation a tool call belongs to, when its caller names none.

A call inside a run of openai-agents or pydantic-ai belongs to that run, which these libraries mark with a context
variable. Any other call belongs to the task that makes it. Calls of different runs or tasks share nothing.
"""

import asyncio
import contextlib
import contextvars
import sys
import weakref
from collections.abc import Callable
from typing import Any

from standfast.base.ids import new_id

# The variables that have one value for each run, the most exact first: a trace can span several runs.
_RUN_VARIABLES = {
    "agents": ("agent_tool_configuration_run", "current_trace"),
    "pydantic_ai": ("pydantic_ai.current_run_context",),
}


class RunConversations:
    """Names the conversations of runs. A conversation ends with its run: ``on_end`` is called with its name."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        # By identity, since two runs may have equal objects.
        self._names: dict[int, str] = {}

    def find_current(self) -> str:
        """Return the name of the conversation of the run, or else of the task, in which this is called."""
        for anchor in (*_find_run_objects(), asyncio.current_task()):
            with contextlib.suppress(TypeError):  # It cannot be referred to weakly.
                return self._get_name(anchor)
        return new_id("run")

    def _get_name(self, anchor: Any) -> str:
        if id(anchor) not in self._names:
            weakref.finalize(anchor, self._forget, id(anchor), asyncio.get_running_loop()).atexit = False
            self._names[id(anchor)] = new_id("run")
        return self._names[id(anchor)]

    def _forget(self, identity: int, loop: asyncio.AbstractEventLoop) -> None:
        """End a conversation. Objects are collected at any time and in any thread, so it is ended later."""
        name = self._names.pop(identity)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(self._on_end, name)


def _find_run_objects() -> list[Any]:
    wanted = [name for module, names in _RUN_VARIABLES.items() if module in sys.modules for name in names]
    if not wanted:
        return []
    found = {variable.name: value for variable, value in contextvars.copy_context().items()}
    return [value for name in wanted if (value := found.get(name)) is not None]
