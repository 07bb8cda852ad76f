"""Run the entry points of a tree of programs on both libraries, and compare output, error and request bodies.

``python -m compat.tree_check TREE [--eager] [--only PATTERN] [--skip PATTERN]`` is for programs that are packages, such
as the published examples: each runs as ``python -m`` in a process of its own, in a copy of the tree whose imports are
migrated for standfast. A program that openai-agents cannot run to its end within a minute is not counted, but listed.
"""

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from compat.api_server import serve
from compat.programs_check import PARTS, normalize
from standfast.cli.commands.migrate import migrate_tree

LIBRARIES = ("agents", "standfast")
SECONDS = 60
# What differs from run to run, or names the place where a program ran.
_VARYING = [
    (re.compile(r"^INFO: .*HTTP/1.1.*\n", re.MULTILINE), ""),  # what a server of the program logs, in any order
    (re.compile(r"\b(msg|resp|item|fc|conv|chat|cmp)_\d+"), r"\1_NUMBER"),  # counted by the server as requests arrive
    (re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+|(?<=0\.0\.0\.0:)\d+"), "PORT"),
    (re.compile(r"(?<=process )\[?\d+|(?<=process \[)\d+"), "PROCESS"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?"), "TIME"),
    (re.compile(r"\b\d+\.\d+ ?s(econds)?\b"), "SECONDS"),
    (re.compile(r"\b20\d{12}(?=-)|(?<=_)1[789]\d{8}\b"), "TIME"),
    (re.compile(r"(PLACE/[\w-]+[-_])[a-z0-9_]{8}\b"), r"\1NAME"),  # of a temporary file
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}|(?<=-)[0-9a-f]{12}\b"),
        "ID",
    ),
]
# `uv run` and `npx` of the examples find their programs without a network.
_COMMANDS = {
    "uv": f'shift; while [ "${{1#--}}" != "$1" ]; do shift 2; done; [ "$1" = python ] && shift; exec {sys.executable} "$@"',
    "uvx": "echo uvx needs a network >&2; exit 1",
}


def find_entry_points(tree: Path) -> Iterator[Path]:
    """Yield the programs of a tree: the files that do something when they are the main module."""
    for path in sorted(tree.rglob("*.py")):
        if re.search(r"^if __name__ == .__main__.:", path.read_text(), re.MULTILINE):
            yield path.relative_to(tree.parent)


def copy_tree(tree: Path, library: str, place: Path) -> Path:
    """Copy the tree into a folder of the library, there migrated for standfast, and return that folder."""
    root = place / library
    shutil.copytree(tree, root / tree.name)
    if library == "standfast":
        for file in migrate_tree(root / tree.name)[0]:
            file.path.write_text(file.after)
    return root


def run_program(program: Path, library: str, root: Path, *, eager: bool) -> dict[str, Any]:
    """Run a program in the copied tree, and return its output, its error and its requests."""
    module = ".".join(program.with_suffix("").parts)
    with serve(eager=eager) as server, tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {
            "OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": server.url, "EXAMPLES_INTERACTIVE_MODE": "auto",
            "APPLY_PATCH_AUTO_APPROVE": "1", "PYTHONHASHSEED": "0", "EXAMPLE_BASE_URL": server.url,
            "EXAMPLE_API_KEY": "test-key", "EXAMPLE_MODEL_NAME": "gpt-4o", "TMPDIR": folder, "HOME": folder, "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join([str(root), *sys.path]), "PATH": f"{root.parent}/bin:{os.environ['PATH']}",
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "compat.tree_process", library, module],
            cwd=root, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, problem = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, problem = process.communicate()
            problem += "\nTimeout"
        error = _get_error(problem) if process.returncode else None
        result = {"output": output, "error": error, "requests": server.requests}
        return {**_even_out(result, [folder, str(root)]), "stderr": problem}


def _get_error(problem: str) -> str:
    """Return the type of the exception that ended a program, from the last line of its traceback."""
    lines = problem.strip().splitlines()
    return lines[-1].partition(":")[0].rpartition(".")[2] if lines else "unknown"


def _even_out(value: Any, places: list[str]) -> Any:
    """Return the value without places, ports, times and random names."""
    if isinstance(value, dict):
        return {name: _even_out(part, places) for name, part in value.items()}
    if isinstance(value, list):
        return [_even_out(part, places) for part in value]
    if not isinstance(value, str):
        return value
    for place in places:
        value = value.replace(place, "PLACE")
    for pattern, name in _VARYING:
        value = pattern.sub(name, value)
    return value


def _describe_differences(theirs: Any, ours: Any) -> Iterator[str]:
    """Yield the lines that differ. Requests are compared without their order, since some are made at the same time."""
    for part in PARTS:
        before, after = (normalize(result[part]) for result in (theirs, ours))
        if part == "requests":
            before, after = (
                sorted(json.dumps(one, sort_keys=True, indent=1) for one in each) for each in (before, after)
            )
            before, after = ("\n".join(each) for each in (before, after))
        if before != after:
            yield f"{part}:"
            lines = difflib.unified_diff(str(before).splitlines(), str(after).splitlines(), lineterm="", n=0)
            yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tree", type=Path)
    options.add_argument("--eager", action="store_true", help="the model calls every tool that it is offered, once")
    options.add_argument("--only", default="*")
    options.add_argument("--skip", action="append", default=[])
    chosen = options.parse_args()
    same, differing, not_run = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "bin").mkdir()
        for name, line in _COMMANDS.items():
            (place / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (place / "bin" / name).chmod(0o755)
        roots = {library: copy_tree(chosen.tree.resolve(), library, place) for library in LIBRARIES}
        for program in find_entry_points(chosen.tree.resolve()):
            if not fnmatch(str(program), chosen.only) or any(fnmatch(str(program), each) for each in chosen.skip):
                continue
            results = {
                library: run_program(program, library, root, eager=chosen.eager) for library, root in roots.items()
            }
            theirs, ours = (results[library] for library in LIBRARIES)
            found = list(_describe_differences(theirs, ours))
            if theirs["error"] is not None:
                not_run.append(program)
                print(f"--- {program}: openai-agents cannot run it here: {theirs['error']}; standfast: {ours['error']}")
                print(theirs["stderr"].strip()[-300:])
            elif found:
                differing.append(program)
                print(f"--- {program}", *found, ours["stderr"][-2000:] if ours["error"] else "", sep="\n")
            else:
                same.append(program)
            sys.stdout.flush()
    print(f"{len(same)} of {len(same) + len(differing)} programs do the same on both libraries;", end=" ")
    print(f"{len(not_run)} more cannot be run by openai-agents here")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
