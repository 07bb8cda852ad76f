"""What may be said when, and to whom it is delivered. Pure: no clock, no descriptor, no task.

The rules it keeps, whatever a worker sends:

- one execution at a time; its Ack precedes everything else of it, and a result alone stands for both;
- all output precedes the result (``Drain`` comes before what must not overtake it);
- nothing follows a result; what comes late or for nobody goes to the general queue;
- a reply reaches the request it names, once.
"""

from typing import Literal, final

import msgspec

from standfast.workers.wire import messages as m


@final
class DrainOutput(msgspec.Struct, frozen=True):
    """Read what the output pipes hold before going on: it was written before what follows."""


class DeliverToExecution(msgspec.Struct, frozen=True):
    """To the caller of an execution. ``last`` ends it."""

    execution_id: str
    message: m.Message
    is_last: bool = False


class ResolveRequest(msgspec.Struct, frozen=True):
    """To whoever made a request."""

    request_id: str
    message: m.Message


class DeliverToGeneralQueue(msgspec.Struct, frozen=True):
    """To the general queue."""

    message: m.Message


class NotifySession(msgspec.Struct, frozen=True):
    """For the session itself: greetings and heartbeats."""

    message: m.HelloMessage | m.ReadyMessage | m.HeartbeatMessage


RoutingAction = DrainOutput | DeliverToExecution | ResolveRequest | DeliverToGeneralQueue | NotifySession
DRAIN_OUTPUT = DrainOutput()
ExecutionPhase = Literal["sent", "acknowledged", "ending"]


class ExecutionInProgress(RuntimeError):
    """An execution is running; one at a time."""


