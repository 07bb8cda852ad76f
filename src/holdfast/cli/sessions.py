"""Conversations in a store."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from holdfast.base.errors import InvalidInput
from holdfast.base.items import Item, text_of
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl, existing
from holdfast.cli.failing import FAILED, command
from holdfast.cli.output import AsJson, Output, moment
from holdfast.history.store import SessionInfo, Store, open_store

app = typer.Typer(no_args_is_help=True)

SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session's id.")]


def described(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.session_id,
        "items": info.head.length,
        "version": info.head.version,
        "owner": info.owner,
        "encrypted": info.encrypted,
        "updated": moment(info.updated_at),
        "updated_at": info.updated_at,
        "created_at": info.created_at,
        "metadata": info.metadata,
        "cursor": info.cursor,
    }


@app.command("list")
@command
async def list_(
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Part of an id or an annotation.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on behind this cursor (see --json).")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, those changed last first.

    holdfast sessions list --owner ann --json
    """
    async with existing(store) as opened:
        found = await opened.sessions(owner=owner, query=query, limit=limit, after=after)
    columns = ("id", "items", "owner", "encrypted", "updated", "metadata")
    Output(as_json).table(columns, map(described, found), empty="no sessions")


@app.command()
@command
async def show(
    session_id: SessionId,
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the latest so many items.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show what was said.

    holdfast sessions show user-7 --limit 20
    """
    async with existing(store) as opened:
        info = await opened.describe(session_id)
        items = await opened.session(session_id).get_items(limit=limit)
    output = Output(as_json)
    if as_json:
        output.value({**described(info), "items": items}, "")
        return
    output.console.print(f"[bold]{escape(session_id)}[/]  {info.head}, changed {moment(info.updated_at)}\n")
    for item in items:
        output.console.print(line_of(item))


def line_of(item: Item) -> str:
    """An item as one or a few lines, with markup."""
    match item.get("type", "message"):
        case "message":
            who = str(item.get("role", "?"))
            return f"[bold {'cyan' if who == 'user' else 'green'}]{escape(who)}[/]  {escape(text_of(item))}"
        case "function_call":
            return f"[magenta]call[/]  {escape(str(item.get('name')))}({escape(str(item.get('arguments')))})"
        case "function_call_output":
            return f"[magenta]output[/]  {escape(text_of(item))}"
        case kind:
            return f"[dim]{escape(str(kind))}[/]  {escape(text_of(item))}"


@app.command()
@command
async def search(
    query: Annotated[str, typer.Argument(help="Words; each must begin a word of the item.")],
    session_id: Annotated[str | None, typer.Option("--session", help="Only in this session.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only sessions of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many.")] = 20,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find items by their words.

    holdfast sessions search "refund order"
    """
    async with existing(store) as opened:
        if session_id is None:
            hits = await opened.search(query, owner=owner, limit=limit)
        else:
            await opened.describe(session_id)
            hits = await opened.session(session_id).search(query, limit=limit)
    rows = [{"session": hit.session_id, "position": hit.position, "text": hit.text, "item": hit.item} for hit in hits]
    Output(as_json).table(("session", "position", "text"), rows, empty="nothing found")


@app.command()
@command
async def fork(
    session_id: SessionId,
    at: Annotated[int | None, typer.Option(help="Share the items up to here; all of them without it.")] = None,
    new_id: Annotated[str | None, typer.Option("--as", help="The new session's id.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Begin a new session that shares the items of another.

    holdfast sessions fork user-7 --at 12 --as user-7-b
    """
    async with existing(store) as opened:
        await opened.describe(session_id)
        child = await opened.session(session_id).fork(at=at, session_id=new_id)
        info = await opened.describe(child.session_id)
    Output(as_json).value(described(info), f"{escape(child.session_id)} shares {info.head.length} items")


@app.command()
@command
async def rewind(
    session_id: SessionId,
    to: Annotated[int, typer.Option(help="Keep so many items.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Go back to an earlier item. What came after it stays readable as an older generation.

    holdfast sessions rewind user-7 --to 12
    """
    async with existing(store) as opened:
        await opened.describe(session_id)
        await opened.session(session_id).rewind(to=to)
        info = await opened.describe(session_id)
    Output(as_json).value(described(info), f"{escape(session_id)} is at {info.head}")


@app.command()
@command
async def export(
    session_id: SessionId,
    file: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of the screen.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write a session as JSON Lines, which `import` reads. The lines are JSON with or without --json.

    holdfast sessions export user-7 -o user-7.jsonl
    """
    async with existing(store) as opened:
        with Output(as_json or file is None).busy("reading"):
            lines = [line async for line in await opened.export(session_id)]
    if file is None:
        print("\n".join(lines))
    else:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = f"{len(lines) - 1} items written to {escape(str(file))}"
        Output(as_json).value({"id": session_id, "items": len(lines) - 1, "file": str(file)}, text)


@app.command("import")
@command
async def import_(
    file: Annotated[Path, typer.Argument(help="What `export` wrote; - reads standard input.")],
    new_id: Annotated[str | None, typer.Option("--as", help="Another id than the exported one.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a session from exported lines. An existing one is never touched.

    holdfast sessions import user-7.jsonl --as user-7-copy
    """
    async with open_store(store) as opened:
        with Output(as_json).busy("writing"):
            made = await opened.import_(lines_of(file), session_id=new_id)
        info = await opened.describe(made.session_id)
    Output(as_json).value(described(info), f"{escape(made.session_id)} has {info.head.length} items")


def lines_of(file: Path) -> Iterator[str]:
    if str(file) == "-":
        yield from sys.stdin
        return
    with file.open(encoding="utf-8") as lines:
        yield from lines


@app.command()
@command
async def check(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The session; all of them without it.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Look for damage: unreadable records, calls without outputs, tampering. Changes nothing; exit code 1 if any.

    holdfast sessions check
    """
    output = Output(as_json)
    async with existing(store) as opened:
        with output.busy("looking at every record"):
            if session_id is not None:
                await opened.describe(session_id)
                names = [session_id]
            else:
                names = await all_names(opened)
            reports = [await opened.session(name).check() for name in names]
    rows = [
        {"id": report.session_id, "ok": report.ok, "items": report.readable, **msgspec.to_builtins(report)}
        for report in reports
    ]
    columns = ("id", "ok", "items", "corrupt", "unpaired", "quarantined", "tampered")
    output.table(columns, rows, empty="no sessions")
    return 0 if all(report.ok for report in reports) else FAILED


async def all_names(store: Store) -> list[str]:
    names: list[str] = []
    after = None
    while page := await store.sessions(limit=200, after=after):
        names += [info.session_id for info in page]
        after = page[-1].cursor
    return names


@app.command()
@command
async def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Destroy a session and everything noted about it. Forks keep what they show.

    holdfast sessions delete user-7 --yes
    """
    async with existing(store) as opened:
        info = await opened.describe(session_id)
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidInput("deleting cannot be undone: say --yes")
            typer.confirm(f"Destroy {session_id} with its {info.head.length} items?", abort=True)
        await opened.delete(session_id)
    Output(as_json).value({"id": session_id, "deleted": True}, f"{escape(session_id)} is gone")
