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

from holdfast.workers.child import measures, signals
from holdfast.workers.child.asking import Asking
from holdfast.workers.child.cells import Cells
from holdfast.workers.child.post import Gone, Post
from holdfast.workers.child.requests import Requests
from holdfast.workers.child.showing import Showing
from holdfast.workers.child.snapshots import POSSIBLE, CannotCopy, Snapshots
from holdfast.workers.child.streams import Streams
from holdfast.workers.child.syscalls import set_signal
from holdfast.workers.child.tracebacks import describe
from holdfast.workers.wire import messages as m
from holdfast.workers.wire.frames import FrameTooLarge
from holdfast.workers.wire.orders import ForkOrder

DOORBELL: int = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
_INTERRUPT, _IGNORE = int(signal.SIGINT), int(signal.SIG_IGN)
# Where the host can see that code was taken up, it does not wait to be told. A timer here would tell it by a
# signal, which ends the sleep of C code.
_HOST_KNOWS = sys.platform.startswith("linux")
# No signal has this number.
_STRIKE = 0
FEATURES: tuple[str, ...] = ("ack", "display", "input", "checkpoint", "namespace", "completion")
if POSSIBLE:
    FEATURES += ("snapshot", "transactions")


class Leave(Exception):
    """The host said to shut down."""


