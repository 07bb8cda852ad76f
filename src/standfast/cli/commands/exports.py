"""``export``: write sessions in the format of another framework."""

from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.commands import _store
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter
from standfast.cli.commands._session_transfer import list_session_ids
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_existing_store
from standfast.cli.commands.imports import read_secrets
from standfast.history.imports.openai_agents import write_openai_agents_file


@command
async def openai_agents(
    file: Annotated[Path, typer.Argument(help="The SQLite file to write or to extend.")],
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="The sessions. Default: all of them.", autocompletion=_store.complete_sessions
        ),
    ] = None,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="The environment variable with the key of encrypted sessions.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write sessions to a file that SQLiteSession of openai-agents opens. Sessions that it has are not overwritten.

    Sessions with branches or usage are for AdvancedSQLiteSession.

    standfast export openai-agents conversations.db user-7
    """
    output = CommandPrinter(as_json)
    async with open_existing_store(store) as opened:
        with output.show_status("writing"):
            names = session_ids or [
                name
                for name in await list_session_ids(opened)
                if "branch_of" not in (await opened.describe(name)).metadata  # written with its session
            ]
            written = await write_openai_agents_file(file, opened, names, secrets=read_secrets(key_env))
    rows = [{"id": name, "items": count} for name, count in written.items()]
    output.print_table(("id", "items"), rows, empty="there are no sessions")


app = typer.Typer(no_args_is_help=True)
app.command("openai-agents")(openai_agents)


@app.callback()
def configure() -> None:
    """Write sessions in the format of another framework."""
