"""What commands have in common: their options, and text, tables or JSON on standard output."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]


UNFOLDED = 10_000
"""A table that is not for a screen is for grep and cut: each row is one line, however long."""

NEVER_FOLDED = ("id", "status", "updated", "requested", "role")
"""Columns whose values are copied or compared: rather than them, the others become narrow."""


class Tracebacks:
    """Whether errors are shown with theirs; ``--debug`` says so."""

    wanted = False


class Output:
    """Standard output for a person, or for a program that asked for JSON."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNFOLDED)

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
            for column in filled(columns, found):
                table.add_column(column.replace("_", " "), overflow="fold", no_wrap=column in NEVER_FOLDED)
            for row in found:
                table.add_row(*(escape(shown(row.get(column))) for column in filled(columns, found)))
            self.console.print(table)


def filled(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which there is something, so that the others have room."""
    return [column for column in columns if any(shown(row.get(column)) for row in rows)]


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
