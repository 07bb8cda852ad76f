"""``input()`` and ``getpass()`` inside a worker: a question to the host, answered by its id."""

import builtins
import io
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.workers.child.post import Post
from holdfast.workers.child.signals import due, settle, undisturbed
from holdfast.workers.wire.messages import AckMessage, InputMessage, InputResponseMessage

if TYPE_CHECKING:
    from queue import SimpleQueue


class Asker(Protocol):
    """What asking needs of the runtime."""

    post: Post
    current: str | None
    settings: dict[str, Any]

    def attend(self) -> None: ...


class Asking:
    def __init__(self, runtime: Asker) -> None:
        self.runtime = runtime
        self.allowed = True
        self.stdin = Stdin(self)
        self._plain_input = builtins.input
        self._threads: dict[str, SimpleQueue[InputResponseMessage]] = {}

    def input(self, prompt: object = "", /) -> str:
        if sys.stdin is not self.stdin:
            # The code reads from something of its own, as a test of a program would.
            return self._plain_input(prompt)
        return self.ask(str(prompt), password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None) -> str:
        return self.ask(prompt, password=True)

    def ask(self, prompt: str, *, password: bool) -> str:
        """One line from the host.

        EOFError when the host has no more input, TimeoutError after the session's input timeout,
        RuntimeError where the execution does not allow input.
        """
        runtime = self.runtime
        if not self.allowed or runtime.current is None:
            raise RuntimeError("this execution does not allow input()")
        sys.stdout.flush()
        sys.stderr.flush()
        timeout = runtime.settings.get("input_timeout")
        question = InputMessage(prompt=prompt, execution_id=runtime.current, password=password, timeout=timeout)
        main = threading.current_thread() is threading.main_thread()
        answer: InputResponseMessage | None = None
        try:
            answer = self._asked(question) if main else self._asked_by_thread(question)
        finally:
            if answer is None:
                # Nobody waits any more, and the host should know.
                runtime.post.send(AckMessage(of=question.id, note="withdrawn"))
        if answer is None:
            raise TimeoutError(f"input() got no answer within {timeout} seconds")
        if answer.eof:
            raise EOFError("input() has no more answers: the session is closing")
        return answer.data

    def _asked(self, question: InputMessage) -> InputResponseMessage | None:
        post = self.runtime.post
        post.send(question)
        deadline = None if question.timeout is None else time.monotonic() + question.timeout
        # A handler that looked at the mail would take away what is waited for.
        before, post.waiting = post.waiting, True
        try:
            while (answer := self._answer_to(question.id)) is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not post.wait(left):
                    return None
            return answer
        finally:
            post.waiting = before

    @undisturbed
    def _answer_to(self, question: str) -> InputResponseMessage | None:
        """The answer, if it is in; other mail is attended to as while any code runs."""
        inbox = self.runtime.post.inbox
        self.runtime.attend()
        found = None
        for message in inbox:
            if isinstance(message, InputResponseMessage) and message.input_id == question:
                found = message
                inbox.remove(message)
                break
        if due:
            settle(sys._getframe(1))
        return found

    def _asked_by_thread(self, question: InputMessage) -> InputResponseMessage | None:
        """Only the main thread reads the mail; it hands the answer over when it is rung."""
        from queue import Empty, SimpleQueue

        box = self._threads[question.id] = SimpleQueue()
        try:
            self.runtime.post.send(question)
            return box.get(timeout=question.timeout)
        except Empty:
            return None
        finally:
            del self._threads[question.id]

    def deliver(self, answer: InputResponseMessage) -> bool:
        """Give an answer to the thread that waits for it, if one does."""
        box = self._threads.get(answer.input_id)
        if box is not None:
            box.put(answer)
        return box is not None

    def close(self) -> None:
        """The execution is over, and nobody will answer its threads any more."""
        for question in list(self._threads):
            self.deliver(InputResponseMessage(input_id=question, eof=True))


class Stdin(io.TextIOBase):
    """Standard input as a file of lines, each of which is a question to the host; its end is the end of answers.

    Its descriptor is empty, for subprocesses.
    """

    encoding, errors, mode, name = "utf-8", "strict", "r", "<stdin>"

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._held = ""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Stay open: ``exit()`` closes standard input, and the session goes on."""

    def fileno(self) -> int:
        return 0

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        if not self._held:
            self._held = self._answer()
        end = self._held.find("\n") + 1
        return self._taken(end if size is None or size < 0 else min(size, end))

    def read(self, size: int | None = -1, /) -> str:
        most = None if size is None or size < 0 else size
        while (most is None or len(self._held) < most) and (more := self._answer()):
            self._held += more
        return self._taken(len(self._held) if most is None else most)

    def _answer(self) -> str:
        try:
            return self._asking.ask("", password=False) + "\n"
        except EOFError:
            return ""

    def _taken(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken
