"""``input()`` and ``getpass()`` inside a worker: a question to the host, answered by its id."""

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


class InputContext(Protocol):
    """What asking needs of the runtime."""

    channel: HostChannel
    current_execution: str | None
    settings: dict[str, Any]

    def process_urgent_messages(self) -> None: ...


class InputHandler:
    def __init__(self, worker_loop: InputContext) -> None:
        self.worker_loop = worker_loop
        self.is_allowed = True
        self.stdin = Stdin(self)
        self._builtin_input = builtins.input
        self._thread_queues: dict[str, SimpleQueue[InputResponseMessage]] = {}

    def input(self, prompt: object = "", /) -> str:
        if sys.stdin is not self.stdin:
            # The code reads from something of its own, as a test of a program would.
            return self._builtin_input(prompt)
        return self.request_input(str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None) -> str:
        return self.request_input(prompt, password=True)

    def request_input(self, prompt: str, *, password: bool) -> str:
        """One line from the host.

        EOFError when the host has no more input, TimeoutError after the session's input timeout,
        RuntimeError where the execution does not allow input.
        """
        runtime = self.worker_loop
        if not self.is_allowed or runtime.current_execution is None:
            raise RuntimeError("this execution does not allow input()")
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = runtime.settings.get("input_timeout")
        question = InputMessage(
            prompt=prompt, execution_id=runtime.current_execution, password=password, timeout=timeout
        )
        main = threading.current_thread() is threading.main_thread()
        answer: InputResponseMessage | None = None
        try:
            answer = self._request_from_main_thread(question) if main else self._request_from_thread(question)
        finally:
            if answer is None:
                # Nobody waits any more, and the host should know.
                runtime.channel.send(AckMessage(of=question.id, note="withdrawn"))
        if answer is None:
            raise TimeoutError(f"input() got no answer within {timeout} seconds")
        if answer.eof:
            raise EOFError("input() has no more answers: the session is closing")
        return answer.data

    def _request_from_main_thread(self, request: InputMessage) -> InputResponseMessage | None:
        post = self.worker_loop.channel
        post.send(request)
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        # A handler that looked at the mail would take away what is waited for.
        before, post.is_waiting_for_input = post.is_waiting_for_input, True
        try:
            while (answer := self._poll_response(request.id)) is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not post.wait(left):
                    return None
            return answer
        finally:
            post.is_waiting_for_input = before

    @defer_signals
    def _poll_response(self, request_id: str) -> InputResponseMessage | None:
        """The answer, if it is in; other mail is attended to as while any code runs."""
        inbox = self.worker_loop.channel.inbox
        self.worker_loop.process_urgent_messages()
        found = None
        for message in inbox:
            if isinstance(message, InputResponseMessage) and message.input_id == request_id:
                found = message
                inbox.remove(message)
                break
        if pending_handlers:
            run_pending_handlers(sys._getframe(1))
        return found

    def _request_from_thread(self, request: InputMessage) -> InputResponseMessage | None:
        """Only the main thread reads the mail; it hands the answer over when it is rung."""
        from queue import Empty, SimpleQueue

        box = self._thread_queues[request.id] = SimpleQueue()
        try:
            self.worker_loop.channel.send(request)
            return box.get(timeout=request.timeout)
        except Empty:
            return None
        finally:
            del self._thread_queues[request.id]

    def deliver_to_thread(self, response: InputResponseMessage) -> bool:
        """Give an answer to the thread that waits for it, if one does."""
        box = self._thread_queues.get(response.input_id)
        if box is not None:
            box.put(response)
        return box is not None

    def close_pending(self) -> None:
        """The execution is over, and nobody will answer its threads any more."""
        for question in list(self._thread_queues):
            self.deliver_to_thread(InputResponseMessage(input_id=question, eof=True))


class Stdin(io.TextIOBase):
    """Standard input as a file of lines, each of which is a question to the host; its end is the end of answers.

    Its descriptor is empty, for subprocesses.
    """

    encoding, errors, mode, name = "utf-8", "strict", "r", "<stdin>"

    def __init__(self, handler: InputHandler) -> None:
        self._handler = handler
        self._buffer = ""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Stay open: ``exit()`` closes standard input, and the session goes on."""

    def fileno(self) -> int:
        return 0

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        if not self._buffer:
            self._buffer = self._request_line()
        end = self._buffer.find("\n") + 1
        return self._take(end if size is None or size < 0 else min(size, end))

    def read(self, size: int | None = -1, /) -> str:
        most = None if size is None or size < 0 else size
        while (most is None or len(self._buffer) < most) and (more := self._request_line()):
            self._buffer += more
        return self._take(len(self._buffer) if most is None else most)

    def _request_line(self) -> str:
        try:
            return self._handler.request_input("", password=False) + "\n"
        except EOFError:
            return ""

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
