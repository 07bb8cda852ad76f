"""The tool call of a durable run, as the workspace sees it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from standfast.store.operations import Op


class RecordedCall(Protocol):
    """A tool call whose outcome is committed by a runtime.

    What the call adds with ``add_ops`` and ``add_note`` is written in the commit of its outcome, or not at all.
    ``finished`` is set afterwards, and ``committed`` says whether it was written.
    """

    fence: tuple[str, int]
    """The lease that makes the run the only one of its conversation, and its token."""
    finished: asyncio.Event
    committed: bool

    def add_ops(self, *ops: Op) -> None: ...

    def add_note(self, kind: str, data: dict[str, Any]) -> None: ...

    async def record_note(self, kind: str, data: dict[str, Any], *ops: Op) -> None:
        """Write a note about the run together with operations, in a commit of its own."""
        ...

    def before_stop(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this before the run ends or pauses. Only the last request of a conversation counts."""
        ...
