"""Everything public in the installed openai-agents is there, or left out for a reason that the guide shows."""

import pytest
from compat.names import GUIDE, format_table, main

pytest.importorskip("agents")


def test_no_name_or_parameter_is_missing_without_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


def test_the_guide_shows_what_is_left_out() -> None:
    assert format_table() in GUIDE.read_text(), "run python -m compat.names --write"
