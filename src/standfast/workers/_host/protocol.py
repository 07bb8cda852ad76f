"""The protocol with a worker as a state machine: which messages are valid when, and where each is delivered.

It does no I/O: a message goes in, actions come out. Whatever a worker sends, these rules hold:

- There is one execution at a time. Its Ack is delivered first; a result without an Ack implies it.
- All output is delivered before the result: DrainOutput precedes every message that output must not follow.
- Nothing is delivered after a result. Late and unexpected messages go to the general queue.
- A reply is delivered once, to the request that it names.
- Output comes from the pipes only, and input is requested only by code that may do so, a few times at once.
- A worker that sends too many messages against these rules during one execution is killed.
"""

from typing import Literal, final

import msgspec

from standfast.workers.wire import messages as m


@final
class DrainOutput(msgspec.Struct, frozen=True):
    """Read the output pipes before the next action: their content was written before that message."""


class DeliverToExecution(msgspec.Struct, frozen=True):
    """Deliver a message to the caller of an execution. ``is_last`` ends the execution."""

    execution_id: str
    message: m.Message
    is_last: bool = False


class ResolveRequest(msgspec.Struct, frozen=True):
    """Deliver a reply to the request that it answers."""

    request_id: str
    message: m.Message


class DeliverToGeneralQueue(msgspec.Struct, frozen=True):
    """Put a message that belongs to no call into the general queue."""

    message: m.Message


class NotifySession(msgspec.Struct, frozen=True):
    """Deliver a message about the worker itself: handshake and heartbeats."""

    message: m.HelloMessage | m.ReadyMessage | m.HeartbeatMessage


class KillWorker(msgspec.Struct, frozen=True):
    """Kill the worker, because it does not follow the protocol."""

    reason: str


RoutingAction = DrainOutput | DeliverToExecution | ResolveRequest | DeliverToGeneralQueue | NotifySession | KillWorker
MAX_VIOLATIONS = 100
"""How many invalid messages a worker may send from the start of one execution to that of the next."""
MAX_INPUT_REQUESTS = 16
MAX_INPUT_ID_LENGTH = 64
DRAIN_OUTPUT = DrainOutput()
ExecutionPhase = Literal["sent", "acknowledged", "ending"]


class ExecutionInProgress(RuntimeError):
    """An execution is already running."""


