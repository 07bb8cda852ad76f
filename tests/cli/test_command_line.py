"""``holdfast`` as a program: help, usage errors, pipes, what it imports."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import holdfast as package
from holdfast.cli.app import app
from holdfast.cli.lazily import Later

SOURCE = str(Path(package.__file__).parents[1])


def program(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin"}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False, **options)


def commands(found: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    found = found or typer.main.get_command(app)
    if isinstance(found, Later):
        found = found.found()
    if not hasattr(found, "commands"):
        yield names, found
        return
    for name, command in found.commands.items():
        yield from commands(command, *names, name)


@pytest.mark.parametrize(("names", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()])
def test_every_command_has_an_example_and_json(names, command):
    assert f"holdfast {' '.join(names)}" in command.help
    if names != ("chat",):
        assert "--json" in [word for option in command.params for word in option.opts]


def test_help_imports_no_command():
    code = """
import sys
from holdfast.cli import main
sys.argv = ["holdfast", "--help"]
try:
    main()
except SystemExit:
    heavy = ("asyncio", "openai", "holdfast.runtime.runtime", "holdfast.history.store", "holdfast.workers.session")
    print([name for name in heavy if name in sys.modules])
"""
    shown = program("-c", code).stdout
    assert "approvals" in shown
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("frob",), ("runs", "show"), ("sessions", "list", "-n", "x"), ("run", "a", "--no")])
def test_wrong_use_is_told_in_json_to_a_program(words):
    ended = program("-m", "holdfast", *words, "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert json.loads(ended.stderr)["error"]["code"] == "usage"


def test_a_reader_that_leaves_is_no_error():
    code = "for i in range(50000): print(i)"
    shell = f"{sys.executable} -m holdfast workers exec '{code}' | head -1"
    ended = program("-c", f"import subprocess; subprocess.run({shell!r}, shell=True)")
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_without_typer_it_says_what_to_install():
    ended = program("-c", "import sys; sys.modules['typer'] = None; from holdfast.cli import main; main()")
    assert ended.returncode == 1
    assert ended.stderr == "holdfast: the command line needs the extra 'cli': pip install 'holdfast[cli]'\n"


def test_completion_knows_the_commands():
    assert "holdfast" in program("-m", "holdfast", "--show-completion", "bash").stdout.lower()
