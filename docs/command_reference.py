"""An mkdocs hook that generates the command line reference from the help texts of the commands."""

import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from standfast.cli.app import app


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    command = typer.main.get_command(app).load_all()
    reference = get_docs_for_click(obj=command, ctx=typer.Context(command), name="standfast")
    examples = re.sub(r"((?:^\$ .*\n)+)", r"```console\n\1```\n", re.sub(r"\A# .*\n", "", reference), flags=re.M)
    return markdown + examples
