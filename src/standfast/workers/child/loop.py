"""The worker's loop, on the main thread, between and during cells.

Between cells it blocks on the socket. During a cell the host rings (a signal) when there is mail that
cannot wait; the handler then answers questions and raises KeyboardInterrupt where the user's code stands.
User code is never traced and shares the process with no helper thread.
"""

import builtins
import contextlib
import getpass
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from standfast.workers.child import checkpoints, inspection, resources, signals
from standfast.workers.child.cells import CellRunner, format_traceback
from standfast.workers.child.channel import HostChannel, HostDisconnected
from standfast.workers.child.display import DisplayPublisher
from standfast.workers.child.sandbox.syscalls import set_signal
from standfast.workers.child.snapshots import SNAPSHOTS_SUPPORTED, CannotCopy, SnapshotManager
from standfast.workers.child.stdin import InputHandler
from standfast.workers.child.streams import StandardStreams
from standfast.workers.wire import messages as m
from standfast.workers.wire.control import ForkCommand
from standfast.workers.wire.frames import FrameTooLarge


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
                self._send(resources.make_error_reply(message.id, problem))

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
                memory_usage=resources.get_resident_size(),
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


WAKE_SIGNAL: int = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_SIGINT, _SIG_IGN = int(signal.SIGINT), int(signal.SIG_IGN)
# Where the host can see that code was taken up, it does not wait to be told. A timer here would tell it by a
# signal, which ends the sleep of C code.
_HOST_DETECTS_RECEIPT = sys.platform.startswith("linux")
# No signal has this number.
_INTERRUPT_KEY = 0
FEATURES: tuple[str, ...] = ("ack", "display", "input", "checkpoint", "namespace", "completion")
if SNAPSHOTS_SUPPORTED:
    FEATURES += ("snapshot", "transactions")


class ShutdownRequested(Exception):
    """The host said to shut down."""


