"""``migrate``: move a program from openai-agents to standfast."""

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandOutput, escape, escape_lines
from standfast.cli.commands._source_migration import MigratedFile, Remainder, migrate_tree


@command
async def migrate(
    path: Annotated[Path, typer.Argument(help="A Python file, or a folder with Python files.", exists=True)],
    write: Annotated[bool, typer.Option("--write", help="Change the files. Without it they are only shown.")] = False,
    as_json: AsJson = False,
) -> int:
    """Replace the imports of openai-agents by those of standfast, and list what is left to do.

    standfast migrate src
    standfast migrate src --write
    """
    changed, left = migrate_tree(path)
    if write:
        for file in changed:
            file.path.write_text(file.after, encoding="utf-8", newline="")
    result = {
        "written": write,
        "files": [str(file.path) for file in changed],
        "left": [asdict(remainder) for remainder in left],
    }
    CommandOutput(as_json).print_result(result, format_migration(changed, left, write=write))
    return 0


def format_migration(changed: list[MigratedFile], left: list[Remainder], *, write: bool) -> str:
    parts = [] if write else [escape_lines(make_diff(file)) for file in changed]
    parts += [escape(f"{remainder.file}:{remainder.line}: {remainder.problem}") for remainder in left]
    verb = "changed" if write else "to change (--write changes them)"
    parts.append(f"{len(changed)} files {verb}, {len(left)} places left for you")
    return "\n".join(parts)


def make_diff(file: MigratedFile) -> str:
    before, after = file.before.splitlines(keepends=True), file.after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, str(file.path), str(file.path), n=1)).rstrip("\n")
