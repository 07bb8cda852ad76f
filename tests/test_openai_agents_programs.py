"""Programs written for openai-agents do the same on standfast: same output, same errors, same requests.

What they do on openai-agents is recorded by ``make programs``, which runs them on both libraries.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import agents
import pytest
from compat.programs_check import PROGRAMS, find_differences, read_record, run_on


def test_every_public_name_is_used_by_a_program() -> None:
    words = {word for path in PROGRAMS.glob("*.py") for word in re.findall(r"\w+", path.read_text())}
    assert set(agents.__all__) - words == set()


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return run_on("standfast")


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_program_does_the_same_as_on_openai_agents(program: str, results: dict[str, Any]) -> None:
    theirs = read_record(program)
    assert theirs["error"] is None
    assert find_differences(theirs, results[program]) == []


NAMES = """
from agents import Agent

agent = Agent(name="A", model="gpt-4.1")
"""
ASKS = """
import asyncio
from agents import Runner
from tree.names import agent

if __name__ == "__main__":
    print(asyncio.run(Runner.run(agent, "hello")).final_output)
"""
DIFFERS = """
from tree.names import agent

if __name__ == "__main__":
    print(type(agent).__module__)
"""
FAILS = """
if __name__ == "__main__":
    raise LookupError("no key")
"""


def test_a_tree_of_programs_is_compared(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    for name, text in {"names": NAMES, "inner/asks": ASKS, "differs": DIFFERS, "fails": FAILS}.items():
        (tree / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "compat.tree_check", str(tree)], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert "--- tree/differs.py" in lines
    assert "-agents.agent" in lines
    assert "--- tree/fails.py: openai-agents cannot run it here: LookupError; standfast: LookupError" in lines
    assert lines[-1] == "1 of 2 programs do the same on both libraries; 1 more cannot be run by openai-agents here"
    assert done.returncode == 1
