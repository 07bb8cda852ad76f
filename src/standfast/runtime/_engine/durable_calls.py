"""A tool call of a durable run that adds to the commit of its outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from standfast.base.errors import FenceLost
from standfast.runtime._engine.leases import make_run_lease_name, make_session_lease_name
from standfast.runtime._engine.records import RunNote, WorkspaceRestored, WorkspaceSaved, WorkspaceUnsaved
from standfast.store.operations import Op
from standfast.workspaces.versions import name_run_workspace, name_session_workspace

if TYPE_CHECKING:
    from standfast.runtime._engine.journal_writer import JournalWriter
    from standfast.workspaces.executor import WorkspaceExecutor

_NOTES: dict[str, type] = {
    "workspace.saved": WorkspaceSaved,
    "workspace.unsaved": WorkspaceUnsaved,
    "workspace.restored": WorkspaceRestored,
}


class DurableCall:
    """See :class:`standfast.workspaces.ownership.RecordedCall`."""

    def __init__(self, writer: "JournalWriter") -> None:
        run_id, session_id = writer.record.run_id, writer.record.session_id
        self._writer, self.run_id = writer, run_id
        self.workspace_key = name_run_workspace(run_id) if session_id is None else name_session_workspace(session_id)
        lease = make_run_lease_name(run_id) if session_id is None else make_session_lease_name(session_id)
        self.fence = (lease, writer.leases.tokens[lease])
        self.ops: list[Op] = []
        self.notes: list[RunNote] = []
        self.finished = asyncio.Event()
        self.committed = False

    def open_workspaces(self, **options: Any) -> "WorkspaceExecutor":
        return self._writer.ctx.open_workspaces(**options)

    def name_workspace(self, conversation: str) -> str:
        return self.workspace_key

    def add_ops(self, *ops: Op) -> None:
        self.ops += ops

    def add_note(self, kind: str, data: dict[str, Any]) -> None:
        self.notes.append(_make_note(kind, data))

    async def record_note(self, kind: str, data: dict[str, Any], *ops: Op) -> None:
        """Write a note with operations. After the run has stopped, its journal is left alone."""
        if self._writer.stopped:
            if ops:
                await self._writer.ctx.backend.commit(*ops)
        elif not await self._writer.record_note(_make_note(kind, data), *ops):
            raise FenceLost(self.fence[0], expected=self.fence[1], found=None)

    def before_stop(self, work: Callable[[], Awaitable[None]]) -> None:
        self._writer.before_stop[self.workspace_key] = work

    def finish(self) -> None:
        """Mark the outcome as recorded, or as discarded."""
        self.finished.set()


def _make_note(kind: str, data: dict[str, Any]) -> RunNote:
    note: RunNote = msgspec.convert(data, _NOTES[kind])
    return note
