"""``standfast`` on a pseudo-terminal."""

import json
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent
AGENT = str(HERE / "cashier.py")
BOOKKEEPER = str(HERE / "bookkeeper.py")
SLEEPER = str(HERE / "sleeper.py")


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "forked"])
def test_ctrl_c_cancels_the_turn_and_quits_at_the_prompt(terminal, fresh):
    chat = terminal("chat", SLEEPER, "--session", "my chat", fresh=fresh)
    chat.until("> ")
    chat.press("nap\r")
    chat.until("nap({})")
    chat.press("\x03")
    chat.until("cancelled")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("items 2")  # the earlier input, without the cancelled call
    chat.until("> ")
    chat.press("\x03")
    assert chat.ended() == 0
    assert f"standfast chat {SLEEPER} --session 'my chat'" in chat.shown
    assert "Traceback" not in chat.shown


def test_arguments_are_edited_and_a_postponed_approval_is_prompted_again(terminal, tmp_path):
    chat = terminal("chat", AGENT, "--session", "s", EDITOR="sed -i s/5/8/")
    chat.until("> ")
    chat.press("pay\r")
    chat.until("[l]ater: ")
    chat.press("e\r")
    chat.until("It says: paid 8.")
    chat.until("> ")
    chat.press("pay\r")
    chat.until("[l]ater: ")
    chat.press("l\r")
    chat.until("is waiting for approval")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("[l]ater: ")
    chat.press("y\r")
    chat.until("It says: paid 5.")
    chat.until("You said hello")
    chat.until("> ")
    chat.press("\x04")
    assert chat.ended() == 0
    assert (tmp_path / "paid").read_text().split() == ["8", "5"]


def test_an_uncertain_call_is_prompted_for_when_the_chat_is_opened_again(terminal, tmp_path):
    first = terminal("chat", BOOKKEEPER, "--session", "s", DIE="yes")
    first.until("> ")
    first.press("book it\r")
    assert first.ended() == -signal.SIGKILL
    again = terminal("chat", BOOKKEEPER, "--session", "s")
    again.until("An earlier turn has not ended")
    assert "it may have happened" in again.until("[d]one, it happened / [n]ot done / the word again")
    again.until("[l]ater: ")
    for other in ("y", "a", "approve", "abort"):  # no answers to this question, and not to be taken for "again"
        again.press(f"{other}\r")
        again.until("[l]ater: ")
    again.press("d\r")
    again.until("its result: ")
    again.press("booked by hand\r")
    again.until("It says: booked by hand.")
    again.until("> ")
    again.press("hello\r")
    again.until("You said hello.")
    again.until("> ")
    again.press("\x04")
    assert again.ended() == 0
    assert (tmp_path / "books").read_text() == "5\n"


def test_a_decision_made_elsewhere_ends_the_prompt_and_the_answer_is_shown(terminal, tmp_path):
    chat = terminal("chat", AGENT, "--session", "s")
    chat.until("> ")
    chat.press("pay\r")
    chat.until("[l]ater: ")
    listed = terminal("approvals", "list", "--json")
    assert listed.ended() == 0
    [approval] = json.loads(listed.raw)
    assert terminal("approvals", "approve", approval["id"], "--by", "ann").ended() == 0
    chat.until("decided elsewhere: approved by ann")
    chat.until("It says: paid 5.")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("You said hello")
    chat.until("> ")
    chat.press("\x04")
    assert chat.ended() == 0
    assert (tmp_path / "paid").read_text().split() == ["5"]


def test_a_pending_approval_is_prompted_for_when_the_chat_is_opened(terminal):
    assert terminal("run", "pay", "--agent", AGENT, "--session", "s").ended() == 3
    chat = terminal("chat", AGENT, "--session", "s")
    assert "cashier wants to call pay" in chat.until("[l]ater: ")
    chat.press("n\r")
    chat.until("may be empty): ")
    chat.press("no money\r")
    chat.until("no money")
    chat.until("> ")
    chat.press("\x04")
    assert chat.ended() == 0


def test_a_failing_editor_decides_nothing(terminal):
    chat = terminal("chat", AGENT, EDITOR="false")
    chat.until("> ")
    chat.press("pay\r")
    chat.until("[l]ater: ")
    chat.press("e\r")
    chat.until("exited with 1")
    chat.until("[l]ater: ")
    chat.press("\x03")
    assert chat.ended() == 0
    assert "Continue with" in chat.shown


def test_ctrl_c_interrupts_code_in_a_worker_and_keeps_its_variables(terminal):
    python = terminal("workers", "repl")
    python.until(">>> ")
    python.press("x = 41\r")
    python.until(">>> ")
    python.press("while True: print('here') or __import__('time').sleep(9)\r")
    python.until("\nhere")
    python.press("\x03")
    python.until("KeyboardInterrupt")
    python.until(">>> ")
    python.press("x + 1\r")
    python.until("42")
    python.until(">>> ")
    python.press("\x03")
    assert python.ended() == 0


def test_ctrl_c_ends_a_command_without_a_traceback(terminal):
    code = terminal("workers", "exec", "print('here', flush=True)\nwhile True: pass")
    code.until("here")
    code.press("\x03")
    assert code.ended() == 130
    assert "Traceback" not in code.shown


def test_watch_prompts_for_each_approval(terminal, tmp_path):
    first = terminal("run", "pay", "--agent", AGENT, "--session", "s-1")
    assert first.ended() == 3
    watch = terminal("approvals", "watch", "--every", "0.1", "--agent", AGENT)
    shown = watch.until("[l]ater: ")
    assert "cashier wants to call pay" in shown
    assert "session s-1" in shown
    watch.press("y\r")
    watch.until("approved by")
    watch.until("It says: paid 5.")
    assert terminal("run", "pay", "--agent", AGENT).ended() == 3
    assert ", run run_" in watch.until("[l]ater: ")  # it has no session
    watch.press("\x03")
    assert watch.ended() == 130
    assert "Traceback" not in watch.shown


def test_a_slow_search_shows_progress(terminal, stored_url):
    search = terminal("sessions", "search", "refund", STANDFAST_STORE=stored_url)
    search.until("searching")
    search.until("user-7")
    assert search.ended() == 0