class WorkerProtocol:
    def __init__(self) -> None:
        self.running_id: str | None = None
        self.phase: ExecutionPhase = "sent"
        self.pending_requests: set[str] = set()
        self.input_requests: dict[str, str] = {}
        self.violation_count = 0
        self._ack_presumed = False

    def start_execution(self, execution_id: str) -> None:
        if self.running_id is not None:
            raise ExecutionInProgress(f"execution {self.running_id} is running")
        self.running_id, self.phase, self._ack_presumed = execution_id, "sent", False

    def presume_ack(self) -> tuple[DeliverToExecution, ...]:
        """The worker is known to have taken up the code: acknowledge it for the worker, whose word is late."""
        if self.running_id is None or self.phase != "sent":
            return ()
        self.phase, self._ack_presumed = "acknowledged", True
        return (
            DeliverToExecution(
                self.running_id, m.AckMessage(of=self.running_id, execution_id=self.running_id, note="presumed")
            ),
        )

    def finish_execution(self) -> None:
        """The last message was delivered; the next execution may start."""
        self.running_id = None

    @property
    def is_streaming(self) -> bool:
        """Whether text from the pipes belongs to the running execution."""
        return self.running_id is not None and self.phase != "sent"

    def add_request(self, request_id: str) -> None:
        self.pending_requests.add(request_id)

    def discard_request(self, request_id: str) -> None:
        """The requester gave up; a late reply goes to the general queue."""
        self.pending_requests.discard(request_id)

    def close_input_request(self, input_id: str) -> bool:
        """Whether this question is open; it is closed by being answered."""
        return self.input_requests.pop(input_id, None) is not None

    def receive_message(self, message: m.AnyMessage) -> tuple[RoutingAction, ...]:
        """What to do about a message from the worker."""
        match message:
            case m.ResultMessage():
                return self._handle_end(message, message.execution_id)
            case m.AckMessage():
                return self._handle_ack(message)
            case m.ErrorMessage():
                return self._handle_error(message)
            case m.InputMessage():
                steps = self._route_during_execution(message, message.execution_id)
                if isinstance(steps[-1], DeliverToExecution):
                    self.input_requests[message.id] = message.execution_id
                return steps
            case m.DisplayMessage() | m.OutputMessage():
                return self._route_during_execution(message, message.execution_id)
            case m.HeartbeatMessage():
                return (NotifySession(message), *self._resolve_request(message, message.of))
            case m.HelloMessage() | m.ReadyMessage():
                return (NotifySession(message),)
            case (
                m.CheckpointMessage()
                | m.RestoreMessage()
                | m.SnapshotMessage()
                | m.NamespaceMessage()
                | m.CompletionMessage()
            ):
                return self._resolve_request(message, message.of) or (DeliverToGeneralQueue(message),)
        return self._handle_stray(message)

    def route_output(self, message: m.OutputMessage) -> RoutingAction:
        """Where text from a pipe goes: to the execution that is running, else to nobody in particular."""
        if self.running_id is not None and self.is_streaming:
            return DeliverToExecution(self.running_id, message)
        return DeliverToGeneralQueue(message)

    def receive_oversized_frame(self, size: int, limit: int) -> tuple[RoutingAction, ...]:
        """A frame was skipped. If code is running it may have been the result, so the execution ends here."""
        self.violation_count += 1
        text = f"the worker sent {size} bytes in one message; the limit is {limit}"
        return self._end_with_error("FrameTooLarge", text)

    def receive_invalid_frame(self, problem: str) -> tuple[RoutingAction, ...]:
        """A frame held no message. It is reported, and the exchange goes on."""
        self.violation_count += 1
        return (DeliverToGeneralQueue(m.ErrorMessage(exception_type="ProtocolError", exception_message=problem)),)

    def connection_lost(self, cause: str, detail: str) -> tuple[RoutingAction, ...]:
        """The worker is gone: everyone who waits is told, now."""
        requests, self.pending_requests = self.pending_requests, set()
        self.input_requests.clear()

        def gone(of: str) -> m.ErrorMessage:
            return m.ErrorMessage(
                exception_type="WorkerDied",
                exception_message=detail,
                cause=cause,
                state="lost",
                execution_id=of,
            )

        steps: list[RoutingAction] = [ResolveRequest(request, gone(request)) for request in requests]
        if self.running_id is not None:
            self.phase = "ending"
            steps.append(DeliverToExecution(self.running_id, gone(self.running_id), is_last=True))
        return tuple(steps)

    # -- cases

    def _handle_ack(self, message: m.AckMessage) -> tuple[RoutingAction, ...]:
        if message.of in self.pending_requests:
            return self._resolve_request(message, message.of)
        if message.of == self.running_id and self.phase == "sent":
            self.phase = "acknowledged"
            return (DeliverToExecution(message.of, message),)
        if message.of == self.running_id and self._ack_presumed:
            self._ack_presumed = False
            return ()
        if message.of in self.input_requests:
            # The code that asked waits no longer.
            del self.input_requests[message.of]
            return ()
        return self._handle_stray(message)

    def _route_during_execution(self, message: m.Message, execution_id: str) -> tuple[RoutingAction, ...]:
        if execution_id and execution_id == self.running_id and self.phase == "acknowledged":
            return DRAIN_OUTPUT, DeliverToExecution(execution_id, message)
        if execution_id:
            return self._handle_stray(message)
        return DRAIN_OUTPUT, DeliverToGeneralQueue(message)

    def _handle_end(self, message: m.Message, execution_id: str) -> tuple[RoutingAction, ...]:
        if execution_id != self.running_id or self.phase == "ending":
            return self._handle_stray(message)
        unsaid = self.presume_ack()
        self.phase = "ending"
        self.input_requests.clear()
        return *unsaid, DRAIN_OUTPUT, DeliverToExecution(execution_id, message, is_last=True)

    def _handle_error(self, message: m.ErrorMessage) -> tuple[RoutingAction, ...]:
        if message.execution_id in self.pending_requests:
            return self._resolve_request(message, message.execution_id)
        if message.execution_id is None:
            return (DeliverToGeneralQueue(message),)
        return self._handle_end(message, message.execution_id)

    def _end_with_error(self, kind: str, text: str) -> tuple[RoutingAction, ...]:
        error = m.ErrorMessage(exception_type=kind, exception_message=text, execution_id=self.running_id)
        if self.running_id is None:
            return (DeliverToGeneralQueue(error),)
        self.phase = "ending"
        return DRAIN_OUTPUT, DeliverToExecution(self.running_id, error, is_last=True)

    def _resolve_request(self, message: m.Message, request_id: str) -> tuple[RoutingAction, ...]:
        if request_id not in self.pending_requests:
            return ()
        self.pending_requests.discard(request_id)
        return (ResolveRequest(request_id, message),)

    def _handle_stray(self, message: m.Message) -> tuple[RoutingAction, ...]:
        self.violation_count += 1
        return (DeliverToGeneralQueue(message),)
