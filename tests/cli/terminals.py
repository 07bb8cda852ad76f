"""``standfast`` on a pseudo-terminal, for tests that press its keys."""

import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

import standfast

SOURCE = str(Path(standfast.__file__).parents[1])


class Terminal:
    """A command on a pseudo-terminal: its output, and keys to press."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.shown = ""
        self.raw = ""
        self.pid, self.keys = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update({"TERM": "xterm", "COLUMNS": "200", "PYTHONPATH": SOURCE, **environment})
            os.execv(sys.executable, [sys.executable, "-m", "standfast", *words])

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
            who = "the command" if os.waitpid(self.pid, os.WNOHANG) == (0, 0) else "a process that it left behind"
            pytest.fail(f"{who} still has the terminal: {self.shown!r}")
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.keys)
