"""``input()`` and ``getpass()`` inside a worker: a question to the host, answered by its id."""

import builtins
import io
import sys
import time
from typing import Any, Protocol

from holdfast.workers.child.post import Post
from holdfast.workers.wire.messages import InputMessage, InputResponseMessage


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
        runtime.post.send(question)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answer = self._next(left)
            if answer is None:
                raise TimeoutError(f"input() got no answer within {timeout} seconds")
            if answer.input_id == question.id:
                if answer.eof:
                    raise EOFError("input() has no more answers: the session is closing")
                return answer.data

    def _next(self, timeout: float | None) -> InputResponseMessage | None:
        """The next answer; other mail is attended to as while any code runs."""
        post = self.runtime.post
        held = []
        try:
            while True:
                message = post.receive(timeout)
                if message is None or isinstance(message, InputResponseMessage):
                    return message
                post.inbox.appendleft(message)
                self.runtime.attend()
                if post.inbox and post.inbox[0] is message:
                    held.append(post.inbox.popleft())
        finally:
            post.inbox.extendleft(reversed(held))


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
