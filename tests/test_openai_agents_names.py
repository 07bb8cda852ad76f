"""Everything public in the installed openai-agents is there, or left out for a reason that the guide shows."""

import subprocess
import sys
from pathlib import Path

import pytest
from compat.names import GUIDE, format_table

ROOT = Path(__file__).parent.parent

pytest.importorskip("agents")


def test_no_name_or_parameter_is_missing_without_a_reason() -> None:
    done = subprocess.run([sys.executable, "-m", "compat.names"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guide_shows_what_is_left_out() -> None:
    assert format_table() in GUIDE.read_text(), "run python -m compat.names --write"
