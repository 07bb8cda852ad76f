"""The agents of the examples on the command line."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from example_processes import EXAMPLES, ROOT

CASES = {
    "support_desk/desk.py": ("Order A7 is broken.", 3, "refund"),
    "approval_bot/releases.py": ("release shop 1.4.2", 3, "release"),
    "call_centre/call_centre.py": ("How much did I get back?", 0, "As we said on the telephone"),
}


@pytest.mark.parametrize("path", CASES)
async def test_an_agent_of_an_example_can_be_run(path: str, tmp_path: Path) -> None:
    to_text, code, expected = CASES[path]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standfast", "run", to_text, "--agent", str(EXAMPLES / path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "STANDFAST_STORE": "sqlite:///terminal.db"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output = (await process.communicate())[0].decode()
    assert process.returncode == code, output
    assert expected in output
