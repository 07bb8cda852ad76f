"""``sessions``: list, show, search, fork, rewind, export, import, rekey, check and delete sessions."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.text import extract_text, format_arguments, make_visible
from standfast.cli.commands import _store
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import (
    AsJson,
    CommandPrinter,
    escape,
    escape_lines,
    format_count,
    format_time,
)
from standfast.cli.commands._prompt import Yes, confirm
from standfast.cli.commands._session_transfer import (
    SessionId,
    export,
    import_,
    list_session_ids,
    rekey,
    session_to_dict,
)
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, find_other_tables, open_existing_store, open_session
from standfast.history.deletion import DeletedSession
from standfast.history.integrity import IntegrityReport
from standfast.history.search import SearchHit
from standfast.history.store import StoredSessionInfo


@command
async def check(
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="The session. Default: all sessions.", autocompletion=_store.complete_sessions
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Check for unreadable records, calls without outputs and tampering. Changes nothing; exit code 1 if any is found.

    A call that waits for approval has no output yet and is listed, too.

    standfast sessions check
    """
    output = CommandPrinter(as_json)
    async with open_existing_store(store) as opened:
        with output.show_status("checking every record"):
            if session_id is not None:
                await opened.describe(session_id)
                names = [session_id]
            else:
                names = await list_session_ids(opened)
            reports = [await (await open_session(opened, name)).check() for name in names]
    rows = [
        {
            "id": report.session_id,
            "ok": report.ok,
            "items": report.readable,
            "found": format_findings(report),
            **msgspec.to_builtins(report),
        }
        for report in reports
    ]
    output.print_table(("id", "ok", "items", "found"), rows, empty="no sessions")
    return 0 if all(report.ok for report in reports) else FAILED


def format_findings(report: IntegrityReport) -> str:
    """Describe the findings of a report."""
    findings = [f"record {one.position} cannot be read ({one.reason})" for one in report.corrupt]
    findings += [f"item {one.index}: {one.problem.replace('-', ' ')}" for one in report.unpaired]
    findings += [f"quarantined records: {len(report.quarantined)}"] if report.quarantined else []
    return "; ".join([*findings, *([report.tampered] if report.tampered else [])])


