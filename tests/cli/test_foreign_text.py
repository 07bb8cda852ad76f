"""What models, tools, workers and stores say reaches the terminal as visible text, and nothing in it is obeyed."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hostile import ATTACK
from terminals import Terminal

from commands import SOURCE, CommandProcess
from standfast import open_store

AGENT = str(Path(__file__).with_name("hostile.py"))
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
STYLES = re.compile(r"\x1b\[[0-9;]*m")  # those of the program itself; the attack's are counted apart
CONTROLS = re.compile(r"\x1b\[\?(25[hl]|2004[hl])|\x1b\[[12][AK]")  # of its spinner and of readline
TURN = [
    {"role": "user", "content": f"hello {ATTACK}"},
    {"type": "function_call", "call_id": "c1", "name": f"find{ATTACK}", "arguments": f"not json {ATTACK}"},
    {"type": "function_call_output", "call_id": "c1", "output": f"found {ATTACK}"},
]


def find_unsafe(raw: str) -> list[str]:
    """Return the characters of a terminal's output that the program did not write by itself."""
    assert "\x1b[41m" not in raw
    own = CONTROLS.sub("", STYLES.sub("", raw)).replace("\r\n", "\n").replace("\r", "")
    return UNSAFE.findall(own)


@pytest.fixture
def piped(tmp_path: Path, command_process: CommandProcess) -> Callable[..., str]:
    environment = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", "PYTHONUTF8": "1"}

    def run(*words: str, stdin: str = "", code: int | None = 0) -> str:
        command = ("-m", "standfast", *words)
        done = command_process.run(*command, directory=tmp_path, environment=environment, stdin=stdin)
        printed = done.stdout + done.stderr
        assert code is None or done.returncode == code, printed
        return printed

    return run


