"""``workspaces``: list, show and prune the variables and files that conversations keep in a store."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from standfast.base.errors import InvalidInput
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_time
from standfast.cli.commands._prompt import Yes, confirm
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime, require_existing_store
from standfast.cli.commands.runs import parse_age
from standfast.store.records import WorkspaceRecord
from standfast.workspaces.retention import iterate_workspaces
from standfast.workspaces.view import Workspace

app = typer.Typer(no_args_is_help=True, add_completion=False)

PAGE = 200

WorkspaceId = Annotated[
    str, typer.Argument(metavar="ID", help="The session, the run, or the key that `workspaces list` shows.")
]
AtVersion = Annotated[int | None, typer.Option("--at", min=1, help="The version; by default the latest.")]


@app.command("list")
@command
async def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List workspaces by key.

    standfast workspaces list --json
    """
    rows: list[dict[str, Any]] = []
    async with open_runtime(require_existing_store(store)) as rt:
        async for record in iterate_records(rt):
            if len(rows) == limit:
                break
            rows.append({**msgspec.structs.asdict(record), "updated": format_time(record.updated_at)})
    CommandPrinter(as_json).print_table(("key", "version", "updated"), rows, empty="no workspaces")


async def iterate_records(rt: Any) -> AsyncIterator[WorkspaceRecord]:
    """Yield the workspaces of a store, or of the server in front of it, by key."""
    if not hasattr(rt, "workspaces"):
        async for record in iterate_workspaces(rt.store.backend):
            yield record
        return
    after = None
    while page := await rt.workspaces(limit=PAGE, after=after):
        for record in page:
            yield record
        after = page[-1].key


@app.command()
@command
async def show(
    workspace: WorkspaceId, at: AtVersion = None, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Show the variables of a workspace and how its versions were made. Starts no worker.

    standfast workspaces show user-7 --at 3
    """
    async with open_runtime(require_existing_store(store)) as rt:
        found = await rt.workspace(workspace, at=at)
        versions = [asdict(one) async for one in found.history()]
    output = CommandPrinter(as_json)
    fields = workspace_to_dict(found)
    if as_json:
        output.print_result({**fields, "history": versions}, "")
        return
    output.print_fields(fields, ("key", "version", "checkpoint", "size", "pending"))
    variables = [msgspec.structs.asdict(one) for one in found.variables]
    output.print_table(("name", "type", "size", "shape"), variables, empty="no variables")
    for name, reason in found.unkept.items():
        output.console.print(f"not kept: {escape(name)}: {escape(reason)}")


@app.command()
@command
async def files(
    workspace: WorkspaceId, at: AtVersion = None, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """List the files of a workspace.

    standfast workspaces files user-7
    """
    async with open_runtime(require_existing_store(store)) as rt:
        found = await rt.workspace(workspace, at=at)
    CommandPrinter(as_json).print_table(("path", "size"), [asdict(one) for one in found.files], empty="no files")


@app.command()
@command
async def restore(
    workspace: WorkspaceId,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A directory that is new or empty.")],
    at: AtVersion = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write the files of a version into a directory. A new one is accessible by its user only.

    standfast workspaces restore user-7 out --at 3
    """
    if directory.exists() and any(directory.iterdir()):
        raise InvalidInput(f"{directory} is not empty: name a new directory")
    async with open_runtime(require_existing_store(store)) as rt:
        found = await rt.workspace(workspace, at=at)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in found.files:
            path = directory / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(await found.read(file.path))
    count = len(found.files)
    result = {"version": found.version, "files": count, "directory": str(directory)}
    CommandPrinter(as_json).print_result(result, f"{count} files of version {found.version} in {escape(directory)}")


@app.command()
@command
async def prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Drop checkpoints that are older: 30d, 12h, 90m.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Keep this many checkpoints of a workspace.")
    ] = None,
    max_mb: Annotated[
        float | None,
        typer.Option("--max-mb", min=0, help="Keep at most this many megabytes of checkpoints of a workspace."),
    ] = None,
    yes: Yes = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Delete old checkpoints, never the latest of a workspace, and content that is no longer used.

    standfast workspaces prune --keep 20 --yes
    """
    age = None if older_than is None else parse_age(older_than)
    async with open_runtime(require_existing_store(store)) as rt:
        confirm("Drop the checkpoints that are older or more than that?", yes=yes)
        report = await rt.prune_workspaces(older_than=age, keep=keep, max_mb=max_mb)
    text = f"dropped {report.dropped} checkpoints and {report.blobs} blobs, kept {report.kept} checkpoints"
    CommandPrinter(as_json).print_result(asdict(report), text)


def workspace_to_dict(workspace: Workspace) -> dict[str, Any]:
    return {
        "key": workspace.key,
        "version": workspace.version,
        "checkpoint": workspace.checkpoint,
        "size": workspace.size,
        "pending": list(workspace.pending) or None,
        "variables": [msgspec.structs.asdict(one) for one in workspace.variables],
        "files": [asdict(one) for one in workspace.files],
        "unkept": workspace.unkept,
    }
