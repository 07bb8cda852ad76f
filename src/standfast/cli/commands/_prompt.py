"""The person at the terminal: questions that leave the program running meanwhile, and Ctrl-C."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import getpass

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - gives `input` its arrow keys and its history


DISABLE_BRACKETED_PASTE = "\x1b[?2004l"
"""Readline has asked the terminal to mark what is pasted; this takes it back."""


class PromptInterrupted(Exception):
    """Ctrl-C was pressed instead of an answer. Do not ask again: the reader left behind would take the next line."""


async def ask(prompt: str, *, secret: bool = False) -> str:
    """What the person types. Raises EOFError at the end of input, and :class:`Left` at Ctrl-C."""
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def leave() -> None:
        if not answer.done():
            answer.set_exception(PromptInterrupted())

    # A daemon: nothing can wake a thread that reads from a terminal, so it is left behind when the person leaves.
    reader = threading.Thread(target=read_into, args=(getpass if secret else input, prompt, answer), daemon=True)
    with restore_terminal(), handle_interrupt(leave):
        reader.start()
        return await answer


def read_into(source: Callable[[str], str], prompt: str, future: "asyncio.Future[str]") -> None:
    def settle(said: str | None, problem: BaseException | None) -> None:
        if future.done():
            return
        if problem is None:
            future.set_result(said or "")
        else:
            future.set_exception(problem)

    said, problem = None, None
    try:
        said = source(prompt)
    except BaseException as raised:  # noqa: BLE001 - raised where the answer is awaited
        problem = raised
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(settle, said, problem)


@contextmanager
def restore_terminal() -> Iterator[None]:
    """Leave the terminal as it was, also when a reader that changed it is left behind."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    except BaseException:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        print(DISABLE_BRACKETED_PASTE, flush=True)
        raise


def wake_loop_on_signals() -> None:
    """Let every signal wake the loop.

    Otherwise a Ctrl-C that comes just before the loop begins to wait is noticed when something else happens.
    """
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):  # there are none, or not for us
        # The loop is woken by all signals as soon as it handles any: by this one nothing else is meant.
        asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)


@contextmanager
def handle_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Meanwhile Ctrl-C means this, and does not end the program."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError):  # this loop, or this thread, gets no signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
