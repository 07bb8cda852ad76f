"""``standfast`` on a pseudo-terminal, for tests that press its keys."""

import os
import re
import select
import time
from pathlib import Path

import pytest

from commands import SOURCE, CommandProcess


class Terminal:
    """A command on a pseudo-terminal: its output, and keys to press. ``fresh`` starts a new interpreter for it."""

    def __init__(
        self, process: CommandProcess, folder: Path, *words: str, fresh: bool = False, **environment: str
    ) -> None:
        self.shown = ""
        self.raw = ""
        self.keys, screen = os.openpty()
        command = ("-m", "standfast", *words)
        given = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONPATH": SOURCE, **environment}
        self._command = (
            process.start_fresh(*command, terminal=screen, directory=folder, environment=given)
            if fresh
            else process.start(*command, streams=(screen,) * 3, directory=folder, environment=given, terminal=True)
        )
        os.close(screen)

    def press(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def until(self, text: str, *, seconds: float = 150.0) -> str:
        """Wait for the text; return the output before it since the last call."""
        deadline = time.monotonic() + seconds
        while (found := self.shown.find(text)) < 0:
            assert self.more(deadline - time.monotonic()), f"no {text!r} in {self.shown!r}"
        before, self.shown = self.shown[:found], self.shown[found + len(text) :]
        return before

    def more(self, seconds: float) -> bool:
        if not select.select([self.keys], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self.keys, 65536)
        except OSError:  # the other side is closed
            return False
        text = data.decode(errors="replace")
        self.raw += text
        self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
        return bool(data)

    def ended(self) -> int:
        """Wait for the command to end and return its exit code; its output is in ``shown``."""
        deadline = time.monotonic() + 150.0
        while self.more(deadline - time.monotonic()):
            pass
        if time.monotonic() >= deadline:
            who = "the command" if self._command.poll() is None else "a process that it left behind"
            pytest.fail(f"{who} still has the terminal: {self.shown!r}")
        return self._command.wait()

    def close(self) -> None:
        if self._command.poll() is None:
            self._command.kill()
            self._command.wait()
        os.close(self.keys)