@pytest.fixture
def stored(tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_store(f"sqlite:///{tmp_path / 'standfast.db'}") as store:
            await store.session("odd").add_items(TURN)
            await store.annotate("odd", {"title": ATTACK})

    asyncio.run(fill())


def test_a_chat_shows_what_the_model_says_without_obeying_it(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", AGENT, "--session", "s", EDITOR="sh -c 'cat \"$1\"; exit 1' -")
    chat.until("> ")
    chat.press("hello\r")
    chat.until(r"red \u001b[41m\u001b]52;c;ZXZpbA==\u0007 \u009b2J \u007f back\rward \u202e00005\u202c zero\u200b")
    chat.until("> ")
    chat.press("refund\r")
    shown = chat.until("[l]ater: ")
    assert '"amount":50000' in shown
    assert r"\u202e00005\u202c" in shown
    chat.press("e\r")
    chat.until(r'"order": "red \u001b[41m')
    chat.until("[l]ater: ")
    chat.press("y\r")
    chat.until("RuntimeError")
    chat.until("> ")
    chat.press("\x04")
    assert chat.ended() == 0
    assert find_unsafe(chat.raw) == []


def test_approvals_and_runs_are_listed_without_obeying_them(
    terminal: Callable[..., Terminal], piped: Callable[..., str]
) -> None:
    started = piped("run", "refund", "--agent", AGENT, "--session", "s", code=3)
    assert UNSAFE.findall(started) == []
    run_id = json.loads(piped("runs", "list", "--json"))[0]["id"]
    approval_id = json.loads(piped("approvals", "list", "--json"))[0]["id"]
    commands = [
        ("approvals", "list"), ("approvals", "show", approval_id), ("runs", "show", run_id), ("runs", "list"),
        ("runs", "events", run_id), ("sessions", "list"),
    ]  # fmt: skip
    for words in commands:
        assert UNSAFE.findall(piped(*words)) == []
        assert UNSAFE.findall(piped(*words, "--json")) == []
    for words in commands[:3]:
        screen = terminal(*words)
        assert screen.ended() == 0
        assert find_unsafe(screen.raw) == [], words
    failed = piped("approvals", "approve", approval_id, "--agent", AGENT, code=1)
    assert UNSAFE.findall(failed) == []
    assert UNSAFE.findall(piped("runs", "resume", run_id, "--agent", AGENT, "--debug", code=None)) == []


@pytest.mark.usefixtures("stored")
def test_sessions_are_shown_and_searched_without_obeying_them(
    terminal: Callable[..., Terminal], piped: Callable[..., str]
) -> None:
    listed = json.loads(piped("sessions", "list", "--json"))
    assert listed[0]["metadata"] == {"title": ATTACK}
    commands = [
        ("sessions", "list"),
        ("sessions", "show", "odd"),
        ("sessions", "search", "hello"),
        ("sessions", "check"),
    ]
    for words in commands:
        assert UNSAFE.findall(piped(*words, code=None)) == []
        assert UNSAFE.findall(piped(*words, "--json", code=None)) == []
        screen = terminal(*words)
        screen.ended()
        assert find_unsafe(screen.raw) == [], words
    exported = piped("sessions", "export", "odd")
    assert UNSAFE.findall(exported) == []
    assert [json.loads(line) for line in exported.splitlines()][1:]
    piped("sessions", "import", "-", "--as", "copy", stdin=exported)
    assert json.loads(piped("sessions", "show", "copy", "--json"))["items"] == TURN


ANSWERS = {
    "busy": (409, {"code": "session-busy", "detail": ATTACK}),
    "busy run": (409, {"code": "session-busy", "detail": ATTACK, "facts": {"run_id": ATTACK, "session_id": ATTACK}}),
    "moved": (409, {"code": "history-moved", "detail": ATTACK, "title": ATTACK}),
    "unknown": (400, {"code": ATTACK, "detail": ATTACK}),
    "no problem": (500, ATTACK),
    "no answer": (200, {ATTACK: [ATTACK]}),
}


@pytest.fixture
def foreign_server() -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = ANSWERS[self.server.answer]  # type: ignore[attr-defined]
            fields = {"type": "about:blank", "title": "", "status": status, "request_id": ATTACK}
            body = json.dumps(content if status == 200 or isinstance(content, str) else fields | content).encode()
            self.send_response(status, "re\x1b[41mason")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_server_answers_is_an_error_that_is_shown_without_obeying_it(
    foreign_server: ThreadingHTTPServer, piped: Callable[..., str], answer: str
) -> None:
    foreign_server.answer = answer  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{foreign_server.server_address[1]}"
    for words in (("sessions", "list"), ("runs", "show", "run_1"), ("--debug", "approvals", "list")):
        printed = piped("--server", url, *words, code=None)
        assert UNSAFE.findall(printed) == []
        assert "error:" in printed
        assert "Traceback" not in printed or "--debug" in words


def test_output_of_a_worker_is_escaped_unless_it_is_asked_for_raw(
    terminal: Callable[..., Terminal], piped: Callable[..., str]
) -> None:
    code = f"import sys; print({ATTACK!r}); print({ATTACK!r}, file=sys.stderr); {ATTACK!r}"
    screen = terminal("workers", "exec", code)
    assert screen.ended() == 0
    assert find_unsafe(screen.raw) == []
    assert UNSAFE.findall(piped("workers", "exec", code)) == []
    assert UNSAFE.findall(piped("workers", "exec", "--json", code)) == []
    assert UNSAFE.findall(piped("workers", "exec", f"raise ValueError({ATTACK!r})", code=1)) == []
    assert UNSAFE.findall(piped("workers", "exec", f"input({ATTACK!r})", stdin="x\n")) == []
    assert ATTACK in piped("workers", "exec", "--raw", f"print({ATTACK!r})")


def test_names_of_emoji_and_markup_are_shown_as_they_were_written(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    async def fill() -> None:
        async with open_store(f"sqlite:///{tmp_path / 'standfast.db'}") as store:
            call = {
                "type": "function_call",
                "call_id": "1",
                "name": "pay",
                "arguments": '{"to": ":x: [bold]b[/bold] [/b]"}',
            }
            await store.session("odd").add_items([{"role": "user", "content": ":smile: [link=x]y[/link] [/z]"}, call])

    asyncio.run(fill())
    shown = terminal("sessions", "show", "odd")
    text = shown.until("})")
    assert ":smile: [link=x]y[/link] [/z]" in text
    assert 'pay({"to":":x: [bold]b[/bold] [/b]"' in text
