"""``standfast`` as a person at a terminal meets it: a real process on a pseudo-terminal."""

import signal
from pathlib import Path

HERE = Path(__file__).parent
AGENT = str(HERE / "cashier.py")
BOOKKEEPER = str(HERE / "bookkeeper.py")
SLEEPER = str(HERE / "sleeper.py")


def test_ctrl_c_stops_the_turn_and_at_the_prompt_ends_the_chat(terminal):
    chat = terminal("chat", SLEEPER, "--session", "my chat")
    chat.until("> ")
    chat.press("nap\r")
    chat.until("nap({})")
    chat.press("\x03")
    chat.until("cancelled")
    chat.until("> ")
    chat.press("hello\r")
    chat.until("items 2")  # what was asked before, without the call that was given up
    chat.until("> ")
    chat.press("\x03")
    assert chat.ended() == 0
    assert f"standfast chat {SLEEPER} --session 'my chat'" in chat.shown
    assert "Traceback" not in chat.shown


def test_arguments_are_edited_inline_and_an_open_question_comes_back(terminal, tmp_path):
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
    chat.until("waits for approval")
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


def test_a_call_whose_process_died_is_asked_about_when_the_chat_is_opened_again(terminal, tmp_path):
    first = terminal("chat", BOOKKEEPER, "--session", "s", DIE="yes")
    first.until("> ")
    first.press("book it\r")
    assert first.ended() == -signal.SIGKILL
    again = terminal("chat", BOOKKEEPER, "--session", "s")
    again.until("An earlier turn is not over")
    assert "it may have happened" in again.until("[d]one, it happened / [l]ater: ", seconds=40)
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


def test_a_question_left_open_is_put_again_as_soon_as_the_chat_is_opened(terminal):
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


def test_an_editor_that_fails_decides_nothing(terminal):
    chat = terminal("chat", AGENT, EDITOR="false")
    chat.until("> ")
    chat.press("pay\r")
    chat.until("[l]ater: ")
    chat.press("e\r")
    chat.until("ended with 1")
    chat.until("[l]ater: ")
    chat.press("\x03")
    assert chat.ended() == 0
    assert "Go on with" in chat.shown


def test_ctrl_c_ends_code_in_a_worker_and_keeps_the_variables_of_the_prompt(terminal):
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


def test_watching_shows_who_asks_what_and_goes_on(terminal, tmp_path):
    first = terminal("run", "pay", "--agent", AGENT, "--session", "s-1")
    assert first.ended() == 3
    watch = terminal("approvals", "watch", "--every", "0.1", "--agent", AGENT)
    shown = watch.until("[l]ater: ")
    assert "cashier wants to call pay" in shown
    assert "conversation s-1" in shown
    watch.press("y\r")
    watch.until("approved by")
    watch.until("It says: paid 5.")
    assert terminal("run", "pay", "--agent", AGENT, "--session", "s-2").ended() == 3
    assert "conversation s-2" in watch.until("[l]ater: ")
    watch.press("\x03")
    assert watch.ended() == 130
    assert "Traceback" not in watch.shown


def test_a_first_search_that_takes_a_while_shows_that_it_is_at_work(terminal, kept):
    search = terminal("sessions", "search", "refund", STANDFAST_STORE=kept)
    search.until("searching")
    search.until("user-7")
    assert search.ended() == 0
