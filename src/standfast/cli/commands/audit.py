"""``audit``: list and prune the audit log of a store."""

import time
from typing import Annotated

import msgspec
import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, format_time
from standfast.cli.commands._prompt import Yes, confirm
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_admin, open_existing_store, require_store
from standfast.cli.commands.runs import parse_age
from standfast.server.auth.audit import Audit

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command("list")
@command
async def list_(
    subject: Annotated[str | None, typer.Option("--subject", help="Only entries of this subject.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this action, such as denied or decided.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only entries of this period: 30d, 12h, 90m.")
    ] = None,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Continue after this entry.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List decisions, changes and denied requests, and who made them, newest first.

    standfast audit list --action denied --since 7d
    """
    began = None if since is None else time.time() - parse_age(since).total_seconds()
    async with open_admin(store) as admin:
        entries = await admin.audit(subject=subject, action=action, since=began, after=after, limit=limit)
    rows = [{**msgspec.structs.asdict(entry), "time": format_time(entry.at)} for entry in entries]
    CommandPrinter(as_json).print_table(("id", "time", "subject", "action", "details"), rows, empty="no entries")


@app.command()
@command
async def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Delete entries that are older: 365d, 12h, 90m.")
    ],
    yes: Yes = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Delete old entries.

    standfast audit prune --older-than 365d --yes
    """
    age = parse_age(older_than).total_seconds()
    async with open_existing_store(require_store(store)) as opened:
        confirm(f"Delete the entries that are older than {older_than}?", yes=yes)
        deleted = await Audit(opened).prune(older_than=age)
    CommandPrinter(as_json).print_result({"deleted": deleted}, f"{deleted} entries deleted")
