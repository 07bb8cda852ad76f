"""``adopt``: take over the sessions of openai-agents in their own database, and give them back."""

from typing import Annotated

import msgspec
import typer

from standfast.base.errors import InvalidInput
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands.imports import DryRun, read_secrets, summarize
from standfast.history.imports.adoption import adopt as adopt_tables
from standfast.history.imports.adoption import undo_adoption
from standfast.history.imports.openai_agents import DEFAULT_PREFIX, DEFAULT_TABLES


@command
async def adopt(
    url: Annotated[str, typer.Argument(metavar="URL", help="sqlite:///PATH, postgresql+asyncpg://... or redis://...")],
    tables: Annotated[
        str, typer.Option("--tables", help="The tables of sessions and messages, if they have other names.")
    ] = ",".join(DEFAULT_TABLES),
    prefix: Annotated[str, typer.Option("--prefix", help="The key prefix in Redis.")] = DEFAULT_PREFIX,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="The environment variable with the key of encrypted sessions.")
    ] = None,
    dry_run: DryRun = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Give the sessions back to openai-agents, with what was written since.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Take over the sessions of openai-agents, in one transaction; in Redis, in one for each session.

    Until then both programs can use them. Afterwards openai-agents can only read its tables, and standfast stores its
    sessions in tables of its own beside them; in Redis openai-agents can no longer read them.

    standfast adopt sqlite:///conversations.db --dry-run
    """
    names = tables.split(",")
    if len(names) != 2:
        raise InvalidInput(f"--tables takes two names, such as {','.join(DEFAULT_TABLES)}, not {tables!r}")
    printer = CommandPrinter(as_json)
    with printer.show_status("reading"):
        report = await (undo_adoption if undo else adopt_tables)(
            url, tables=(names[0], names[1]), prefix=prefix, secrets=read_secrets(key_env), dry_run=dry_run
        )
    rows = [{"id": entry.session_id, **msgspec.to_builtins(entry)} for entry in report]
    printer.print_table(("id", "outcome", "items", "branches", "note"), rows, empty="there are no sessions")
    refused = any(entry.outcome == "refused" for entry in report)
    if not as_json:
        printer.console.print(f"[dim]{escape(summarize(report, dry_run=dry_run or refused))}[/]")
    return FAILED if refused else 0
