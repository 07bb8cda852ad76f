"""Programs written for openai-agents do the same on standfast: same output, same errors, same requests.

What they do on openai-agents is recorded by ``make programs``, which runs them on both libraries.
"""

import re
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
