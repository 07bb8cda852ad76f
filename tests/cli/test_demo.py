"""The demonstration, as a newcomer starts it."""

import subprocess
import sys


def test_the_demonstration_pays_once_and_remembers_what_was_heard():
    command = [sys.executable, "-m", "holdfast", "demo"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90).stdout
    for line in (
        "it wants to call pay",
        "kill -9",
        "It may have happened",
        "payments in the ledger: 1",
        "2618.0 euros",
    ):
        assert line in shown
    remembered = shown.split("it remembers:")[1].split("\n")[0].strip()
    assert "We are open from nine to five on weekdays".startswith(remembered)
    assert remembered
