"""Describe a worker and its variables, and save and restore them: snapshots, forks and checkpoints.

All of these wait in the queue of the executions, so that none runs beside user code.
"""

import asyncio
from typing import Any, cast

from standfast.base.errors import Closed
from standfast.workers._host.connection import WorkerConnection, WorkerEndpoints
from standfast.workers._host.executor import Executor
from standfast.workers._host.resource_watch import measure_usage
from standfast.workers._host.worker import Worker
from standfast.workers.config import SessionConfig
from standfast.workers.errors import WorkerRequestFailed
from standfast.workers.interceptors import Interceptors
from standfast.workers.results import Checkpoint, RestoreResult, SessionInfo, SnapshotPoint, WorkerUsage
from standfast.workers.state import WorkerSessionEvent
from standfast.workers.wire import messages as m


class Inspector:
    """Answers questions about a session, also while code runs."""

    def __init__(self, config: SessionConfig, worker: Worker, executor: Executor, interceptors: Interceptors) -> None:
        self._config, self._worker, self._executor, self._interceptors = config, worker, executor, interceptors

    def info(self) -> SessionInfo:
        worker, executor, heartbeat = self._worker, self._executor, self._worker.last_heartbeat
        return SessionInfo(
            session_id=worker.session_id,
            state=worker.state,
            created_at=worker.created_at,
            last_used_at=executor.last_used_at,
            execution_count=executor.execution_count,
            error_count=executor.error_count,
            memory_usage=heartbeat.memory_usage if heartbeat else 0,
            cpu_percent=heartbeat.cpu_percent if heartbeat else 0.0,
            namespace_size=heartbeat.namespace_size if heartbeat else 0,
            last_heartbeat_at=heartbeat.timestamp if heartbeat else None,
            cause=worker.exit_cause,
            metadata=dict(worker.metadata),
            metrics=dict(executor.metrics) if self._config.enable_metrics else {},
            telemetry=self._collect_telemetry(),
        )

    def _collect_telemetry(self) -> dict[str, Any]:
        router = self._worker.router
        telemetry: dict[str, Any] = {"waiting": self._executor.waiting_count}
        if router is not None:
            telemetry |= {
                "control_messages": router.counts["control"],
                "bulk_messages": router.counts["bulk"],
                "output_bytes": router.counts["bytes"],
                "queued_bytes": router.execution.queue.buffered_bytes if router.execution is not None else 0,
                "general_queue": len(router.general_queue),
                "general_dropped": router.general_queue.dropped,
                "violations": router.protocol.violation_count,
                "open_input_requests": len(router.protocol.input_requests),
                "interceptors": [vars(stats).copy() for stats in self._interceptors.stats.values()],
            }
        return telemetry

    async def namespace(self) -> tuple[m.NamespaceEntry, ...]:
        reply = await self._worker.require_router().request(m.NamespaceMessage())
        return cast(m.NamespaceMessage, reply).entries

    async def complete(self, code: str) -> tuple[str, ...]:
        reply = await self._worker.require_router().request(m.CompletionMessage(code=code))
        return cast(m.CompletionMessage, reply).matches

    async def heartbeat(self) -> m.HeartbeatMessage:
        return cast(m.HeartbeatMessage, await self._worker.require_router().request(m.HeartbeatMessage()))

    def usage(self) -> WorkerUsage:
        resources, shared = self._worker.resources, frozenset(self._worker.shared_files)
        return WorkerUsage() if resources is None else measure_usage(resources.process_group.supervisor_pid, shared)


class Snapshots:
    """Sends the requests that copy, save or restore the state of a worker."""

    def __init__(self, config: SessionConfig, worker: Worker, executor: Executor) -> None:
        self._config, self._worker, self._executor = config, worker, executor

    async def take(self) -> SnapshotPoint:
        point = m.new_id()
        reply = await self._executor.request_when_idle(m.SnapshotMessage(action="take", point=point))
        self._worker.snapshot_points.append(point)
        return SnapshotPoint(point, cast(m.SnapshotMessage, reply).hazards)

    async def rollback(self, point: SnapshotPoint) -> None:
        await self._executor.request_when_idle(m.SnapshotMessage(action="rollback", point=point.id))

    async def drop(self, point: SnapshotPoint) -> None:
        await self._executor.request_when_idle(m.SnapshotMessage(action="drop", point=point.id))
        if point.id in self._worker.snapshot_points:
            self._worker.snapshot_points.remove(point.id)

    async def fork(self, target: Worker) -> None:
        """Copy the process into ``target``, the worker of a new session. The caller tears that down on failure."""
        resources, router = self._worker.resources, self._worker.require_router()
        if resources is None:
            raise Closed("the session cannot be forked: its worker is gone")
        endpoints, token = WorkerEndpoints(), m.new_id()
        target_router, ready = target.open_router()
        connection = WorkerConnection(
            resources.process_group, token, endpoints, target_router, limit=self._config.frame_limit
        )
        target.attach(resources.acquire(), connection)
        target.shared_files |= self._worker.shared_files
        target.fire(WorkerSessionEvent.STARTED)
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
        target.metadata |= {**self._worker.metadata, "hazards": cast(m.SnapshotMessage, reply).hazards}
        target.fire(WorkerSessionEvent.BECAME_READY)
        target.schedule_heartbeat()

    async def checkpoint(self, name: str) -> Checkpoint:
        reply = cast(m.CheckpointMessage, await self._executor.request_when_idle(m.CheckpointMessage(name=name)))
        return Checkpoint(reply.data, reply.name, reply.kept, reply.lost, reply.function_count, reply.class_count)

    async def restore(self, data: bytes, *, clear_existing: bool) -> RestoreResult:
        request = m.RestoreMessage(data=data, clear_existing=clear_existing)
        reply = cast(m.RestoreMessage, await self._executor.request_when_idle(request))
        return RestoreResult(reply.kept, reply.lost)
