"""``standfast`` as a program: help, usage errors, pipes, what it imports."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import standfast as package
from standfast.cli.app import app
from standfast.cli.lazy_commands import LazyCommand

SOURCE = str(Path(package.__file__).parents[1])


CASHIER = str(Path(__file__).with_name("cashier.py"))


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=given, timeout=30, check=False)


def commands(found: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    found = found or typer.main.get_command(app)
    if isinstance(found, LazyCommand):
        found = found.load()
    if not hasattr(found, "commands"):
        yield names, found
        return
    for name, command in found.commands.items():
        yield from commands(command, *names, name)


@pytest.mark.parametrize(("names", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()])
def test_every_command_has_an_example_and_json(names, command):
    assert f"standfast {' '.join(names)}" in command.help
    if names != ("chat",):
        assert "--json" in [word for option in command.params for word in option.opts]


def test_help_imports_no_command():
    code = """
import sys
from standfast.cli import main
sys.argv = ["standfast", "--help"]
try:
    main()
except SystemExit:
    heavy = ("asyncio", "openai", "standfast.runtime.runtime", "standfast.history.store", "standfast.workers.session")
    print([name for name in heavy if name in sys.modules])
"""
    shown = program("-c", code).stdout
    assert "approvals" in shown
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("frob",), ("runs", "show"), ("sessions", "list", "-n", "x"), ("run", "a", "--no")])
def test_wrong_use_is_told_in_json_to_a_program(words):
    ended = program("-m", "standfast", *words, "--json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert json.loads(ended.stderr)["error"]["code"] == "usage"


def test_a_reader_that_leaves_is_no_error():
    code = "for i in range(50000): print(i)"
    shell = f"{sys.executable} -m standfast workers exec '{code}' | head -1"
    ended = program("-c", f"import subprocess; subprocess.run({shell!r}, shell=True)")
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_without_typer_it_says_what_to_install():
    ended = program("-c", "import sys; sys.modules['typer'] = None; from standfast.cli import main; main()")
    assert ended.returncode == 1
    assert ended.stderr == "standfast: the command line needs the extra 'cli': pip install 'standfast[cli]'\n"


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback():
    code = """
import sys

class Pressed:
    def find_spec(self, name, *rest):
        if name == "standfast.cli.commands._output":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
from standfast.cli import main
main()
"""
    ended = program("-c", code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_ctrl_c_is_noticed_also_when_it_comes_just_before_the_command_begins_to_wait():
    # The kernel may hand a signal to any thread. One that another thread takes does not wake the main thread from its
    # waiting, just as one that the main thread takes a moment before it begins to wait.
    code = """
import asyncio, signal, threading, time
from standfast.cli.commands._errors import command

def press():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

@command
async def wait():
    threading.Thread(target=press).start()
    await asyncio.sleep(25)

import typer
try:
    wait()
except typer.Exit as left:
    print(left.exit_code)
"""
    began = time.monotonic()
    assert program("-c", code).stdout == "130\n"
    assert time.monotonic() - began < 20


def completed(words: str, **environment: str) -> list[str]:
    """What the shell offers for the last of these words."""
    asked = {"_STANDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    code = "import sys; sys.argv = ['standfast']; from standfast.cli import main; main()"
    ended = program("-c", code, **asked, **environment)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_completion_offers_commands_and_options():
    assert completed("standfast sess") == ["sessions"]
    assert completed("standfast sessions sh") == ["show"]
    assert "--arguments" in completed("standfast approvals approve --a")


def test_completion_offers_the_ids_in_the_store(kept, told):
    asked = told("run", "pay", "--agent", CASHIER, "--session", "bob", code=3)["approvals"][0]
    here = {"STANDFAST_STORE": kept}
    for words in ("sessions show u", "sessions check u", "chat --session u", "runs list --session u"):
        assert completed(f"standfast {words}", **here) == ["user-7"]
    assert completed("standfast runs show run", **here) == [asked["run_id"]]
    assert completed("standfast approvals approve app", **here) == [asked["id"]]
    assert completed(f"standfast sessions show --store {kept} u") == ["user-7"]


def test_completion_is_silent_and_makes_nothing_where_there_is_no_store(tmp_path):
    assert completed("standfast sessions show u", STANDFAST_STORE=f"sqlite:///{tmp_path / 'none.db'}") == []
    assert completed("standfast runs show r", STANDFAST_STORE="postgresql+asyncpg://127.0.0.1:1/x") == []
    assert list(tmp_path.iterdir()) == []
