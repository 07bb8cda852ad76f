"""The agents of the examples on the command line."""

import os
from pathlib import Path

import pytest
from example_processes import EXAMPLES

from commands import CommandProcess

CASES = {
    "support_desk/desk.py": ("Order A7 is broken.", 3, "refund"),
    "approval_bot/releases.py": ("release shop 1.4.2", 3, "release"),
    "call_centre/call_centre.py": ("How much did I get back?", 0, "As we said on the telephone"),
}


@pytest.mark.parametrize("path", CASES)
def test_an_agent_of_an_example_can_be_run(path: str, tmp_path: Path, command_process: CommandProcess) -> None:
    to_text, code, expected = CASES[path]
    done = command_process.run(
        "-m", "standfast", "run", to_text, "--agent", str(EXAMPLES / path),
        directory=tmp_path, environment={**os.environ, "STANDFAST_STORE": "sqlite:///terminal.db"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert expected in done.stdout + done.stderr
