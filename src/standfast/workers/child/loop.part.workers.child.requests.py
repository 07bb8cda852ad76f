"""What the host asks of a worker beside running code: answered once each, with what went wrong if need be."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.workers.child import checkpoints, inspection, measures
from holdfast.workers.child.post import HostDisconnected
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import WorkerLoop


class RequestHandlers:
    def __init__(self, worker_loop: "WorkerLoop") -> None:
        self._worker_loop, self._namespace, self._cell_runner = (
            worker_loop,
            worker_loop.namespace,
            worker_loop.cell_runner,
        )
        self._send = worker_loop.channel.send
        self.handlers: dict[type, Callable[[Any], None]] = {
            m.NamespaceMessage: self._reply_with_errors(self._describe_namespace),
            m.CompletionMessage: self._reply_with_errors(self._find_completions),
            m.HeartbeatMessage: self._reply_with_errors(self._report_heartbeat),
            m.CheckpointMessage: self._reply_with_errors(self._save_checkpoint),
            m.RestoreMessage: self._reply_with_errors(self._restore_checkpoint),
            m.SnapshotMessage: self._reply_with_errors(worker_loop.snapshots.handle_request),
        }

    def _reply_with_errors(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """Whatever goes wrong with a request is its answer; the worker, and code that runs, go on."""

        def answered(message: m.Message) -> None:
            try:
                handler(message)
            except (HostDisconnected, BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as problem:  # noqa: BLE001 - also what an object of the user raises
                self._send(measures.make_error_reply(message.id, problem))

        return answered

    def _describe_namespace(self, message: m.NamespaceMessage) -> None:
        self._send(m.NamespaceMessage(of=message.id, entries=inspection.describe_namespace(self._namespace)))

    def _find_completions(self, message: m.CompletionMessage) -> None:
        matches = inspection.find_completions(self._namespace, message.code)
        self._send(m.CompletionMessage(of=message.id, matches=matches))

    def _report_heartbeat(self, message: m.HeartbeatMessage) -> None:
        spent, percent = self._worker_loop.meter.measure_cpu()
        self._send(
            m.HeartbeatMessage(
                of=message.id,
                memory_usage=measures.get_resident_size(),
                cpu_percent=percent,
                cpu_seconds=spent,
                namespace_size=len(inspection.list_user_names(self._namespace)),
                busy=self._worker_loop.current_execution is not None,
            )
        )

    def _save_checkpoint(self, message: m.CheckpointMessage) -> None:
        self._send(checkpoints.save_checkpoint(self._cell_runner, message))

    def _restore_checkpoint(self, message: m.RestoreMessage) -> None:
        self._send(checkpoints.restore_checkpoint(self._cell_runner, message))
