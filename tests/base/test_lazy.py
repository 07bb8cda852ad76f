"""Public names that are imported on first use."""

import subprocess
import sys


def test_a_name_stays_itself_when_a_module_of_that_name_was_imported_first() -> None:
    code = "import holdfast.agents.function_tool, holdfast; print(callable(holdfast.function_tool))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
