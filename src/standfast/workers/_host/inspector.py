"""Describe a session and its worker: state, variables, completions and resource usage."""

from typing import Any, cast

from standfast.workers._host.executor import Executor
from standfast.workers._host.memory_watch import measure_usage
from standfast.workers._host.worker import Worker
from standfast.workers.config import SessionConfig
from standfast.workers.interceptors import Interceptors
from standfast.workers.results import SessionInfo, WorkerUsage
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
                "open_questions": len(router.protocol.input_requests),
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
        resources = self._worker.resources
        return WorkerUsage() if resources is None else measure_usage(resources.process_group.supervisor_pid)
