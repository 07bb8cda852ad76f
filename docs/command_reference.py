"""A hook of mkdocs: fills the page about the command line with what the commands say of themselves."""

import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from standfast.cli.app import app


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    command = typer.main.get_command(app).import_all()
    told = get_docs_for_click(obj=command, ctx=typer.Context(command), name="standfast")
    return markdown + re.sub(r"\A# .*\n", "", told)