class Runtime:
    def __init__(
        self, post: Post, lineage: socket.socket, order: ForkOrder, *, namespace: dict[str, Any], streams: Streams
    ) -> None:
        self.post, self.order, self.namespace, self.streams = post, order, namespace, streams
        self.settings = order.settings
        self.token = order.token
        self.notes: tuple[str, ...] = ()
        self.cells = Cells(namespace)
        self.snapshots = Snapshots(self, lineage)
        self.asking = Asking(self)
        self.showing = Showing(self)
        self.current: str | None = None
        self.meter = measures.Meter()
        self._answers: dict[type, Callable[[Any], None]] = {
            **Requests(self).answers,
            m.HelloMessage: self._hello,
            m.ExecuteMessage: self._execute,
            m.CancelMessage: self._interrupt,
            m.InterruptMessage: self._interrupt,
            m.InputResponseMessage: lambda _: None,
            m.ShutdownMessage: self._shutdown,
        }
        # What is answered while code runs. The rest waits for the end of the cell.
        self._urgent = {
            m.NamespaceMessage, m.CompletionMessage, m.HeartbeatMessage, m.CancelMessage, m.InterruptMessage,
            m.ShutdownMessage,
        }  # fmt: skip

    @signals.idle
    def serve(self) -> int:
        """Until told to leave. Returns the exit status."""
        signals.install()
        set_signal(DOORBELL, self._ring)
        set_signal(_INTERRUPT, signals.Guarded(self._sigint))
        builtins.input = self.asking.input
        sys.stdin = sys.__stdin__ = self.asking.stdin  # type: ignore[misc, assignment]
        getpass.getpass = self.asking.getpass
        builtins.display = self.showing.display  # type: ignore[attr-defined]
        os.register_at_fork(after_in_child=self.snapshots.forked)
        while True:
            try:
                self.dispatch(self.post.receive())
                if signals.due:
                    signals.settle(sys._getframe())
            except (Leave, Gone, BrokenPipeError, ConnectionResetError):
                return 0

    def dispatch(self, message: m.AnyMessage) -> None:
        answer = self._answers.get(type(message))
        if answer is None:
            self._complain(f"a worker has no use for {type(message).__name__}")
            return
        answer(message)

    @signals.undisturbed
    def attend(self) -> None:
        """While code runs: answer the urgent mail that has come, and leave the rest in the inbox."""
        inbox = self.post.inbox
        try:
            self.post.glance()
            for _ in range(len(inbox)):
                message = inbox.popleft()
                if type(message) in self._urgent:
                    self.dispatch(message)
                elif not isinstance(message, m.InputResponseMessage) or not self.asking.deliver(message):
                    inbox.append(message)
        except (Gone, Leave, BrokenPipeError, ConnectionResetError):
            os._exit(0)

    # -- signals

    @signals.undisturbed
    def _ring(self, _signum: int, frame: Any) -> None:
        if self.current is None:
            self.rung = True
        elif not self.post.waiting:
            self.attend()
        signals.settle(frame)

    def _sigint(self, _signum: int, _frame: Any) -> None:
        if self.current is not None:
            raise KeyboardInterrupt

    @signals.undisturbed
    def _strike(self, _signum: int, _frame: Any) -> None:
        """Interrupt the running code and the processes it started."""
        if self.current is None:
            return
        self.struck = True
        kept = set_signal(_INTERRUPT, _IGNORE)
        with contextlib.suppress(OSError):
            os.killpg(0, _INTERRUPT)
        # None: set by something that is not Python, and not ours to put back.
        set_signal(_INTERRUPT, signals.Guarded(self._sigint) if kept is None else kept)
        raise KeyboardInterrupt

    struck = rung = False

    # -- answers

    def _hello(self, message: m.HelloMessage) -> None:
        common = [version for version in message.versions if version in m.PROTOCOL_VERSIONS]
        if not common:
            self._complain(f"no common protocol version: {message.versions} and {m.PROTOCOL_VERSIONS}")
            return
        features = tuple(feature for feature in FEATURES if not message.features or feature in message.features)
        told = {"python": sys.version.split()[0], "pid": os.getpid(), "notes": list(self.notes)}
        self.post.send(m.HelloMessage(versions=(max(common),), features=features, settings=told))
        self.post.send(m.ReadyMessage(session_id=self.order.session_id, capabilities=features))

    def _execute(self, message: m.ExecuteMessage) -> None:
        # It leaves with whatever is said first; the result of code that says nothing stands for it.
        self.post.hold(message.id)
        if message.transaction_policy == "commit_always":
            if not _HOST_KNOWS:
                self.post.release()
            self._send_outcome(self._outcome(message), message.id)
            return
        self.post.release()
        point = f"transaction:{message.id}"
        try:
            resumed, _ = self.snapshots.take(point)
        except CannotCopy as problem:
            # Without a way back nothing is begun.
            self.post.send(measures.failure(message.id, problem))
            return
        if resumed:
            return
        outcome = self._outcome(message)
        if message.transaction_policy == "rollback_always" or isinstance(outcome, m.ErrorMessage):
            undone = msgspec.structs.replace(outcome, rolled_back=True)
            try:
                self.snapshots.hand_over(point, farewell=lambda: self._send_outcome(undone, message.id))
            except CannotCopy as problem:
                outcome = measures.failure(message.id, problem)
        self.snapshots.drop(point)
        self._send_outcome(outcome, message.id)

    def _outcome(self, message: m.ExecuteMessage) -> m.ResultMessage | m.ErrorMessage:
        signals.due.pop(_STRIKE, None)
        self.struck = False
        started, spent = time.perf_counter(), time.process_time()
        error: BaseException | None = None
        value: Any = None
        text = ""
        data: dict[str, Any] = {}
        self.asking.allowed = message.allow_input is not False and self.settings.get("allow_input", True)
        self.current = message.id
        try:
            value, text, data = self._run(message)
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises is a result
            error = raised
            try:
                self.showing.figures()
            except KeyboardInterrupt as interrupt:
                error = interrupt
            except BaseException:  # noqa: BLE001, S110 - the code has failed before
                pass
        self.current = None
        self.asking.close()
        measures.flush()
        if self.snapshots.foreign:
            # The user's code forked and let the copy run on. It has no business with the host.
            os._exit(0)
        took = time.perf_counter() - started
        usage = self.meter.execution(time.process_time() - spent, took)
        if error is None:
            return m.ResultMessage(
                execution_id=message.id, value=value, repr=text, data=data, execution_time=took, usage=usage
            )
        return m.ErrorMessage(
            execution_id=message.id,
            exception_type=type(error).__name__,
            exception_message=measures.message_of(error),
            traceback=describe(error, limit=self.settings.get("repr_limit", 100_000)),
            execution_time=took,
            usage=usage,
            interrupted=self.struck and isinstance(error, KeyboardInterrupt),
        )

    @signals.interruptible
    def _run(self, message: m.ExecuteMessage) -> tuple[Any, str, dict[str, Any]]:
        if self.rung:
            # For this code, it may be, which had not begun.
            self.rung = False
            self.attend()
            signals.settle(sys._getframe())
        last = self.cells.run(message.code, filename=message.filename, capture_source=message.capture_source)
        return self.showing.value(last)

    def _send_outcome(self, outcome: m.ResultMessage | m.ErrorMessage, execution: str) -> None:
        try:
            self.post.conclude(outcome)
        except (FrameTooLarge, TypeError, ValueError, OverflowError, RecursionError) as problem:
            failure = measures.failure(execution, problem)
            self.post.conclude(msgspec.structs.replace(failure, rolled_back=outcome.rolled_back))

    def _interrupt(self, message: m.CancelMessage | m.InterruptMessage) -> None:
        hit = self.current is not None and message.execution_id in (None, self.current)
        note = "interrupting" if hit else "not running"
        self.post.send(m.AckMessage(of=message.id, execution_id=message.execution_id, note=note))
        if hit:
            signals.due[_STRIKE] = self._strike

    def _complain(self, text: str) -> None:
        self.post.send(m.ErrorMessage(exception_type="ProtocolError", exception_message=text))

    def _shutdown(self, _message: m.ShutdownMessage) -> None:
        raise Leave
