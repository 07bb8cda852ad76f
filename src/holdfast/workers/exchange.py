"""What may be said when, and to whom it is delivered. Pure: no clock, no descriptor, no task.

The rules it keeps, whatever a worker sends:

- one execution at a time; its Ack precedes everything else of it, and a result alone stands for both;
- all output precedes the result (``Drain`` comes before what must not overtake it);
- nothing follows a result; what comes late or for nobody goes to the general queue;
- a reply reaches the request it names, once.
"""

from typing import Literal, final

import msgspec

from holdfast.workers.wire import messages as m


@final
class Drain(msgspec.Struct, frozen=True):
    """Read what the output pipes hold before going on: it was written before what follows."""


class Deliver(msgspec.Struct, frozen=True):
    """To the caller of an execution. ``last`` ends it."""

    execution_id: str
    message: m.Message
    last: bool = False


class Reply(msgspec.Struct, frozen=True):
    """To whoever made a request."""

    request_id: str
    message: m.Message


class General(msgspec.Struct, frozen=True):
    """To the general queue."""

    message: m.Message


class Note(msgspec.Struct, frozen=True):
    """For the session itself: greetings and heartbeats."""

    message: m.HelloMessage | m.ReadyMessage | m.HeartbeatMessage


Step = Drain | Deliver | Reply | General | Note
DRAIN = Drain()
Phase = Literal["sent", "acknowledged", "ending"]


class Busy(RuntimeError):
    """An execution is running; one at a time."""


class Exchange:
    def __init__(self) -> None:
        self.running: str | None = None
        self.phase: Phase = "sent"
        self.requests: set[str] = set()
        self.questions: dict[str, str] = {}
        self.violations = 0
        self._presumed = False

    def start(self, execution_id: str) -> None:
        if self.running is not None:
            raise Busy(f"execution {self.running} is running")
        self.running, self.phase, self._presumed = execution_id, "sent", False

    def presume(self) -> tuple[Deliver, ...]:
        """The worker is known to have taken up the code: acknowledge it for the worker, whose word is late."""
        if self.running is None or self.phase != "sent":
            return ()
        self.phase, self._presumed = "acknowledged", True
        return (Deliver(self.running, m.AckMessage(of=self.running, execution_id=self.running, note="presumed")),)

    def finish(self) -> None:
        """The last message was delivered; the next execution may start."""
        self.running = None

    @property
    def streaming(self) -> bool:
        """Whether text from the pipes belongs to the running execution."""
        return self.running is not None and self.phase != "sent"

    def ask(self, request_id: str) -> None:
        self.requests.add(request_id)

    def forget(self, request_id: str) -> None:
        """The requester gave up; a late reply goes to the general queue."""
        self.requests.discard(request_id)

    def answer(self, input_id: str) -> bool:
        """Whether this question is open; it is closed by being answered."""
        return self.questions.pop(input_id, None) is not None

    def hear(self, message: m.AnyMessage) -> tuple[Step, ...]:
        """What to do about a message from the worker."""
        match message:
            case m.ResultMessage():
                return self._end(message, message.execution_id)
            case m.AckMessage():
                return self._ack(message)
            case m.ErrorMessage():
                return self._error(message)
            case m.InputMessage():
                steps = self._during(message, message.execution_id)
                if isinstance(steps[-1], Deliver):
                    self.questions[message.id] = message.execution_id
                return steps
            case m.DisplayMessage() | m.OutputMessage():
                return self._during(message, message.execution_id)
            case m.HeartbeatMessage():
                return (Note(message), *self._reply(message, message.of))
            case m.HelloMessage() | m.ReadyMessage():
                return (Note(message),)
            case (
                m.CheckpointMessage()
                | m.RestoreMessage()
                | m.SnapshotMessage()
                | m.NamespaceMessage()
                | m.CompletionMessage()
            ):
                return self._reply(message, message.of) or (General(message),)
        return self._stray(message)

    def output(self, message: m.OutputMessage) -> Step:
        """Where text from a pipe goes: to the execution that is running, else to nobody in particular."""
        if self.running is not None and self.streaming:
            return Deliver(self.running, message)
        return General(message)

    def oversize(self, size: int, limit: int) -> tuple[Step, ...]:
        """A frame was skipped. If code is running it may have been the result, so the execution ends here."""
        self.violations += 1
        text = f"the worker sent {size} bytes in one message; the limit is {limit}"
        return self._fault("FrameTooLarge", text)

    def garbage(self, problem: str) -> tuple[Step, ...]:
        """A frame held no message. It is reported, and the exchange goes on."""
        self.violations += 1
        return (General(m.ErrorMessage(exception_type="ProtocolError", exception_message=problem)),)

    def lost(self, cause: str, detail: str) -> tuple[Step, ...]:
        """The worker is gone: everyone who waits is told, now."""
        requests, self.requests = self.requests, set()
        self.questions.clear()

        def gone(of: str) -> m.ErrorMessage:
            return m.ErrorMessage(
                exception_type="WorkerDied",
                exception_message=detail,
                cause=cause,
                state="lost",
                execution_id=of,
            )

        steps: list[Step] = [Reply(request, gone(request)) for request in requests]
        if self.running is not None:
            self.phase = "ending"
            steps.append(Deliver(self.running, gone(self.running), last=True))
        return tuple(steps)

    # -- cases

    def _ack(self, message: m.AckMessage) -> tuple[Step, ...]:
        if message.of in self.requests:
            return self._reply(message, message.of)
        if message.of == self.running and self.phase == "sent":
            self.phase = "acknowledged"
            return (Deliver(message.of, message),)
        if message.of == self.running and self._presumed:
            self._presumed = False
            return ()
        if message.of in self.questions:
            # The code that asked waits no longer.
            del self.questions[message.of]
            return ()
        return self._stray(message)

    def _during(self, message: m.Message, execution_id: str) -> tuple[Step, ...]:
        if execution_id and execution_id == self.running and self.phase == "acknowledged":
            return DRAIN, Deliver(execution_id, message)
        if execution_id:
            return self._stray(message)
        return DRAIN, General(message)

    def _end(self, message: m.Message, execution_id: str) -> tuple[Step, ...]:
        if execution_id != self.running or self.phase == "ending":
            return self._stray(message)
        unsaid = self.presume()
        self.phase = "ending"
        self.questions.clear()
        return *unsaid, DRAIN, Deliver(execution_id, message, last=True)

    def _error(self, message: m.ErrorMessage) -> tuple[Step, ...]:
        if message.execution_id in self.requests:
            return self._reply(message, message.execution_id)
        if message.execution_id is None:
            return (General(message),)
        return self._end(message, message.execution_id)

    def _fault(self, kind: str, text: str) -> tuple[Step, ...]:
        error = m.ErrorMessage(exception_type=kind, exception_message=text, execution_id=self.running)
        if self.running is None:
            return (General(error),)
        self.phase = "ending"
        return DRAIN, Deliver(self.running, error, last=True)

    def _reply(self, message: m.Message, request: str) -> tuple[Step, ...]:
        if request not in self.requests:
            return ()
        self.requests.discard(request)
        return (Reply(request, message),)

    def _stray(self, message: m.Message) -> tuple[Step, ...]:
        self.violations += 1
        return (General(message),)
