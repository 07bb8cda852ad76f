"""Exit codes, and errors printed as one line of text or as JSON."""

import asyncio
import functools
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import NoReturn, ParamSpec

import msgspec
import typer
from rich.console import Console

from standfast.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    InvalidItem,
    KeyReused,
    MissingExtra,
    NotFound,
    RunShared,
    StandfastError,
    StoreUnavailable,
    Unsupported,
    WrongKey,
)
from standfast.base.text import make_visible
from standfast.cli.commands._output import Tracebacks, escape, print_utf8
from standfast.cli.commands._prompt import PromptInterrupted, wake_loop_on_signals
from standfast.cli.commands._store import KEY_VARIABLE
from standfast.runtime.errors import ApprovalSettled, RunActive, RunEnded, SessionBusy, SessionEncrypted
from standfast.store.operations import LeaseHeld

P = ParamSpec("P")

FAILED, USAGE, WAITING, CONFLICT, NOT_FOUND, INTERRUPTED = 1, 2, 3, 4, 5, 130
EXIT_CODES: dict[type[Exception], int] = {
    NotFound: NOT_FOUND,
    FileNotFoundError: NOT_FOUND,
    AlreadyExists: CONFLICT,
    Conflict: CONFLICT,
    KeyReused: CONFLICT,
    LeaseHeld: CONFLICT,
    SessionBusy: CONFLICT,
    RunEnded: CONFLICT,
    RunActive: CONFLICT,
    RunShared: CONFLICT,
    SessionEncrypted: CONFLICT,
    ApprovalSettled: CONFLICT,
    InvalidInput: USAGE,
    InvalidItem: USAGE,
    MissingExtra: USAGE,
    Unsupported: USAGE,
}


def command(function: Callable[P, Awaitable[int | None]]) -> Callable[P, None]:
    """Wrap a coroutine function as a command: its result is the exit code, its exception an error line and a code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = asyncio.run(run_with_signals(function(*args, **kwargs)))
            sys.stdout.flush()
        except (KeyboardInterrupt, PromptInterrupted):
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:
            discard_stdout()
            raise typer.Exit(FAILED) from None
        except Exception as error:  # noqa: BLE001 - printed in one line
            if Tracebacks.enabled:
                print(make_visible(traceback.format_exc(), multiline=True), file=sys.stderr)
            exit_with_error(error, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code or 0)

    return run


async def run_with_signals(work: Awaitable[int | None]) -> int | None:
    wake_loop_on_signals()
    return await work


def discard_stdout() -> None:
    """Redirect standard output to the null device if it cannot be written, so that the flush at exit does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_with_error(error: Exception, *, as_json: bool) -> NoReturn:
    """Print the error and exit with its code."""
    kinds = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    print_error(get_error_code(error), format_error(error), as_json=as_json)
    if isinstance(error, OSError):  # possibly of standard output
        discard_stdout()
    raise typer.Exit(next(kinds, FAILED))


def print_error(code: str, message: str, *, as_json: bool) -> None:
    if as_json:
        print_utf8(msgspec.json.encode({"error": {"code": code, "message": message}}), to=sys.stderr)
    else:
        console = Console(stderr=True, emoji=False, highlight=False)
        console.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=not console.is_terminal)


def get_error_code(error: Exception) -> str:
    return error.code if isinstance(error, StandfastError) else "os" if isinstance(error, OSError) else "unexpected"


def format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and not isinstance(error, StandfastError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, UnicodeError):
        return f"{get_first_line(error)}: set PYTHONUTF8=1, or a locale with UTF-8"
    # The error of a server may lack what this version says with it.
    if isinstance(error, SessionBusy) and getattr(error, "run_id", None) is not None:
        held = f"session {getattr(error, 'session_id', '')!r} is held by another run"
        return f"{held}: see `standfast runs show {error.run_id}`"
    if isinstance(error, StoreUnavailable) and "://" in str(error):
        return f"{get_first_line(error)} (is the server running, and is --store right?)"
    if isinstance(error, WrongKey | SessionEncrypted):
        return f"{error} (set {KEY_VARIABLE})"
    if isinstance(error, StandfastError | OSError) and str(error):
        return " ".join(str(error).split("\n"))
    return f"{type(error).__name__}: {get_first_line(error)} (--debug shows where)"


def get_first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")
