"""Programs written for openai-agents do the same on standfast: same output, same errors, same requests."""

from typing import Any

import pytest
from compat.programs_check import KNOWN_DIFFERENCES, PROGRAMS, find_differences, run_on_both

pytest.importorskip("agents")


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[Any, Any]]:
    return run_on_both()


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_program_does_the_same_on_both_libraries(program: str, results: dict[str, tuple[Any, Any]]) -> None:
    theirs, ours = results[program]
    assert theirs["error"] is None
    found = find_differences(theirs, ours)
    if program in KNOWN_DIFFERENCES:
        assert [part.partition(":")[0] for part in found] == ["requests"]
    else:
        assert found == []
