"""An mkdocs hook that generates the command line reference from the help texts of the commands."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from standfast.cli.app import app

EXAMPLE = re.compile(r"(?<!```console\n)^((?:\$ .*\n)+)", re.M)
"""Lines that are not in a block yet."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    command = typer.main.get_command(app).load_all()
    for one in list_commands(command):
        one.short_help = one.help.partition("\n\n")[0]  # a longer one would be cut
    reference = get_docs_for_click(obj=command, ctx=typer.Context(command), name="standfast")
    return markdown + EXAMPLE.sub(r"```console\n\1```\n", re.sub(r"\A# .*\n", "", reference))


def list_commands(group: Any) -> Iterator[Any]:
    for one in group.commands.values():
        yield one
        yield from list_commands(one) if hasattr(one, "commands") else ()
