"""Looking into a session: messages, variables, usage, and the description of it all."""

import asyncio
from typing import Any, cast

from standfast.workers._host.memory_watch import measure_usage
from standfast.workers.core import WorkerSessionBase
from standfast.workers.errors import WorkerDied
from standfast.workers.interceptors import Interceptor
from standfast.workers.results import SessionInfo, WorkerUsage
from standfast.workers.wire import messages as m


class InspectionMixin(WorkerSessionBase):
    @property
    def info(self) -> SessionInfo:
        """The session as it is now; a copy."""
        talk, beat = self._router, self._last_heartbeat
        telemetry: dict[str, Any] = {"waiting": self._waiting}
        if talk is not None:
            outlet = talk.execution.queue if talk.execution is not None else None
            telemetry |= {
                "control_messages": talk.counts["control"],
                "bulk_messages": talk.counts["bulk"],
                "output_bytes": talk.counts["bytes"],
                "queued_bytes": outlet.buffered_bytes if outlet is not None else 0,
                "general_queue": len(talk.general_queue),
                "general_dropped": talk.general_queue.dropped,
                "violations": talk.protocol.violation_count,
                "open_questions": len(talk.protocol.input_requests),
                "interceptors": [vars(record).copy() for record in self.interceptors.stats.values()],
            }
        return SessionInfo(
            session_id=self.session_id,
            state=self.state,
            created_at=self._created_at,
            last_used_at=self._last_used_at,
            execution_count=self._executions,
            error_count=self._errors,
            memory_usage=beat.memory_usage if beat else 0,
            cpu_percent=beat.cpu_percent if beat else 0.0,
            namespace_size=beat.namespace_size if beat else 0,
            last_heartbeat_at=beat.timestamp if beat else None,
            cause=self._exit_cause,
            metadata=dict(self.metadata),
            metrics=dict(self.metrics) if self.config.enable_metrics else {},
            telemetry=telemetry,
        )

    # -- messages

    def add_message_interceptor(self, interceptor: Interceptor) -> None:
        """Show every incoming message to ``interceptor`` before it is routed. It must be quick."""
        self.interceptors.add(interceptor)

    def remove_message_interceptor(self, interceptor: Interceptor) -> None:
        self.interceptors.remove(interceptor)

    async def send_message(self, message: m.Message) -> None:
        """Send any message as it is. Replies that belong to no call arrive by ``receive_message``."""
        talk = self._require_router()
        talk.require_connection().send(message)
        if talk.execution is not None:
            talk.require_connection().wake()

    async def receive_message(
        self, message_type: type[m.Message] | None = None, timeout: float | None = None
    ) -> m.Message:
        """The oldest message (of this type) of the general queue: background output, late and stray ones."""
        talk = self._require_router()
        async with asyncio.timeout(timeout):
            while True:
                message = talk.general_queue.pop_oldest(message_type)
                if message is not None:
                    return message
                if talk.cause is not None:
                    raise WorkerDied(talk.cause)
                talk.message_arrived.clear()
                await talk.message_arrived.wait()

    # -- introspection

    async def namespace(self) -> tuple[m.NamespaceEntry, ...]:
        """The user's variables: names, types, sizes; never values. Answered also while code runs."""
        reply = await self._require_router().request(m.NamespaceMessage())
        return cast(m.NamespaceMessage, reply).entries

    async def complete(self, code: str) -> tuple[str, ...]:
        """Names that could continue this text."""
        reply = await self._require_router().request(m.CompletionMessage(code=code))
        return cast(m.CompletionMessage, reply).matches

    async def heartbeat(self) -> m.HeartbeatMessage:
        """Ask the worker for a sign of life, also while it runs code."""
        return cast(m.HeartbeatMessage, await self._require_router().request(m.HeartbeatMessage()))

    def usage(self) -> WorkerUsage:
        """What the worker and its processes use, by the kernel's books."""
        return (
            measure_usage(self._resources.process_group.supervisor_pid)
            if self._resources is not None
            else WorkerUsage()
        )
