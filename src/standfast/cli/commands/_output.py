"""Standard output of commands: text, tables or JSON."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from standfast.base.text import format_arguments, make_visible

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


UNWRAPPED_WIDTH = 10_000
"""The width when standard output is not a terminal: each row is one line, for grep and cut."""

WRAPPED_COLUMNS = ("arguments", "found", "metadata", "reason", "text")
"""Columns that may wrap. The others hold ids and the like, which are copied, and are never broken."""

MIN_WRAPPED_WIDTH = 16
"""If a wrapped column would become narrower, each row is printed as a block instead."""

BLOCK_INDENT = 4

TIME_COLUMNS = ("updated", "requested")


def escape(text: object) -> str:
    """Return foreign text for a line of rich markup: without markup, line breaks and invisible characters."""
    return escape_markup(make_visible(str(text)))


def escape_lines(text: object) -> str:
    """Return foreign text of several lines for rich markup: without markup and invisible characters."""
    return escape_markup(make_visible(str(text), multiline=True))


class Tracebacks:
    """Whether errors are printed with a traceback (``--debug``)."""

    enabled = False


class CommandPrinter:
    """Standard output as text, or as JSON if requested."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(
            emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else UNWRAPPED_WIDTH
        )

    def print_result(self, value: Any, text: str) -> None:
        """Print one result: ``value`` as JSON, or ``text``, which may contain rich markup."""
        if self.as_json:
            print_json(value)
        else:
            self.console.print(text)

    def print_fields(self, fields: Mapping[str, Any], names: Sequence[str]) -> None:
        """Print all fields as JSON, or those in ``names`` that are set, one per line."""
        if self.as_json:
            print_json(fields)
            return
        for name in names:
            if (value := fields.get(name)) is not None:
                shown = format_arguments(value) if name == "arguments" else value
                self.console.print(f"[bold]{name.replace('_', ' '):>10}[/]  {escape(shown)}")

    def show_status(self, message: str) -> AbstractContextManager[Status | None]:
        """Show a progress message on a terminal while the block runs."""
        return show_status(self.console, message) if not self.as_json else nullcontext()

    def print_table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str) -> None:
        """Print the given columns of the rows; JSON output has all fields."""
        all_rows = list(rows)
        if self.as_json:
            print_json(all_rows)
        elif not all_rows:
            self.console.print(f"[dim]{escape(empty)}[/dim]")
        else:
            self.print_rows(drop_empty_columns(columns, all_rows), all_rows)

    def print_rows(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print a table if all columns are wide enough to read, and otherwise one block per row."""
        cells = [[self.format_cell(column, row) for column in columns] for row in rows]
        table = Table(box=None, header_style="bold", pad_edge=False)
        total_width = 0
        for column, values in zip(columns, zip(*cells, strict=True), strict=True):
            name = column.replace("_", " ")
            widest = max(map(cell_len, (name, *values)))
            min_width = min(widest, MIN_WRAPPED_WIDTH) if column in WRAPPED_COLUMNS else widest
            table.add_column(name, overflow="fold", no_wrap=column not in WRAPPED_COLUMNS, min_width=min_width)
            total_width += min_width + 2
        if total_width - 2 > self.console.width:
            for row in cells:
                self.print_block(dict(zip(columns, row, strict=True)))
            return
        for row in cells:
            table.add_row(*map(escape_markup, row))
        self.console.print(table)

    def print_block(self, row: Mapping[str, str]) -> None:
        """Print a row as a block: the first column, and the others below it."""
        first, *rest = row.items()
        fields = [Text.assemble((name.replace("_", " "), "dim"), " ", value) for name, value in rest if value]
        lines: list[Text] = []
        for field in fields:
            if lines and lines[-1].cell_len + field.cell_len + 2 <= self.console.width - BLOCK_INDENT:
                lines[-1].append("  ").append_text(field)
            else:
                lines.append(field)
        self.console.print(f"[bold]{escape_markup(first[1])}[/]")
        self.console.print(Padding(Text("\n").join(lines), (0, 0, 0, BLOCK_INDENT)), soft_wrap=False)

    def format_cell(self, column: str, row: Mapping[str, Any]) -> str:
        text = format_value(row.get(column))
        if column in TIME_COLUMNS and self.console.is_terminal:
            return shorten_time(text)
        return format_arguments(text) if column == "arguments" else make_visible(text)


def drop_empty_columns(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns in which at least one row has a value."""
    return [column for column in columns if any(format_value(row.get(column)) for row in rows)]


def show_status(console: Console, message: str) -> AbstractContextManager[Status | None]:
    return console.status(f"[dim]{escape(message)}[/]") if console.is_terminal else nullcontext()


def print_json(value: Any) -> None:
    print_utf8(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_utf8(text: bytes, *, to: TextIO | None = None) -> None:
    """Print JSON as UTF-8, whatever the encoding of the terminal. Invisible characters are escaped."""
    stream = to or sys.stdout
    stream.flush()
    stream.buffer.write(make_visible(text.decode(), multiline=True).encode() + b"\n")
    stream.flush()


def format_value(value: Any) -> str:
    """Format a value as a table cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode() if value else ""
    return str(value)


def format_count(number: int, noun: str) -> str:
    """Format a number of things whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_time(timestamp: float | None) -> str:
    """Format a timestamp in the local time zone."""
    if timestamp is None:
        return ""
    return datetime.fromtimestamp(timestamp, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shorten_time(text: str) -> str:
    """Shorten a formatted timestamp to the time if it is today, and to the date otherwise."""
    day, _, clock = text.partition(" ")
    return clock if day == f"{datetime.now():%Y-%m-%d}" else day