app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command("list")
@command
async def list_(
    owner: Annotated[str | None, typer.Option(help="Only sessions of this owner.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Part of an id or of the metadata.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this cursor (see --json).")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, most recently changed first.

    standfast sessions list --owner ann --json
    """
    output = CommandPrinter(as_json)
    with output.show_status("reading"):
        async with open_existing_store(store) as opened:
            page = await opened.sessions(owner=owner, query=query, limit=limit, after=after)
    columns = ("id", "items", "owner", "encrypted", "updated", "metadata")
    output.print_table(columns, map(session_to_dict, page), empty="no sessions")
    print_other_tables(store, as_json)


def print_other_tables(store: str, as_json: bool) -> None:
    """Mention sessions in other tables of the same file."""
    for hint in [] if as_json else find_other_tables(store):
        Console(stderr=True, emoji=False, highlight=False, soft_wrap=True).print(f"[dim]{escape(hint)}[/]")


@app.command()
@command
async def show(
    session_id: SessionId,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the latest N items.")] = None,
    generation: Annotated[
        int | None,
        typer.Option("--generation", "-g", help="Show an earlier generation, from before a rewind or replacement."),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the items of a session.

    standfast sessions show user-7 --limit 20
    """
    output = CommandPrinter(as_json)
    with output.show_status("reading"):
        async with open_existing_store(store) as opened:
            info = await opened.describe(session_id)
            history = await open_session(opened, session_id)
            items = await history.get_items(limit=limit, generation=generation)
            earlier = [one.number for one in await history.generations()]
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
    """Format an item as rich markup."""
    match item.get("type", "message"):
        case "message":
            who = str(item.get("role", "?"))
            return f"[bold {'cyan' if who == 'user' else 'green'}]{escape(who)}[/]  {escape_lines(extract_text(item))}"
        case "function_call":
            return (
                f"[magenta]call[/]  {escape(item.get('name'))}({escape(format_arguments(str(item.get('arguments'))))})"
            )
        case "function_call_output":
            return f"[magenta]output[/]  {escape_lines(extract_text(item))}"
        case kind:
            return f"[dim]{escape(str(kind))}[/]  {escape_lines(extract_text(item))}"


@app.command()
@command
async def search(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Words; each must be the beginning of a word in the item.")
    ],
    session_id: Annotated[
        str | None,
        typer.Option("--session", help="Only in this session.", autocompletion=_store.complete_sessions),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only sessions of this owner.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")] = 20,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Search items by words.

    standfast sessions search "refund order"
    """
    if not query.strip():
        raise InvalidInput("the query is empty: give at least one word")
    output = CommandPrinter(as_json)
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
        return await (await open_session(opened, session_id)).search(query, limit=limit)


@app.command()
@command
async def fork(
    session_id: SessionId,
    at: Annotated[int | None, typer.Option(help="Number of items to share. Default: all.")] = None,
    new_id: Annotated[str | None, typer.Option("--as", help="The new session's id.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a session that shares the items of another.

    standfast sessions fork user-7 --at 12 --as user-7-b
    """
    async with open_existing_store(store) as opened:
        child = await (await open_session(opened, session_id)).fork(at=at, session_id=new_id)
        info = await opened.describe(child.session_id)
    CommandPrinter(as_json).print_result(
        session_to_dict(info), f"{escape(child.session_id)} shares {format_count(info.head.length, 'item')}"
    )


def format_length(info: StoredSessionInfo) -> str:
    head = info.head
    return f"{escape(info.session_id)} now has {format_count(head.length, 'item')} (version {head.version})"


@app.command()
@command
async def restore(
    session_id: SessionId,
    generation: Annotated[
        int, typer.Option("--generation", "-g", help="The generation, as listed by `sessions show`.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Undo a rewind: restore a generation and append the items added since.

    standfast sessions restore user-7 --generation 0
    """
    async with open_existing_store(store) as opened:
        await (await open_session(opened, session_id)).restore(generation)
        info = await opened.describe(session_id)
    CommandPrinter(as_json).print_result(session_to_dict(info), format_length(info))


@app.command()
@command
async def rewind(
    session_id: SessionId,
    to: Annotated[int, typer.Option(min=0, help="The number of items to keep.")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Remove the items after a position. They stay readable as an earlier generation.

    standfast sessions rewind user-7 --to 12
    """
    async with open_existing_store(store) as opened:
        length = (await opened.describe(session_id)).head.length
        if to > length:
            raise InvalidInput(f"cannot rewind to {to}: the session has {format_count(length, 'item')}")
        await (await open_session(opened, session_id)).rewind(to=to)
        info = await opened.describe(session_id)
    CommandPrinter(as_json).print_result(session_to_dict(info), format_length(info))


app.command()(export)
app.command("import")(import_)
app.command()(rekey)
app.command()(check)


@app.command()
@command
async def delete(
    session_id: SessionId,
    yes: Yes = False,
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="Keep its durable runs, which contain the conversation.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Delete a session with its metadata and its durable runs. Forks keep the items that they share.

    standfast sessions delete user-7 --yes
    """
    async with open_existing_store(store) as opened:
        info = await opened.describe(session_id)
        confirm(f"Delete {make_visible(session_id)} with its {format_count(info.head.length, 'item')}?", yes=yes)
        deleted = await opened.delete(session_id, runs="keep" if keep_runs else "delete")
    facts = {
        "id": session_id,
        "deleted": True,
        "deleted_runs": list(deleted.deleted_runs),
        "kept_runs": list(deleted.kept_runs),
    }
    CommandPrinter(as_json).print_result(facts, f"{escape(session_id)} is deleted{format_runs(deleted)}")


def format_runs(deleted: DeletedSession) -> str:
    if deleted.kept_runs:
        return f"; kept with the words of the conversation: {format_count(len(deleted.kept_runs), 'run')}"
    return f" with {format_count(len(deleted.deleted_runs), 'run')}" if deleted.deleted_runs else ""
