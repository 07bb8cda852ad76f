"""``input()``, ``getpass()`` and standard input in a worker, which send an input request to the host."""

import builtins
import io
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from standfast.workers.child.channel import HostChannel
from standfast.workers.child.signals import defer_signals, pending_handlers, run_pending_handlers
from standfast.workers.wire.messages import AckMessage, InputMessage, InputResponseMessage

if TYPE_CHECKING:
    from queue import SimpleQueue


_MAX_PROMPT_LENGTH = 10_000


class InputContext(Protocol):
    """What an input request needs of the message loop."""

    channel: HostChannel
    current_execution: str | None
    settings: dict[str, Any]

    def process_urgent_messages(self) -> None: ...


class InputHandler:
    """Sends input requests to the host and returns their responses to the code that waits."""

    def __init__(self, worker_loop: InputContext) -> None:
        self.worker_loop = worker_loop
        self.is_allowed = True
        self.stdin = Stdin(self)
        self._builtin_input = builtins.input
        self._thread_queues: dict[str, SimpleQueue[InputResponseMessage]] = {}

    def input(self, prompt: object = "", /) -> str:
        if sys.stdin is not self.stdin:
            # User code has replaced standard input, as tests of programs do.
            return self._builtin_input(prompt)
        return self.request_input(str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None) -> str:
        return self.request_input(prompt, password=True)

    def request_input(self, prompt: str, *, password: bool) -> str:
        """Ask the host for one line.

        Raises EOFError when the host has no more input, TimeoutError after the session's input timeout, and
        RuntimeError when the execution does not allow input.
        """
        worker_loop = self.worker_loop
        if not self.is_allowed or worker_loop.current_execution is None:
            raise RuntimeError("this execution does not allow input()")
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = worker_loop.settings.get("input_timeout")
        request = InputMessage(
            prompt=prompt[:_MAX_PROMPT_LENGTH],
            execution_id=worker_loop.current_execution,
            password=password,
            timeout=timeout,
        )
        in_main_thread = threading.current_thread() is threading.main_thread()
        response: InputResponseMessage | None = None
        try:
            response = self._request_from_main_thread(request) if in_main_thread else self._request_from_thread(request)
        finally:
            if response is None:
                # The host must not accept a response that nothing waits for.
                worker_loop.channel.send(AckMessage(of=request.id, note="withdrawn"))
        if response is None:
            raise TimeoutError(f"input() got no response within {timeout} seconds")
        if response.eof:
            raise EOFError("input() reached the end of the input: the host has closed it")
        return response.data

    def _request_from_main_thread(self, request: InputMessage) -> InputResponseMessage | None:
        channel = self.worker_loop.channel
        channel.send(request)
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        # The wake signal must not read the messages that are polled here.
        previous, channel.is_waiting_for_input = channel.is_waiting_for_input, True
        try:
            while (response := self._poll_response(request.id)) is None:
                remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not channel.wait(remaining):
                    return None
            return response
        finally:
            channel.is_waiting_for_input = previous

    @defer_signals
    def _poll_response(self, request_id: str) -> InputResponseMessage | None:
        """Return the response if it has arrived. Other urgent messages are handled as while any code runs."""
        inbox = self.worker_loop.channel.inbox
        self.worker_loop.process_urgent_messages()
        response = None
        for message in inbox:
            if isinstance(message, InputResponseMessage) and message.input_id == request_id:
                response = message
                inbox.remove(message)
                break
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))
        return response

    def _request_from_thread(self, request: InputMessage) -> InputResponseMessage | None:
        """Wait for the main thread, which alone reads messages, to pass the response on."""
        from queue import Empty, SimpleQueue

        queue = self._thread_queues[request.id] = SimpleQueue()
        try:
            self.worker_loop.channel.send(request)
            return queue.get(timeout=request.timeout)
        except Empty:
            return None
        finally:
            del self._thread_queues[request.id]

    def deliver_to_thread(self, response: InputResponseMessage) -> bool:
        """Give a response to the thread that waits for it. Returns whether one does."""
        queue = self._thread_queues.get(response.input_id)
        if queue is not None:
            queue.put(response)
        return queue is not None

    def close_pending(self) -> None:
        """End the input requests of threads with EOFError, because the execution has ended."""
        for input_id in list(self._thread_queues):
            self.deliver_to_thread(InputResponseMessage(input_id=input_id, eof=True))


class Stdin(io.TextIOBase):
    """Standard input as a text file. Each line is an input request to the host.

    Its descriptor is ``/dev/null``, so that subprocesses read nothing.
    """

    encoding, errors, mode, name = "utf-8", "strict", "r", "<stdin>"

    def __init__(self, handler: InputHandler) -> None:
        self._handler = handler
        self._buffer = ""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: ``exit()`` closes standard input, which later executions need."""

    def fileno(self) -> int:
        return 0

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        if not self._buffer:
            self._buffer = self._request_line()
        end = self._buffer.find("\n") + 1
        return self._take(end if size is None or size < 0 else min(size, end))

    def read(self, size: int | None = -1, /) -> str:
        limit = None if size is None or size < 0 else size
        while (limit is None or len(self._buffer) < limit) and (line := self._request_line()):
            self._buffer += line
        return self._take(len(self._buffer) if limit is None else limit)

    def _request_line(self) -> str:
        try:
            return self._handler.request_input("", password=False) + "\n"
        except EOFError:
            return ""

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
