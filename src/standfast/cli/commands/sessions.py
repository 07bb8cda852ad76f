"""Conversations in a store."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.base.errors import InvalidInput
from holdfast.base.items import Item, extract_text
from holdfast.cli import completing, transfer
from holdfast.cli.failing import command
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl, find_other_tables, open_existing_store
from holdfast.cli.output import AsJson, CommandOutput, format_time
from holdfast.cli.transfer import SessionId, session_to_dict
from holdfast.history.searching import SearchHit

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@command
async def list_(
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Part of an id or an annotation.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on behind this cursor (see --json).")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, those changed last first.

    holdfast sessions list --owner ann --json
    """
    output = CommandOutput(as_json)
    with output.show_status("reading"):
        async with open_existing_store(store) as opened:
            page = await opened.sessions(owner=owner, query=query, limit=limit, after=after)
    columns = ("id", "items", "owner", "encrypted", "updated", "metadata")
    output.print_table(columns, map(session_to_dict, page), empty="no sessions")
    print_other_tables(store, as_json)


def print_other_tables(store: str, as_json: bool) -> None:
    """Tell a person of sessions that this address does not show."""
    for also in [] if as_json else find_other_tables(store):
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[dim]{escape(also)}[/]")


@app.command()
@command
async def show(
    session_id: SessionId,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the latest so many items.")] = None,
    generation: Annotated[
        int | None, typer.Option("--generation", "-g", help="What it showed before a rewind.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show what was said.

    holdfast sessions show user-7 --limit 20
    """
    output = CommandOutput(as_json)
    with output.show_status("reading"):
        async with open_existing_store(store) as opened:
            info = await opened.describe(session_id)
            history = opened.session(session_id)
            items = await history.get_items(limit=limit, generation=generation)
            earlier = [kept.number for kept in await history.generations()]
    if as_json:
        output.print_result({**session_to_dict(info), "generations": earlier, "items": items}, "")
        return
    output.console.print(f"[bold]{escape(session_id)}[/]  {info.head}, changed {format_time(info.updated_at)}")
    if earlier:
        shown = "" if generation is None else f"this is generation {generation}; "
        output.console.print(f"[dim]{shown}earlier generations: {', '.join(map(str, earlier))} (see --generation)[/]")
    output.console.print()
    for item in items:
        output.console.print(format_item(item))


def format_item(item: Item) -> str:
    """An item as one or a few lines, with markup."""
    match item.get("type", "message"):
        case "message":
            who = str(item.get("role", "?"))
            return f"[bold {'cyan' if who == 'user' else 'green'}]{escape(who)}[/]  {escape(extract_text(item))}"
        case "function_call":
            return f"[magenta]call[/]  {escape(str(item.get('name')))}({escape(str(item.get('arguments')))})"
        case "function_call_output":
            return f"[magenta]output[/]  {escape(extract_text(item))}"
        case kind:
            return f"[dim]{escape(str(kind))}[/]  {escape(extract_text(item))}"


@app.command()
@command
async def search(
    query: Annotated[str, typer.Argument(help="Words; each must begin a word of the item.")],
    session_id: Annotated[
        str | None, typer.Option("--session", help="Only in this session.", autocompletion=completing.complete_sessions)
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only sessions of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 20,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Find items by their words.

    holdfast sessions search "refund order"
    """
    if not query.strip():
        raise InvalidInput("give at least one word to look for")
    output = CommandOutput(as_json)
    with output.show_status("searching; the first search of a store takes longest"):
        hits = await search_store(store, query, session_id=session_id, owner=owner, limit=limit)
    rows = [{"session": hit.session_id, "position": hit.position, "text": hit.text, "item": hit.item} for hit in hits]
    output.print_table(("session", "position", "text"), rows, empty="nothing found")
    print_other_tables(store, as_json)


async def search_store(
    store: str, query: str, *, session_id: str | None, owner: str | None, limit: int
) -> list[SearchHit]:
    async with open_existing_store(store) as opened:
        if session_id is None:
            return await opened.search(query, owner=owner, limit=limit)
        await opened.describe(session_id)
        return await opened.session(session_id).search(query, limit=limit)


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
    async with open_existing_store(store) as opened:
        await opened.describe(session_id)
        child = await opened.session(session_id).fork(at=at, session_id=new_id)
        info = await opened.describe(child.session_id)
    CommandOutput(as_json).print_result(
        session_to_dict(info), f"{escape(child.session_id)} shares {info.head.length} items"
    )


@app.command()
@command
async def restore(
    session_id: SessionId,
    generation: Annotated[int, typer.Option("--generation", "-g", help="Which, as `sessions show` lists them.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Undo a rewind: show that generation again, and after it what was added since.

    holdfast sessions restore user-7 --generation 0
    """
    async with open_existing_store(store) as opened:
        await opened.describe(session_id)
        await opened.session(session_id).restore(generation)
        info = await opened.describe(session_id)
    CommandOutput(as_json).print_result(session_to_dict(info), f"{escape(session_id)} is at {info.head}")


@app.command()
@command
async def rewind(
    session_id: SessionId,
    to: Annotated[int, typer.Option(min=0, help="Keep so many items.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Go back to an earlier item. What came after it stays readable as an older generation.

    holdfast sessions rewind user-7 --to 12
    """
    async with open_existing_store(store) as opened:
        there = (await opened.describe(session_id)).head.length
        if to > there:
            raise InvalidInput(f"cannot rewind to {to}: the session has {there} items")
        await opened.session(session_id).rewind(to=to)
        info = await opened.describe(session_id)
    CommandOutput(as_json).print_result(session_to_dict(info), f"{escape(session_id)} is at {info.head}")


app.command()(transfer.export)
app.command("import")(transfer.import_)
app.command()(transfer.check)


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
    async with open_existing_store(store) as opened:
        info = await opened.describe(session_id)
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidInput("deleting cannot be undone: say --yes")
            typer.confirm(f"Destroy {session_id} with its {info.head.length} items?", abort=True)
        await opened.delete(session_id)
    CommandOutput(as_json).print_result({"id": session_id, "deleted": True}, f"{escape(session_id)} is gone")
