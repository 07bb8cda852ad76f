"""What commands have in common: their options, and text, tables or JSON on standard output."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.status import Status
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]


UNWRAPPED_WIDTH = 10_000
"""A table that is not for a screen is for grep and cut: each row is one line, however long."""

WRAPPED_COLUMNS = ("arguments", "found", "metadata", "reason", "text")
"""Columns of any length, which may take several lines. All others are copied or compared, and stay whole."""

MIN_WRAPPED_WIDTH = 16
"""No folded column is narrower: rather, each row becomes a few lines of its own."""

TIME_COLUMNS = ("updated", "requested")


class Tracebacks:
    """Whether errors are shown with theirs; ``--debug`` says so."""

    enabled = False


class CommandOutput:
    """Standard output for a person, or for a program that asked for JSON."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNWRAPPED_WIDTH)

    def print_result(self, value: Any, text: str) -> None:
        """One result: ``value`` as JSON, or the text, in which rich's markup counts."""
        if self.as_json:
            print_json(value)
        else:
            self.console.print(text)

    def print_fields(self, fields: Mapping[str, Any], names: Sequence[str]) -> None:
        """All that is known of one thing as JSON, or what there is under these names, a line each."""
        if self.as_json:
            print_json(fields)
            return
        for name in names:
            if fields.get(name) is not None:
                self.console.print(f"[bold]{name.replace('_', ' '):>10}[/]  {escape(str(fields[name]))}")

    def show_status(self, message: str) -> AbstractContextManager[Status | None]:
        """Show a person at a terminal that something takes a while."""
        return show_status(self.console, message) if not self.as_json else nullcontext()

    def print_table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
        """Rows by their columns' names; a program gets all the fields, also those without a column."""
        found = list(rows)
        if self.as_json:
            print_json(found)
        elif not found:
            self.console.print(f"[dim]{escape(empty)}[/dim]")
        else:
            self.print_rows(drop_empty_columns(columns, found), found)

    def print_rows(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """As a table where all columns are readable, and otherwise one row below the other."""
        cells = [[self.format_cell(column, row) for column in columns] for row in rows]
        table = Table(box=None, header_style="bold", pad_edge=False)
        needed = 0
        for column, values in zip(columns, zip(*cells, strict=True), strict=True):
            name = column.replace("_", " ")
            widest = max(cell_len(line) for value in (name, *values) for line in value.split("\n"))
            least = min(widest, MIN_WRAPPED_WIDTH) if column in WRAPPED_COLUMNS else widest
            table.add_column(name, overflow="fold", no_wrap=column not in WRAPPED_COLUMNS, min_width=least)
            needed += least + 2
        if needed - 2 > self.console.width:
            for one in cells:
                self.print_block(dict(zip(columns, one, strict=True)))
            return
        for one in cells:
            table.add_row(*map(escape, one))
        self.console.print(table)

    def print_block(self, row: Mapping[str, str]) -> None:
        """A row in lines of its own: what it is called, and below it the rest."""
        first, *rest = row.items()
        told = "  ".join(f"[dim]{name.replace('_', ' ')}[/] {escape(value)}" for name, value in rest if value)
        self.console.print(f"[bold]{escape(first[1])}[/]")
        self.console.print(Padding(told, (0, 0, 0, 4)), soft_wrap=False)

    def format_cell(self, column: str, row: Mapping[str, Any]) -> str:
        text = format_value(row.get(column))
        return shorten_time(text) if column in TIME_COLUMNS and self.console.is_terminal else text


def drop_empty_columns(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which there is something, so that the others have room."""
    return [column for column in columns if any(format_value(row.get(column)) for row in rows)]


def show_status(console: Console, message: str) -> AbstractContextManager[Status | None]:
    return console.status(f"[dim]{escape(message)}[/]") if console.is_terminal else nullcontext()


def print_json(value: Any) -> None:
    print_utf8(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_utf8(text: bytes, *, to: TextIO | None = None) -> None:
    """A line for programs: JSON is UTF-8, whatever the terminal speaks."""
    stream = to or sys.stdout
    stream.flush()
    stream.buffer.write(text + b"\n")
    stream.flush()


def format_value(value: Any) -> str:
    """A value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode() if value else ""
    return str(value)


def format_time(timestamp: float | None) -> str:
    """A point in time in the user's own time zone."""
    if timestamp is None:
        return ""
    return datetime.fromtimestamp(timestamp, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shorten_time(text: str) -> str:
    """A moment on a screen: of today the time, of other days the date."""
    day, _, clock = text.partition(" ")
    return clock if day == f"{datetime.now():%Y-%m-%d}" else day
