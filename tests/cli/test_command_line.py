"""``standfast`` as a program: help, usage errors, pipes, what it imports."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import standfast as package
from standfast.cli.app import LazyCommand, app, main
from standfast.cli.commands._errors import format_error

SOURCE = str(Path(package.__file__).parents[1])


CASHIER = str(Path(__file__).with_name("cashier.py"))


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=given, timeout=150, check=False)


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
    assert f"$ standfast {' '.join(names)}" in command.help
    if names != ("chat",):
        assert "--json" in [word for option in command.params for word in option.opts]


@pytest.mark.parametrize(("names", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()])
def test_help_is_readable_at_eighty_columns(names, command, standfast, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paragraphs = [one for one in command.help.split("\n\n") if not one.startswith("$ ")]
    assert "\n" not in "".join(paragraphs)  # the terminal wraps them
    shown = standfast(*names, "--help").output
    assert not re.search(r"…|range>|[a-z]\{|<bool>", shown), shown


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
def test_a_usage_error_is_json_on_request(words, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["standfast", *words, "--json"])
    with pytest.raises(SystemExit) as exited:
        main()
    printed = capfd.readouterr()
    assert (exited.value.code, printed.out) == (2, "")
    assert json.loads(printed.err)["error"]["code"] == "usage"


@pytest.mark.parametrize("error", [TimeoutError(), OSError(), ValueError()])
def test_an_error_without_a_text_is_named(error):
    assert type(error).__name__ in format_error(error)


def test_nothing_is_hidden_from_the_log_after_a_command(monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["standfast", "version", "--json"])
    with pytest.raises(SystemExit):
        main()
    logging.getLogger("standfast.failures").error("a failed run")
    assert caplog.messages == ["a failed run"]


def test_ctrl_c_just_after_the_prompt_appears_interrupts_the_prompt():
    code = """
import asyncio, builtins, os, signal, sys, threading
from standfast.cli.commands._prompt import PromptInterrupted, ask

def show_and_press(prompt):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

async def prompt():
    try:
        await ask("> ")
    except PromptInterrupted:
        print("interrupted")

builtins.input = show_and_press
sys.setswitchinterval(60)  # the thread that shows the prompt runs before the one that waits for the line
asyncio.run(prompt())
"""
    completed = program("-c", code)
    assert (completed.stdout, completed.stderr) == ("interrupted\n", "")


def test_a_closed_pipe_is_not_an_error():
    code = "for i in range(50000): print(i)"
    shell = f"{sys.executable} -m standfast workers exec '{code}' | head -1"
    completed = program("-c", f"import subprocess; subprocess.run({shell!r}, shell=True)")
    assert (completed.stdout, completed.stderr) == ("0\n", "")


def test_without_typer_the_error_names_the_extra():
    completed = program("-c", "import sys; sys.modules['typer'] = None; from standfast.cli import main; main()")
    assert completed.returncode == 1
    assert completed.stderr == "standfast: the command line needs the extra 'cli': pip install 'standfast[cli]'\n"


def test_ctrl_c_during_imports_exits_without_a_traceback():
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
    completed = program("-c", code)
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "")


def test_ctrl_c_just_before_the_command_starts_to_wait_is_noticed():
    # The kernel may deliver a signal to any thread. One delivered to another thread does not wake the main thread, just
    # like one that the main thread receives a moment before it starts to wait.
    code = """
import asyncio, signal, threading, time
from standfast.cli.commands._errors import command

def press():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

@command
async def wait():
    threading.Thread(target=press).start()
    await asyncio.sleep(100)

import typer
try:
    wait()
except typer.Exit as exited:
    print(exited.exit_code)
"""
    assert program("-c", code).stdout == "130\n"


def complete(line: str, **environment: str) -> list[str]:
    """Return what the shell offers for the last word of the line."""
    request = {"_STANDFAST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    result = CliRunner(env={"STANDFAST_STORE": None}).invoke(app, [], prog_name="standfast", env=request | environment)
    assert result.stderr == ""
    return result.stdout.split()


def test_completion_works_in_a_process_of_its_own():
    request = {"_STANDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "standfast sess", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['standfast']; from standfast.cli import main; main()"
    completed = program("-c", code, **request)
    assert (completed.stdout.split(), completed.stderr) == (["sessions"], "")


def test_completion_offers_commands_and_options():
    assert complete("standfast sess") == ["sessions"]
    assert complete("standfast sessions sh") == ["show"]
    assert "--arguments" in complete("standfast approvals approve --a")


def test_completion_offers_the_ids_in_the_store(stored_url, run_json):
    approval = run_json("run", "pay", "--agent", CASHIER, "--session", "bob", code=3)["approvals"][0]
    here = {"STANDFAST_STORE": stored_url}
    for words in ("sessions show u", "sessions check u", "chat --session u", "runs list --session u"):
        assert complete(f"standfast {words}", **here) == ["user-7"]
    assert complete("standfast runs show run", **here) == [approval["run_id"]]
    assert complete("standfast approvals approve app", **here) == [approval["id"]]
    assert complete(f"standfast sessions show --store {stored_url} u") == ["user-7"]


def test_completion_without_a_store_is_empty_and_creates_none(tmp_path):
    assert complete("standfast sessions show u", STANDFAST_STORE=f"sqlite:///{tmp_path / 'none.db'}") == []
    assert complete("standfast runs show r", STANDFAST_STORE="postgresql+asyncpg://127.0.0.1:1/x") == []
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_commands_describes_itself_and_nothing_else():
    for name, group in typer.main.get_command(app).load_all().commands.items():
        if hasattr(group, "commands"):
            assert group.help.endswith("."), name
            assert [option for option in group.params if "completion" in option.name] == [], name


def test_the_program_starts_with_an_older_typer():
    code = """
import sys, typer.core
del typer.core.TyperOption.display_type_rich  # it came with 0.29
from standfast.cli import main
sys.argv = ["standfast", "version"]
main()
"""
    assert program("-c", code).stdout.startswith("standfast ")
