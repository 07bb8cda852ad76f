"""What the host asks of a worker beside running code: answered once each, with what went wrong if need be."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.workers.child import checkpoints, inspection, measures
from holdfast.workers.child.post import Gone
from holdfast.workers.wire import messages as m

if TYPE_CHECKING:
    from holdfast.workers.child.runtime import Runtime


class Requests:
    def __init__(self, runtime: "Runtime") -> None:
        self._runtime, self._namespace, self._cells = runtime, runtime.namespace, runtime.cells
        self._send = runtime.post.send
        self.answers: dict[type, Callable[[Any], None]] = {
            m.NamespaceMessage: self._guarded(self._summarise),
            m.CompletionMessage: self._guarded(self._complete),
            m.HeartbeatMessage: self._guarded(self._beat),
            m.CheckpointMessage: self._guarded(self._checkpoint),
            m.RestoreMessage: self._guarded(self._restore),
            m.SnapshotMessage: self._guarded(runtime.snapshots.answer),
        }

    def _guarded(self, work: Callable[[Any], None]) -> Callable[[Any], None]:
        """Whatever goes wrong with a request is its answer; the worker, and code that runs, go on."""

        def answered(message: m.Message) -> None:
            try:
                work(message)
            except (Gone, BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as problem:  # noqa: BLE001 - also what an object of the user raises
                self._send(measures.failure(message.id, problem))

        return answered

    def _summarise(self, message: m.NamespaceMessage) -> None:
        self._send(m.NamespaceMessage(of=message.id, entries=inspection.entries(self._namespace)))

    def _complete(self, message: m.CompletionMessage) -> None:
        matches = inspection.completions(self._namespace, message.code)
        self._send(m.CompletionMessage(of=message.id, matches=matches))

    def _beat(self, message: m.HeartbeatMessage) -> None:
        spent, percent = self._runtime.meter.since_last()
        self._send(
            m.HeartbeatMessage(
                of=message.id,
                memory_usage=measures.resident(),
                cpu_percent=percent,
                cpu_seconds=spent,
                namespace_size=len(inspection.user_names(self._namespace)),
                busy=self._runtime.current is not None,
            )
        )

    def _checkpoint(self, message: m.CheckpointMessage) -> None:
        self._send(checkpoints.save(self._cells, message))

    def _restore(self, message: m.RestoreMessage) -> None:
        self._send(checkpoints.load(self._cells, message))