class WorkerProtocol:
    """The host's view of the running execution, the pending requests and the open input requests."""

    def __init__(self) -> None:
        self.running_id: str | None = None
        self.phase: ExecutionPhase = "sent"
        self.pending_requests: set[str] = set()
        self.input_requests: dict[str, str] = {}
        self.violation_count = 0
        self._tolerated_count = MAX_VIOLATIONS
        self._ack_presumed = False
        self._allows_input = True

    def start_execution(self, execution_id: str, *, allow_input: bool = True) -> None:
        if self.running_id is not None:
            raise ExecutionInProgress(f"execution {self.running_id} is running")
        self.running_id, self.phase, self._ack_presumed = execution_id, "sent", False
        self._allows_input = allow_input
        self._tolerated_count = self.violation_count + MAX_VIOLATIONS

    def presume_ack(self) -> tuple[DeliverToExecution, ...]:
        """Acknowledge the code in place of a worker that has started it but not sent its Ack yet."""
        if self.running_id is None or self.phase != "sent":
            return ()
        self.phase, self._ack_presumed = "acknowledged", True
        return (
            DeliverToExecution(
                self.running_id, m.AckMessage(of=self.running_id, execution_id=self.running_id, note="presumed")
            ),
        )

    def finish_execution(self) -> None:
        """Allow the next execution, after the last message was delivered."""
        self.running_id = None

    @property
    def is_streaming(self) -> bool:
        """Whether output from the pipes belongs to the running execution."""
        return self.running_id is not None and self.phase != "sent"

    def add_request(self, request_id: str) -> None:
        self.pending_requests.add(request_id)

    def discard_request(self, request_id: str) -> None:
        """Forget a request that was abandoned. A late reply goes to the general queue."""
        self.pending_requests.discard(request_id)

    def close_input_request(self, input_id: str) -> bool:
        """Close an input request. Returns whether it was open."""
        return self.input_requests.pop(input_id, None) is not None

    def receive_message(self, message: m.AnyMessage) -> tuple[RoutingAction, ...]:
        """Return the actions for a message from the worker."""
        match message:
            case m.ResultMessage():
                return self._handle_end(message, message.execution_id)
            case m.AckMessage():
                return self._handle_ack(message)
            case m.ErrorMessage():
                return self._handle_error(message)
            case m.InputMessage():
                return self._handle_input(message)
            case m.DisplayMessage():
                return self._route_during_execution(message, message.execution_id)
            case m.HeartbeatMessage():
                return (NotifySession(message), *self._resolve_request(message, message.of))
            case m.HelloMessage() | m.ReadyMessage():
                return (NotifySession(message),)
            case (
                m.CheckpointMessage()
                | m.RestoreMessage()
                | m.SnapshotMessage()
                | m.CaptureMessage()
                | m.RestoreWorkspaceMessage()
                | m.NamespaceMessage()
                | m.CompletionMessage()
            ):
                return self._resolve_request(message, message.of) or (DeliverToGeneralQueue(message),)
        return self._handle_stray(message)

    def route_output(self, message: m.OutputMessage) -> RoutingAction:
        """Return the action for output from a pipe: to the running execution, or else to the general queue."""
        if self.running_id is not None and self.is_streaming:
            return DeliverToExecution(self.running_id, message)
        return DeliverToGeneralQueue(message)

    def receive_oversized_frame(self, size: int, limit: int) -> tuple[RoutingAction, ...]:
        """Handle a skipped frame. It may have been the result of the running execution, which therefore ends."""
        text = f"the worker sent a message of {size} bytes; the limit is {limit}"
        return *self._record_violation(), *self._end_with_error("FrameTooLarge", text)

    def receive_heavy_frame(self, header: m.MessageHeader) -> tuple[RoutingAction, ...]:
        """Handle a message that was refused for its parts, texts or values. What it belongs to fails."""
        text = (
            "the worker sent a message of too many parts, or with a text or a value above its limit; see "
            "SessionConfig.value_limit and repr_limit"
        )
        violation = self._record_violation()
        if header.of in self.pending_requests:
            error = m.ErrorMessage(exception_type="FrameTooLarge", exception_message=text)
            return *violation, *self._resolve_request(error, header.of)
        if header.type in ("result", "error") and header.execution_id == self.running_id and self.phase != "ending":
            return *violation, *self._end_with_error("FrameTooLarge", text)
        return *violation, _report_to_general_queue("FrameTooLarge", text)

    def receive_invalid_frame(self, problem: str) -> tuple[RoutingAction, ...]:
        """Report a frame that is not a message. The protocol continues."""
        return *self._record_violation(), _report_to_general_queue("ProtocolError", problem)

    def connection_lost(self, cause: str, detail: str) -> tuple[RoutingAction, ...]:
        """End the running execution and fail all pending requests, because the worker has exited."""
        requests, self.pending_requests = self.pending_requests, set()
        self.input_requests.clear()

        def make_error(message_id: str) -> m.ErrorMessage:
            return m.ErrorMessage(
                exception_type="WorkerDied",
                exception_message=detail,
                cause=cause,
                state="lost",
                execution_id=message_id,
            )

        actions: list[RoutingAction] = [ResolveRequest(request, make_error(request)) for request in requests]
        if self.running_id is not None:
            self.phase = "ending"
            actions.append(DeliverToExecution(self.running_id, make_error(self.running_id), is_last=True))
        return tuple(actions)

    # -- handlers of single message types

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
            # The worker has withdrawn the input request.
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
        ack = self.presume_ack()
        self.phase = "ending"
        self.input_requests.clear()
        return *ack, DRAIN_OUTPUT, DeliverToExecution(execution_id, message, is_last=True)

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

    def _handle_input(self, message: m.InputMessage) -> tuple[RoutingAction, ...]:
        requests = self.input_requests
        is_acceptable = self._allows_input and len(requests) < MAX_INPUT_REQUESTS and message.id not in requests
        if not is_acceptable or len(message.id) > MAX_INPUT_ID_LENGTH:
            return self._handle_stray(message)
        actions = self._route_during_execution(message, message.execution_id)
        if isinstance(actions[-1], DeliverToExecution):
            requests[message.id] = message.execution_id
        return actions

    def _handle_stray(self, message: m.Message) -> tuple[RoutingAction, ...]:
        return *self._record_violation(), DeliverToGeneralQueue(message)

    def _record_violation(self) -> tuple[KillWorker, ...]:
        self.violation_count += 1
        if self.violation_count != self._tolerated_count:
            return ()
        return (KillWorker(f"the worker sent {MAX_VIOLATIONS} invalid messages"),)


def _report_to_general_queue(kind: str, text: str) -> DeliverToGeneralQueue:
    return DeliverToGeneralQueue(m.ErrorMessage(exception_type=kind, exception_message=text))
