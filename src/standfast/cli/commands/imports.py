"""``import``: copy the conversations of another framework into a store, and remove such copies."""

import os
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from standfast.base.errors import InvalidInput
from standfast.cli.commands._errors import CONFLICT, FAILED, command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_count
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl
from standfast.history.imports.adk import read_adk
from standfast.history.imports.copies import CopiedSession, copy_sessions, remove_copies
from standfast.history.imports.langgraph import read_langgraph
from standfast.history.imports.openai_agents import DEFAULT_PREFIX, DEFAULT_TABLES, read_openai_agents
from standfast.history.imports.pydantic_ai import read_pydantic_ai
from standfast.history.imports.sources import SourceSession
from standfast.history.store import open_store

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only report what would be done.")]
Undo = Annotated[
    bool, typer.Option("--undo", help="Remove the copies from the store again, except those that were continued there.")
]

DatabaseUrl = Annotated[
    str, typer.Argument(metavar="URL", help="sqlite:///PATH or postgresql+asyncpg://...; only read.")
]


@command
async def openai_agents(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="sqlite:///PATH, postgresql+asyncpg://..., redis://..., mongodb://...; only read."
        ),
    ],
    tables: Annotated[
        str, typer.Option("--tables", help="The tables of sessions and messages, if they have other names.")
    ] = ",".join(DEFAULT_TABLES),
    prefix: Annotated[str, typer.Option("--prefix", help="The key prefix in Redis.")] = DEFAULT_PREFIX,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="The environment variable with the key of encrypted sessions.")
    ] = None,
    dry_run: DryRun = False,
    undo: Undo = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Copy the sessions of openai-agents: items, branches, usage, and encrypted ones with their key.

    Nothing of openai-agents is changed. Run it again to copy what openai-agents has written since.

    standfast import openai-agents sqlite:///conversations.db --dry-run
    """
    names = tables.split(",")
    if len(names) != 2:
        raise InvalidInput(f"--tables takes two names, such as {','.join(DEFAULT_TABLES)}, not {tables!r}")
    secrets = read_secrets(key_env)
    source = read_openai_agents(url, tables=(names[0], names[1]), prefix=prefix, secrets=secrets)
    return await run_import(
        source, store, "openai-agents", secrets=secrets, dry_run=dry_run, undo=undo, as_json=as_json
    )


@command
async def pydantic_ai(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file with the JSON of ModelMessagesTypeAdapter.")],
    session_id: Annotated[
        str | None, typer.Option("--as", help="The id of the session. Default: the name of the file.")
    ] = None,
    dry_run: DryRun = False,
    undo: Undo = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Copy a message history of pydantic-ai. Run it again to copy messages added to the file since.

    standfast import pydantic-ai messages.json --as user-7
    """

    async def read() -> AsyncIterator[SourceSession]:
        yield read_pydantic_ai(session_id or file.stem, file.read_bytes())

    return await run_import(read(), store, "pydantic-ai", secrets=[], dry_run=dry_run, undo=undo, as_json=as_json)


@command
async def langgraph(
    url: DatabaseUrl,
    channel: Annotated[
        str, typer.Option("--channel", help="The field of the state that has the messages.")
    ] = "messages",
    dry_run: DryRun = False,
    undo: Undo = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Copy the messages of LangGraph's threads from the checkpoints of SqliteSaver or PostgresSaver.

    standfast import langgraph sqlite:///checkpoints.db --dry-run
    """
    source = read_langgraph(url, channel=channel)
    return await run_import(source, store, "langgraph", secrets=[], dry_run=dry_run, undo=undo, as_json=as_json)


@command
async def adk(
    url: DatabaseUrl,
    dry_run: DryRun = False,
    undo: Undo = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Copy the sessions of DatabaseSessionService of Google's Agent Development Kit, as APP/USER/SESSION.

    standfast import adk sqlite:///sessions.db --dry-run
    """
    return await run_import(read_adk(url), store, "adk", secrets=[], dry_run=dry_run, undo=undo, as_json=as_json)


def read_secrets(key_env: str | None) -> list[str]:
    """Return the keys in an environment variable: a command line is visible to every user of the machine."""
    if key_env is None:
        return []
    if not (secret := os.environ.get(key_env)):
        raise InvalidInput(f"the environment variable {key_env} is not set: it must have the key of encrypted sessions")
    return [secret]


async def run_import(
    source: AsyncIterable[SourceSession],
    url: str,
    framework: str,
    *,
    secrets: list[str],
    dry_run: bool,
    undo: bool,
    as_json: bool,
) -> int:
    """Copy, or remove the copies, and print the report. Return the exit code."""
    output = CommandPrinter(as_json)
    async with open_store(url) as store:
        with output.show_status("reading"):
            if undo:
                report = await remove_copies(store, framework=framework, dry_run=dry_run)
            else:
                report = await copy_sessions(source, store, framework=framework, dry_run=dry_run, secrets=secrets)
    rows = [{"id": entry.session_id, **msgspec.to_builtins(entry)} for entry in report]
    output.print_table(("id", "outcome", "items", "branches", "note"), rows, empty="there are no such sessions")
    if not as_json:
        output.console.print(f"[dim]{escape(summarize(report, dry_run=dry_run))}[/]")
    found = {entry.outcome for entry in report}
    return CONFLICT if "differs" in found else FAILED if "refused" in found else 0


def summarize(report: list[CopiedSession], *, dry_run: bool) -> str:
    counts = Counter(entry.outcome for entry in report)
    text = ", ".join(f"{format_count(count, 'session')} {outcome}" for outcome, count in counts.items())
    return f"{text or 'nothing found'}{'; nothing was written' if dry_run else ''}"


app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("openai-agents")(openai_agents)
app.command("pydantic-ai")(pydantic_ai)
app.command("langgraph")(langgraph)
app.command("adk")(adk)


@app.callback()
def configure() -> None:
    """Copy the conversations of another framework into a store."""