class WorkerLoop:
    def __init__(
        self,
        channel: HostChannel,
        handover_socket: socket.socket,
        command: ForkCommand,
        *,
        namespace: dict[str, Any],
        streams: StandardStreams,
    ) -> None:
        self.channel, self.command, self.namespace, self.streams = channel, command, namespace, streams
        self.settings = command.settings
        self.token = command.token
        self.notes: tuple[str, ...] = ()
        self.cell_runner = CellRunner(namespace)
        self.snapshots = SnapshotManager(self, handover_socket)
        self.input_handler = InputHandler(self)
        self.display_publisher = DisplayPublisher(self)
        self.current_execution: str | None = None
        self.meter = resources.UsageMeter()
        self._handlers: dict[type, Callable[[Any], None]] = {
            **RequestHandlers(self).handlers,
            m.HelloMessage: self._handle_hello,
            m.ExecuteMessage: self._handle_execute,
            m.CancelMessage: self._handle_interrupt,
            m.InterruptMessage: self._handle_interrupt,
            m.InputResponseMessage: lambda _: None,
            m.ShutdownMessage: self._handle_shutdown,
        }
        # What is answered while code runs. The rest waits for the end of the cell.
        self._urgent_types = {
            m.NamespaceMessage, m.CompletionMessage, m.HeartbeatMessage, m.CancelMessage, m.InterruptMessage,
            m.ShutdownMessage,
        }  # fmt: skip

    @signals.report_signal_errors
    def serve(self) -> int:
        """Until told to leave. Returns the exit status."""
        signals.install()
        set_signal(WAKE_SIGNAL, self._on_wake_signal)
        set_signal(_SIGINT, signals.DeferrableHandler(self._on_sigint))
        builtins.input = self.input_handler.input
        sys.stdin = sys.__stdin__ = self.input_handler.stdin  # type: ignore[misc, assignment]
        getpass.getpass = self.input_handler.getpass
        builtins.display = self.display_publisher.display  # type: ignore[attr-defined]
        os.register_at_fork(after_in_child=self.snapshots.after_fork_in_child)
        while True:
            try:
                self.dispatch(self.channel.receive())
                if signals.pending_handlers:
                    signals.run_pending_handlers(sys._getframe())
            except (ShutdownRequested, HostDisconnected, BrokenPipeError, ConnectionResetError):
                return 0

    def dispatch(self, message: m.AnyMessage) -> None:
        answer = self._handlers.get(type(message))
        if answer is None:
            self._send_protocol_error(f"a worker has no use for {type(message).__name__}")
            return
        answer(message)

    @signals.defer_signals
    def process_urgent_messages(self) -> None:
        """While code runs: answer the urgent mail that has come, and leave the rest in the inbox."""
        inbox = self.channel.inbox
        try:
            self.channel.read_available()
            for _ in range(len(inbox)):
                message = inbox.popleft()
                if type(message) in self._urgent_types:
                    self.dispatch(message)
                elif not isinstance(message, m.InputResponseMessage) or not self.input_handler.deliver_to_thread(
                    message
                ):
                    inbox.append(message)
        except (HostDisconnected, ShutdownRequested, BrokenPipeError, ConnectionResetError):
            os._exit(0)

    # -- signals

    @signals.defer_signals
    def _on_wake_signal(self, _signum: int, frame: Any) -> None:
        if self.current_execution is None:
            self.is_wake_pending = True
        elif not self.channel.is_waiting_for_input:
            self.process_urgent_messages()
        signals.run_pending_handlers(frame)

    def _on_sigint(self, _signum: int, _frame: Any) -> None:
        if self.current_execution is not None:
            raise KeyboardInterrupt

    @signals.defer_signals
    def _deliver_interrupt(self, _signum: int, _frame: Any) -> None:
        """Interrupt the running code and the processes it started."""
        if self.current_execution is None:
            return
        self.was_interrupted = True
        kept = set_signal(_SIGINT, _SIG_IGN)
        with contextlib.suppress(OSError):
            os.killpg(0, _SIGINT)
        # None: set by something that is not Python, and not ours to put back.
        set_signal(_SIGINT, signals.DeferrableHandler(self._on_sigint) if kept is None else kept)
        raise KeyboardInterrupt

    was_interrupted = is_wake_pending = False

    # -- answers

    def _handle_hello(self, message: m.HelloMessage) -> None:
        common = [version for version in message.versions if version in m.PROTOCOL_VERSIONS]
        if not common:
            self._send_protocol_error(f"no common protocol version: {message.versions} and {m.PROTOCOL_VERSIONS}")
            return
        features = tuple(feature for feature in FEATURES if not message.features or feature in message.features)
        told = {"python": sys.version.split()[0], "pid": os.getpid(), "notes": list(self.notes)}
        self.channel.send(m.HelloMessage(versions=(max(common),), features=features, settings=told))
        self.channel.send(m.ReadyMessage(session_id=self.command.session_id, capabilities=features))

    def _handle_execute(self, message: m.ExecuteMessage) -> None:
        # It leaves with whatever is said first; the result of code that says nothing stands for it.
        self.channel.queue_ack(message.id)
        if message.transaction_policy == "commit_always":
            if not _HOST_DETECTS_RECEIPT:
                self.channel.flush()
            self._send_outcome(self._run_execution(message), message.id)
            return
        self.channel.flush()
        point = f"transaction:{message.id}"
        try:
            resumed, _ = self.snapshots.take(point)
        except CannotCopy as problem:
            # Without a way back nothing is begun.
            self.channel.send(resources.make_error_reply(message.id, problem))
            return
        if resumed:
            return
        outcome = self._run_execution(message)
        if message.transaction_policy == "rollback_always" or isinstance(outcome, m.ErrorMessage):
            undone = msgspec.structs.replace(outcome, rolled_back=True)
            try:
                self.snapshots.hand_over(point, before_exit=lambda: self._send_outcome(undone, message.id))
            except CannotCopy as problem:
                outcome = resources.make_error_reply(message.id, problem)
        self.snapshots.drop(point)
        self._send_outcome(outcome, message.id)

    def _run_execution(self, message: m.ExecuteMessage) -> m.ResultMessage | m.ErrorMessage:
        signals.pending_handlers.pop(_INTERRUPT_KEY, None)
        self.was_interrupted = False
        started, spent = time.perf_counter(), time.process_time()
        error: BaseException | None = None
        value: Any = None
        text = ""
        data: dict[str, Any] = {}
        self.input_handler.is_allowed = message.allow_input is not False and self.settings.get("allow_input", True)
        self.current_execution = message.id
        try:
            value, text, data = self._run_cell(message)
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises is a result
            error = raised
            try:
                self.display_publisher.display_open_figures()
            except KeyboardInterrupt as interrupt:
                error = interrupt
            except BaseException:  # noqa: BLE001, S110 - the code has failed before
                pass
        self.current_execution = None
        self.input_handler.close_pending()
        resources.flush_streams()
        if self.snapshots.is_foreign_fork:
            # The user's code forked and let the copy run on. It has no business with the host.
            os._exit(0)
        took = time.perf_counter() - started
        usage = self.meter.measure_execution(time.process_time() - spent, took)
        if error is None:
            return m.ResultMessage(
                execution_id=message.id, value=value, repr=text, data=data, execution_time=took, usage=usage
            )
        return m.ErrorMessage(
            execution_id=message.id,
            exception_type=type(error).__name__,
            exception_message=resources.format_exception_message(error),
            traceback=format_traceback(error, limit=self.settings.get("repr_limit", 100_000)),
            execution_time=took,
            usage=usage,
            interrupted=self.was_interrupted and isinstance(error, KeyboardInterrupt),
        )

    @signals.interruptible
    def _run_cell(self, message: m.ExecuteMessage) -> tuple[Any, str, dict[str, Any]]:
        if self.is_wake_pending:
            # For this code, it may be, which had not begun.
            self.is_wake_pending = False
            self.process_urgent_messages()
            signals.run_pending_handlers(sys._getframe())
        last = self.cell_runner.run(message.code, filename=message.filename, capture_source=message.capture_source)
        return self.display_publisher.render_value(last)

    def _send_outcome(self, outcome: m.ResultMessage | m.ErrorMessage, execution_id: str) -> None:
        try:
            self.channel.send_outcome(outcome)
        except (FrameTooLarge, TypeError, ValueError, OverflowError, RecursionError) as problem:
            failure = resources.make_error_reply(execution_id, problem)
            self.channel.send_outcome(msgspec.structs.replace(failure, rolled_back=outcome.rolled_back))

    def _handle_interrupt(self, message: m.CancelMessage | m.InterruptMessage) -> None:
        hit = self.current_execution is not None and message.execution_id in (None, self.current_execution)
        note = "interrupting" if hit else "not running"
        self.channel.send(m.AckMessage(of=message.id, execution_id=message.execution_id, note=note))
        if hit:
            signals.pending_handlers[_INTERRUPT_KEY] = self._deliver_interrupt

    def _send_protocol_error(self, text: str) -> None:
        self.channel.send(m.ErrorMessage(exception_type="ProtocolError", exception_message=text))

    def _handle_shutdown(self, _message: m.ShutdownMessage) -> None:
        raise ShutdownRequested
