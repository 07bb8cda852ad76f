"""The message loop of a worker, on its main thread.

Between cells it blocks on the socket. While a cell runs, the host sends a signal for messages that cannot wait; the
signal handler answers requests and raises KeyboardInterrupt inside user code. User code is never traced, and there
is no helper thread.
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

from standfast.workers.child import captures, checkpoints, random_generators, resources, signals
from standfast.workers.child.cells import CellRunner, format_exception_message, format_traceback, make_error_reply
from standfast.workers.child.channel import HostChannel, HostDisconnected
from standfast.workers.child.display import DisplayPublisher
from standfast.workers.child.sandbox.syscalls import set_signal
from standfast.workers.child.snapshots import SNAPSHOTS_SUPPORTED, CannotCopy, ProcessSnapshots
from standfast.workers.child.stdin import InputHandler
from standfast.workers.child.streams import StandardStreams, flush_streams
from standfast.workers.wire import messages as m
from standfast.workers.wire.control import StartWorkerCommand
from standfast.workers.wire.frames import FrameTooLarge


class RequestHandlers:
    """Answers the requests that do not run code."""

    def __init__(self, worker_loop: "WorkerLoop") -> None:
        self._worker_loop = worker_loop
        self._namespace, self._cell_runner = worker_loop.namespace, worker_loop.cell_runner
        self._send = worker_loop.channel.send
        self.handlers: dict[type, Callable[[Any], None]] = {
            m.NamespaceMessage: self._reply_with_errors(self._describe_namespace),
            m.CompletionMessage: self._reply_with_errors(self._find_completions),
            m.HeartbeatMessage: self._reply_with_errors(self._report_heartbeat),
            m.CheckpointMessage: self._reply_with_errors(self._save_checkpoint),
            m.RestoreMessage: self._reply_with_errors(self._restore_checkpoint),
            m.SnapshotMessage: self._reply_with_errors(worker_loop.snapshots.handle_request),
            m.CaptureMessage: self._reply_with_errors(lambda message: captures.capture(worker_loop, message)),
            m.RestoreWorkspaceMessage: self._reply_with_errors(lambda message: captures.restore(worker_loop, message)),
        }

    def _reply_with_errors(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """Reply with an ErrorMessage when ``handler`` fails; the worker and running code are not affected."""

        def handle(message: m.Message) -> None:
            try:
                handler(message)
            except (HostDisconnected, BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as problem:  # noqa: BLE001 - objects of the user can raise anything
                self._send(make_error_reply(message.id, problem))

        return handle

    def _describe_namespace(self, message: m.NamespaceMessage) -> None:
        self._send(m.NamespaceMessage(of=message.id, entries=checkpoints.describe_namespace(self._namespace)))

    def _find_completions(self, message: m.CompletionMessage) -> None:
        matches = checkpoints.find_completions(self._namespace, message.code)
        self._send(m.CompletionMessage(of=message.id, matches=matches))

    def _report_heartbeat(self, message: m.HeartbeatMessage) -> None:
        cpu_seconds, percent = self._worker_loop.meter.measure_cpu()
        self._send(
            m.HeartbeatMessage(
                of=message.id,
                memory_usage=resources.get_resident_size(),
                cpu_percent=percent,
                cpu_seconds=cpu_seconds,
                namespace_size=len(checkpoints.list_user_names(self._namespace)),
                busy=self._worker_loop.current_execution is not None,
            )
        )

    def _save_checkpoint(self, message: m.CheckpointMessage) -> None:
        self._send(checkpoints.save_checkpoint(self._cell_runner, message))

    def _restore_checkpoint(self, message: m.RestoreMessage) -> None:
        self._send(checkpoints.restore_checkpoint(self._cell_runner, message))


WAKE_SIGNAL: int = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_SIGINT, _SIG_IGN = int(signal.SIGINT), int(signal.SIG_IGN)
# On Linux the host can see that the worker has read the code. Otherwise the worker sends the acknowledgement at once:
# a timer for it would need a signal, which interrupts sleeping C code.
_HOST_DETECTS_RECEIPT = sys.platform.startswith("linux")
# The key of the interrupt among the pending handlers. No signal has this number.
_INTERRUPT_KEY = 0
FEATURES: tuple[str, ...] = ("ack", "display", "input", "checkpoint", "namespace", "completion")
if SNAPSHOTS_SUPPORTED:
    FEATURES += ("snapshot", "transactions", "capture")


class ShutdownRequested(Exception):
    """The host asked the worker to exit."""


class WorkerLoop:
    """Receives the messages of the host, runs code and answers requests."""

    def __init__(
        self,
        channel: HostChannel,
        handover_socket: socket.socket,
        command: StartWorkerCommand,
        *,
        namespace: dict[str, Any],
        streams: StandardStreams,
    ) -> None:
        self.channel, self.command, self.namespace, self.streams = channel, command, namespace, streams
        self.settings = command.settings
        self.token = command.token
        self.notes: tuple[str, ...] = ()
        self.cell_runner = CellRunner(namespace)
        self.snapshots = ProcessSnapshots(self, handover_socket)
        self.input_handler = InputHandler(self)
        self.display_publisher = DisplayPublisher(self)
        self.current_execution: str | None = None
        self.work_directory = ""
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
        # Answered while code runs. Other messages wait for the end of the cell.
        self._urgent_types = {
            m.NamespaceMessage, m.CompletionMessage, m.HeartbeatMessage, m.CancelMessage, m.InterruptMessage,
            m.ShutdownMessage,
        }  # fmt: skip

    @signals.report_signal_errors
    def serve(self) -> int:
        """Handle messages until the host asks the worker to exit or disconnects. Returns the exit status."""
        self.work_directory = os.getcwd()
        signals.install()
        signals.wrap_fork_functions()
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
        handler = self._handlers.get(type(message))
        if handler is None:
            self._send_protocol_error(f"a worker does not accept a {type(message).__name__}")
            return
        handler(message)

    @signals.defer_signals
    def process_urgent_messages(self) -> None:
        """Handle the urgent messages that have arrived while code runs, and leave the others in the inbox."""
        inbox, kept = self.channel.inbox, list[m.AnyMessage]()
        try:
            self.channel.read_available()
            # Handling a message may take so long that a further signal calls this again, inside of it.
            while inbox:
                message = inbox.popleft()
                if type(message) in self._urgent_types:
                    self.dispatch(message)
                elif not isinstance(message, m.InputResponseMessage) or not self.input_handler.deliver_to_thread(
                    message
                ):
                    kept.append(message)
        except (HostDisconnected, ShutdownRequested, BrokenPipeError, ConnectionResetError):
            os._exit(0)
        finally:
            inbox.extendleft(reversed(kept))

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
        previous = set_signal(_SIGINT, _SIG_IGN)
        with contextlib.suppress(OSError):
            os.killpg(0, _SIGINT)
        # None means a handler that was not set from Python and cannot be restored.
        set_signal(_SIGINT, signals.DeferrableHandler(self._on_sigint) if previous is None else previous)
        raise KeyboardInterrupt

    was_interrupted = is_wake_pending = False

    # -- message handlers

    def _handle_hello(self, message: m.HelloMessage) -> None:
        common = [version for version in message.versions if version in m.PROTOCOL_VERSIONS]
        if not common:
            self._send_protocol_error(f"no common protocol version: {message.versions} and {m.PROTOCOL_VERSIONS}")
            return
        features = tuple(feature for feature in FEATURES if not message.features or feature in message.features)
        settings = {"python": sys.version.split()[0], "pid": os.getpid(), "notes": list(self.notes)}
        self.channel.send(m.HelloMessage(versions=(max(common),), features=features, settings=settings))
        self.channel.send(m.ReadyMessage(session_id=self.command.session_id, capabilities=features))

    def _handle_execute(self, message: m.ExecuteMessage) -> None:
        # Sent with the first message of the code. A result that comes first implies the acknowledgement.
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
            # Without a snapshot the code must not run.
            self.channel.send(make_error_reply(message.id, problem))
            return
        if resumed:
            return
        outcome = self._run_execution(message)
        if message.transaction_policy == "rollback_always" or isinstance(outcome, m.ErrorMessage):
            rolled_back = msgspec.structs.replace(outcome, rolled_back=True)
            try:
                self.snapshots.hand_over(point, before_exit=lambda: self._send_outcome(rolled_back, message.id))
            except CannotCopy as problem:
                outcome = make_error_reply(message.id, problem)
        self.snapshots.drop(point)
        self._send_outcome(outcome, message.id)

    def _run_execution(self, message: m.ExecuteMessage) -> m.ResultMessage | m.ErrorMessage:
        signals.pending_handlers.pop(_INTERRUPT_KEY, None)
        self.was_interrupted = False
        started, cpu_started = time.perf_counter(), time.process_time()
        error: BaseException | None = None
        value: Any = None
        text = ""
        data: dict[str, Any] = {}
        self.input_handler.is_allowed = message.allow_input is not False and self.settings.get("allow_input", True)
        self.current_execution = message.id
        try:
            value, text, data = self._run_cell(message)
        except BaseException as raised:  # noqa: BLE001 - everything that user code raises is a result
            error = raised
            try:
                self.display_publisher.display_open_figures()
            except KeyboardInterrupt as interrupt:
                error = interrupt
            except BaseException:  # noqa: BLE001, S110 - the error of the code is reported
                pass
        self.current_execution = None
        self.input_handler.close_pending()
        flush_streams()
        signals.reap_lost_children()
        if self.snapshots.is_foreign_fork:
            # User code forked, and this is the child. Only the parent may report to the host.
            os._exit(0)
        elapsed = time.perf_counter() - started
        usage = self.meter.measure_execution(time.process_time() - cpu_started, elapsed)
        if error is None:
            return m.ResultMessage(
                execution_id=message.id, value=value, repr=text, data=data, execution_time=elapsed, usage=usage
            )
        return m.ErrorMessage(
            execution_id=message.id,
            exception_type=type(error).__name__[:1000],
            exception_message=format_exception_message(error),
            traceback=format_traceback(error, limit=self.settings.get("repr_limit", 100_000)),
            execution_time=elapsed,
            usage=usage,
            interrupted=self.was_interrupted and isinstance(error, KeyboardInterrupt),
        )

    @signals.interruptible
    def _run_cell(self, message: m.ExecuteMessage) -> tuple[Any, str, dict[str, Any]]:
        if self.is_wake_pending:
            # The signal came before the code started and may be meant for it.
            self.is_wake_pending = False
            self.process_urgent_messages()
            signals.run_pending_handlers(sys._getframe())
        if message.seed is not None:
            random_generators.seed(message.seed)
        last = self.cell_runner.run(message.code, filename=message.filename, capture_source=message.capture_source)
        return self.display_publisher.render_value(last)

    def _send_outcome(self, outcome: m.ResultMessage | m.ErrorMessage, execution_id: str) -> None:
        try:
            self.channel.send_outcome(outcome)
        except (FrameTooLarge, TypeError, ValueError, OverflowError, RecursionError) as problem:
            error = make_error_reply(execution_id, problem)
            self.channel.send_outcome(msgspec.structs.replace(error, rolled_back=outcome.rolled_back))

    def _handle_interrupt(self, message: m.CancelMessage | m.InterruptMessage) -> None:
        is_running = self.current_execution is not None and message.execution_id in (None, self.current_execution)
        note = "interrupting" if is_running else "not running"
        self.channel.send(m.AckMessage(of=message.id, execution_id=message.execution_id, note=note))
        if is_running:
            signals.pending_handlers[_INTERRUPT_KEY] = self._deliver_interrupt

    def _send_protocol_error(self, text: str) -> None:
        self.channel.send(m.ErrorMessage(exception_type="ProtocolError", exception_message=text))

    def _handle_shutdown(self, _message: m.ShutdownMessage) -> None:
        raise ShutdownRequested
