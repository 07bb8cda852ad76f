"""Public names that are resolved on first use."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first", ["standfast.agents.function_tool", "standfast.agents.function_schema", "standfast.agents"]
)
def test_a_module_does_not_hide_a_name_that_it_shares(first: str) -> None:
    code = f"""
import {first}, standfast
from standfast.agents import function_schema
print([type(name).__name__ for name in (standfast.function_tool, standfast.agents.function_tool, function_schema)])
"""
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert done.stdout.strip() == "['function', 'function', 'function']"
