"""What is unpickled outside of the workers: in the program that has the pool, and in every process of the nodes."""

import subprocess
import sys
from pathlib import Path

import pytest
import trust_process
from bench.ray_nodes import HEAD, RayCluster, make_environment

import standfast
from factories.fleet import NEEDS_RAY

SOURCE = Path(standfast.__file__).parent.parent
pytestmark = NEEDS_RAY

HOOK = """
import os, sys
def watch(event, arguments, path={path!r}):
    if event == "pickle.find_class":
        with open(path, "a") as file:
            file.write("{{}} {{}}\\n".format(*arguments))
sys.addaudithook(watch)
"""


@pytest.fixture
def found(tmp_path):
    """The file to which each Python process that reads ``sitecustomize`` writes what it unpickles. Workers do not."""
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(path=str(tmp_path / "found")))
    return tmp_path / "found"


def test_nothing_that_a_worker_makes_is_unpickled_by_a_node_or_a_program(found):
    environment = {"PYTHONPATH": f"{found.parent}:{SOURCE}"}
    started = RayCluster(0, head_options={"environment": environment})
    try:
        done = subprocess.run(
            [sys.executable, trust_process.__file__, started.address],
            env=make_environment() | environment | {"STANDFAST_NODE_ADDRESS": HEAD},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        started.close()
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-3000:]
    classes = set(found.read_text().splitlines())
    assert any(line.startswith("standfast.fleet._node.supervisor ") for line in classes), "the actors are watched"
    assert not any("getcwd" in line or line.startswith("__main__") for line in classes)
    modules = {line.split(".")[0].split()[0] for line in classes}
    assert modules <= {"ray", "standfast", "builtins", "inspect", "typing"}, classes  # the class of an actor, by Ray
