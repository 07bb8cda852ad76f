"""What commands have in common: their options, tables or JSON on standard output, errors with exit codes."""

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn, ParamSpec

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from holdfast.base.errors import (
    AlreadyExists,
    HoldfastError,
    InvalidInput,
    KeyReused,
    MissingExtra,
    Moved,
    NotFound,
)
from holdfast.runtime.errors import ApprovalSettled, RunEnded, SessionBusy
from holdfast.store.contract import LeaseHeld

P = ParamSpec("P")

FAILED, USAGE, WAITING, CONFLICT, NOT_FOUND = 1, 2, 3, 4, 5
EXIT_CODES: dict[type[HoldfastError], int] = {
    NotFound: NOT_FOUND,
    AlreadyExists: CONFLICT,
    Moved: CONFLICT,
    KeyReused: CONFLICT,
    LeaseHeld: CONFLICT,
    SessionBusy: CONFLICT,
    RunEnded: CONFLICT,
    ApprovalSettled: CONFLICT,
    InvalidInput: USAGE,
    MissingExtra: USAGE,
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]


class Failing:
    """How errors are shown; ``debug`` lets tracebacks through."""

    debug = False


failing = Failing()


class Output:
    """Standard output for a person, or for a program that asked for JSON."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True)

    def value(self, value: Any, text: str) -> None:
        """One result: ``value`` as JSON, or the text, in which rich's markup counts."""
        if self.as_json:
            print_json(value)
        else:
            self.console.print(text)

    def busy(self, doing: str) -> AbstractContextManager[Status | None]:
        """Show a person at a terminal that something takes a while."""
        return working(self.console, doing) if not self.as_json else nullcontext()

    def table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
        """Rows by their columns' names; a program gets all the fields, also those without a column."""
        found = list(rows)
        if self.as_json:
            print_json(found)
        elif not found:
            self.console.print(f"[dim]{escape(empty)}[/dim]")
        else:
            table = Table(box=None, header_style="bold", pad_edge=False)
            for column in columns:
                table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column == "id")
            for row in found:
                table.add_row(*(escape(shown(row.get(column))) for column in columns))
            self.console.print(table)


def working(console: Console, doing: str) -> AbstractContextManager[Status | None]:
    return console.status(f"[dim]{escape(doing)}[/]") if console.is_terminal else nullcontext()


def print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def shown(value: Any) -> str:
    """A value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode() if value else ""
    return str(value)


def moment(at: float | None) -> str:
    """A point in time in the user's own time zone."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def command(function: Callable[P, Awaitable[int | None]]) -> Callable[P, None]:
    """A coroutine as a command. What it returns is the exit code; what it raises becomes a line and a code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = asyncio.run(complete(function(*args, **kwargs)))
        except (HoldfastError, OSError) as error:
            if failing.debug:
                raise
            fail(error, as_json=bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        raise typer.Exit(code or 0)

    return run


async def complete(work: Awaitable[int | None]) -> int | None:
    return await work


def fail(error: Exception, *, as_json: bool) -> NoReturn:
    """Say what went wrong in one line, and end with the code for it."""
    kinds = (code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    if as_json:
        told = {"error": {"code": getattr(error, "code", "os"), "message": str(error)}}
        print(msgspec.json.encode(told).decode(), file=sys.stderr)
    else:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
    raise typer.Exit(next(kinds, FAILED))
