"""Going back and carrying over: snapshots by fork, checkpoints as bytes."""

from typing import cast

from standfast.workers.core import WorkerSessionBase
from standfast.workers.results import Checkpoint, RestoreResult, SnapshotPoint
from standfast.workers.wire import messages as m


class SnapshotMixin(WorkerSessionBase):
    async def snapshot(self) -> SnapshotPoint:
        """Mark this moment between two executions; ``rollback`` returns to it, as often as wanted."""
        point = m.new_id()
        reply = await self._request_when_idle(m.SnapshotMessage(action="take", point=point))
        return SnapshotPoint(point, cast(m.SnapshotMessage, reply).hazards)

    async def rollback(self, point: SnapshotPoint) -> None:
        """Put every variable back to what it was, exactly. Later points are forgotten."""
        await self._request_when_idle(m.SnapshotMessage(action="rollback", point=point.id))

    async def drop(self, point: SnapshotPoint) -> None:
        """Forget a snapshot and free what it holds."""
        await self._request_when_idle(m.SnapshotMessage(action="drop", point=point.id))

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """The namespace as durable bytes, and what could not be kept."""
        reply = cast(m.CheckpointMessage, await self._request_when_idle(m.CheckpointMessage(name=name)))
        return Checkpoint(reply.data, reply.name, reply.kept, reply.lost, reply.function_count, reply.class_count)

    async def restore(self, checkpoint: Checkpoint | bytes, *, clear_existing: bool = True) -> RestoreResult:
        """Load a checkpoint inside the worker. A bad one is refused and changes nothing."""
        data = checkpoint if isinstance(checkpoint, bytes) else checkpoint.data
        reply = await self._request_when_idle(m.RestoreMessage(data=data, clear_existing=clear_existing))
        restored = cast(m.RestoreMessage, reply)
        return RestoreResult(restored.kept, restored.lost)
