"""Save and restore the variables of a worker: snapshots and forks by copying the process, checkpoints as bytes.

All of these wait in the queue of the executions, so that none runs beside user code.
"""

import asyncio
from typing import cast

from standfast.base.errors import Closed
from standfast.workers._host.connection import WorkerConnection, WorkerEndpoints
from standfast.workers._host.executor import Executor
from standfast.workers._host.worker import Worker
from standfast.workers.config import SessionConfig
from standfast.workers.errors import WorkerRequestFailed
from standfast.workers.results import Checkpoint, RestoreResult, SnapshotPoint
from standfast.workers.state import WorkerSessionEvent
from standfast.workers.wire import messages as m


class Snapshots:
    """Sends the requests that copy, save or restore the state of a worker."""

    def __init__(self, config: SessionConfig, worker: Worker, executor: Executor) -> None:
        self._config, self._worker, self._executor = config, worker, executor

    async def take(self) -> SnapshotPoint:
        point = m.new_id()
        reply = await self._executor.request_when_idle(m.SnapshotMessage(action="take", point=point))
        return SnapshotPoint(point, cast(m.SnapshotMessage, reply).hazards)

    async def rollback(self, point: SnapshotPoint) -> None:
        await self._executor.request_when_idle(m.SnapshotMessage(action="rollback", point=point.id))

    async def drop(self, point: SnapshotPoint) -> None:
        await self._executor.request_when_idle(m.SnapshotMessage(action="drop", point=point.id))

    async def fork(self, twin: Worker) -> None:
        """Copy the process into ``twin``, the worker of a new session. The caller tears ``twin`` down on failure."""
        resources, router = self._worker.resources, self._worker.require_router()
        if resources is None:
            raise Closed("the session cannot be forked: its worker is gone")
        endpoints, token = WorkerEndpoints(), m.new_id()
        twin_router, ready = twin.open_router()
        connection = WorkerConnection(
            resources.process_group, token, endpoints, twin_router, limit=self._config.frame_limit
        )
        twin.attach(resources.acquire(), connection)
        twin.fire(WorkerSessionEvent.STARTED)
        try:
            reply = await self._executor.request_when_idle(
                m.SnapshotMessage(action="fork", point=token), fds=endpoints.remote_fds, router=router
            )
            async with asyncio.timeout(self._config.ready_timeout):
                await ready
        except WorkerRequestFailed:
            connection.mark_never_started()
            raise
        finally:
            endpoints.close_remote()
        twin.metadata |= {**self._worker.metadata, "hazards": cast(m.SnapshotMessage, reply).hazards}
        twin.fire(WorkerSessionEvent.BECAME_READY)
        twin.schedule_heartbeat()

    async def checkpoint(self, name: str) -> Checkpoint:
        reply = cast(m.CheckpointMessage, await self._executor.request_when_idle(m.CheckpointMessage(name=name)))
        return Checkpoint(reply.data, reply.name, reply.kept, reply.lost, reply.function_count, reply.class_count)

    async def restore(self, data: bytes, *, clear_existing: bool) -> RestoreResult:
        request = m.RestoreMessage(data=data, clear_existing=clear_existing)
        reply = cast(m.RestoreMessage, await self._executor.request_when_idle(request))
        return RestoreResult(reply.kept, reply.lost)
