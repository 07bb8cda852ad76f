"""``export``: write sessions in the format of another framework, and runs as pages."""

from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from standfast.base.errors import InvalidInput, NotFound
from standfast.cli.commands import _store
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands._run_page import RunPage
from standfast.cli.commands._session_transfer import list_session_ids
from standfast.cli.commands._store import (
    DEFAULT_STORE,
    StoreUrl,
    describe_lock,
    find_run,
    open_existing_store,
    open_runtime,
    require_existing_store,
    require_store,
)
from standfast.cli.commands.imports import read_secrets
from standfast.cli.commands.runs import RunId
from standfast.history.imports.openai_agents import write_openai_agents_file
from standfast.runtime.types import Event


@command
async def openai_agents(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The SQLite file to write or to extend.")],
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="The sessions. Default: all of them.", autocompletion=_store.complete_sessions
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
    async with open_existing_store(require_store(store)) as opened:
        with output.show_status("writing"):
            names = session_ids or [
                name
                for name in await list_session_ids(opened)
                if "branch_of" not in (await opened.describe(name)).metadata  # written with its session
            ]
            written = await write_openai_agents_file(file, opened, names, secrets=read_secrets(key_env))
    rows = [{"id": name, "items": count} for name, count in written.items()]
    output.print_table(("id", "items"), rows, empty="there are no sessions")


@command
async def run(
    run_id: RunId,
    html: Annotated[bool, typer.Option("--html", help="As one HTML page, which opens without a server.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write. Default: the id of the run, with .html.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write a run as one page: its conversation, timeline, approvals, variables and files.

    The page has no scripts and loads nothing. It contains what the run contains: look before you pass it on.

    standfast export run run_123 --html
    """
    if not html:
        raise InvalidInput("name the format: --html writes one page")
    printer = CommandPrinter(as_json)
    async with open_runtime(require_existing_store(store)) as rt:
        with printer.show_status("reading"):
            page = await read_page(rt, await find_run(rt, run_id))
    path = output or Path(f"{page.info.run_id}.html")
    path.write_text(page.render(), encoding="utf-8")
    facts = {"run": page.info.run_id, "file": str(path), "events": len(page.events)}
    printer.print_result(facts, f"{escape(str(path))} has the run as it is now, with {len(page.events)} events")


async def read_page(rt: Any, handle: Any) -> RunPage:
    """Return what the page of a run shows, from a store or a server."""
    info = await handle.info()
    if info.locked:
        raise InvalidInput(f"the run is encrypted: {describe_lock()}")
    step = await rt.step(info.run_id)
    events = await read_events(handle, info.steps)
    outcome = None if info.status in ("queued", "running") else await handle.wait()
    variables: list[tuple[str, str]] = []
    files: list[tuple[str, str]] = []
    step = getattr(step, "run", step)
    if step.workspace_version:
        with suppress(NotFound):
            found = await rt.workspace(info.session_id or info.run_id, at=step.workspace_version)
            variables = [(one.name, f"{one.type}, {one.size} bytes") for one in found.variables]
            files = [(one.path, f"{one.size} bytes") for one in found.files]
    return RunPage(
        info=info,
        step=step,
        events=events,
        approvals=await rt.approvals(run_id=info.run_id),
        result=None if outcome is None else outcome.final_output,
        variables=variables,
        files=files,
    )


async def read_events(handle: Any, last: int) -> list[Event]:
    """Return the stored events up to this one; what a run that is under way does meanwhile is left out."""
    events: list[Event] = []
    async with aclosing(handle.events()) as followed:
        async for event in followed:
            if event.seq is not None:
                events.append(event)
            if len(events) >= last:
                break
    return events


app = typer.Typer(no_args_is_help=True, add_completion=False)
app.command("openai-agents")(openai_agents)
app.command("run")(run)
