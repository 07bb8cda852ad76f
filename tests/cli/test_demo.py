"""``standfast demo``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import standfast

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(standfast.__file__).parents[1])


def test_the_demo_pays_once_and_continues_with_its_variables_and_with_what_was_heard(tmp_path):
    for name in ("examples", "docs", "console"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "standfast-demo.db").write_text("of an earlier demo")
    command = [sys.executable, "-m", "standfast", "demo"]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    shown = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=170, env=environment, cwd=tmp_path
    ).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert 'invoices = {"Ann": 800' in shown  # code as code
    shown = " ".join(shown.split())
    for line in (
        "it wants to call pay",
        "[y]es / [n]o: y you approved it",
        "kill -9",
        "It may have taken effect",
        "payments in the ledger: 1",
        "2618.0 euros",
        "[the Python session was restored",
        "all variables and files are as they were",
        "It rained most in Bergen: 55 mm, of 5 rows in a",
        "python -m standfast chat examples/support_desk/desk.py",  # the command that was used
        "python -m standfast doctor",
        "python -m standfast serve --open -s sqlite:///standfast-demo.db",
    ):
        assert line in shown
    remembered = shown.split("in the history:")[1].split(" That took")[0].strip()
    assert "We are open from nine to five on weekdays".startswith(remembered)
    assert remembered
    listed = subprocess.run(
        [sys.executable, "-m", "standfast", "runs", "list", "-s", "sqlite:///standfast-demo.db", "--json"],
        check=True,
        capture_output=True,
        env=environment,
        cwd=tmp_path,
    ).stdout
    assert b"treasurer" in listed
    assert b"analyst" in listed


@pytest.mark.soak
def test_the_slow_demo_goes_on_although_a_process_without_the_agent_blocks_its_run(tmp_path):
    """The pauses are longer than the leases."""
    shown = subprocess.run(
        [sys.executable, "-m", "standfast", "demo", "--slow"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": SOURCE},
        cwd=tmp_path,
    ).stdout
    assert "payments in the ledger: 1" in " ".join(shown.split())
