"""Prompts that do not block the event loop, and Ctrl-C handling."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from getpass import getpass
from typing import Annotated, Any

import typer

from standfast.base.errors import InvalidInput

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - enables arrow keys and history in `input`


DISABLE_BRACKETED_PASTE = "\x1b[?2004l"
"""Undoes the bracketed paste mode that readline enables."""


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed, unless ``yes``; without a terminal that is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("deleting cannot be undone: confirm with --yes")
    typer.confirm(question, abort=True)


class PromptInterrupted(Exception):
    """Ctrl-C was pressed at the prompt. Do not prompt again: the abandoned reader would consume the next line."""


class PromptObsolete(Exception):
    """The answer is no longer needed."""


class LineReader:
    """The thread that reads the next line. It outlives a prompt that became obsolete, and serves the next one."""

    line: "asyncio.Future[str] | None" = None

    @classmethod
    def start(cls, prompt: str, *, secret: bool) -> "asyncio.Future[str]":
        """Return the future line. A reader that still waits is used again, because it cannot be stopped."""
        if cls.line is not None and not cls.line.done():
            print(prompt, end="", flush=True)
            return cls.line
        cls.line = asyncio.get_running_loop().create_future()
        source = getpass if secret else input
        # A daemon, because a thread that reads from a terminal cannot be woken: it is abandoned on Ctrl-C.
        threading.Thread(target=read_into, args=(source, prompt, cls.line), daemon=True).start()
        return cls.line

    @classmethod
    def interrupt(cls) -> None:
        """Make the line that is being read raise :class:`PromptInterrupted`."""
        if cls.line is not None and not cls.line.done():
            cls.line.set_exception(PromptInterrupted())


async def ask(prompt: str, *, secret: bool = False, obsolete: Coroutine[Any, Any, object] | None = None) -> str:
    """Read a line. Raises EOFError at the end of input and :class:`PromptInterrupted` on Ctrl-C.

    When ``obsolete`` returns first, raise :class:`PromptObsolete`, or its error if it fails. What the user types is
    then read by the next prompt.
    """
    watcher = None if obsolete is None else asyncio.ensure_future(obsolete)
    try:
        with restore_terminal():
            # Before the prompt is shown, so that Ctrl-C at the prompt never ends the program.
            with handle_interrupt(LineReader.interrupt):
                answer = LineReader.start(prompt, secret=secret)
                awaited: set[asyncio.Future[Any]] = {answer} if watcher is None else {answer, watcher}
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait({watcher})
    if watcher is not None:
        watcher.result()
    raise PromptObsolete


def read_into(source: Callable[[str], str], prompt: str, future: "asyncio.Future[str]") -> None:
    def set_future(line: str | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(line or "")
        else:
            future.set_exception(error)

    line, error = None, None
    try:
        line = source(prompt)
    except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
        error = raised
    with contextlib.suppress(RuntimeError):  # the loop is closed
        future.get_loop().call_soon_threadsafe(set_future, line, error)


@contextmanager
def restore_terminal() -> Iterator[None]:
    """Restore the terminal settings, even if an abandoned reader has changed them."""
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
    """Make every signal wake the event loop.

    Otherwise a Ctrl-C just before the loop starts to wait is noticed only at the next event.
    """
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):  # signals are not available
        # A loop that handles any signal is woken by all of them; the handler itself does nothing.
        asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)


@contextmanager
def handle_interrupt(action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` on Ctrl-C inside the block instead of ending the program."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError):  # this loop or thread does not receive signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
