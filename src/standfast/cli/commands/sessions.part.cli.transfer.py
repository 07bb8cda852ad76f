"""Whole conversations: writing them out, reading them in, and looking for damage in them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from holdfast.cli import completing
from holdfast.cli.failing import FAILED, command
from holdfast.cli.opening import DEFAULT_STORE, StoreUrl, open_existing_store
from holdfast.cli.output import AsJson, CommandOutput, format_time, print_utf8
from holdfast.history.checking import IntegrityReport
from holdfast.history.store import Store, StoredSessionInfo, open_store

SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="The session's id.", autocompletion=completing.complete_sessions)
]


def session_to_dict(info: StoredSessionInfo) -> dict[str, Any]:
    return {
        "id": info.session_id,
        "items": info.head.length,
        "version": info.head.version,
        "owner": info.owner,
        "encrypted": info.encrypted,
        "updated": format_time(info.updated_at),
        "updated_at": info.updated_at,
        "created_at": info.created_at,
        "metadata": info.metadata,
        "cursor": info.cursor,
    }


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
    async with open_existing_store(store) as opened:
        with CommandOutput(as_json or file is None).show_status("reading"):
            lines = [line async for line in await opened.export(session_id)]
    if file is None:
        print_utf8("\n".join(lines).encode())
    else:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = f"{len(lines) - 1} items written to {escape(str(file))}"
        CommandOutput(as_json).print_result({"id": session_id, "items": len(lines) - 1, "file": str(file)}, text)


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
        with CommandOutput(as_json).show_status("writing"):
            made = await opened.import_(read_lines(file), session_id=new_id)
        info = await opened.describe(made.session_id)
    CommandOutput(as_json).print_result(
        session_to_dict(info), f"{escape(made.session_id)} has {info.head.length} items"
    )


def read_lines(file: Path) -> Iterator[str]:
    if str(file) == "-":
        yield from sys.stdin
        return
    with file.open(encoding="utf-8") as lines:
        yield from lines


@command
async def check(
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="The session; all of them without it.", autocompletion=completing.complete_sessions
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Look for damage: unreadable records, calls without outputs, tampering. Changes nothing; exit code 1 if any.

    A call that waits for an approval has no output yet and is named too.

    holdfast sessions check
    """
    output = CommandOutput(as_json)
    async with open_existing_store(store) as opened:
        with output.show_status("looking at every record"):
            if session_id is not None:
                await opened.describe(session_id)
                names = [session_id]
            else:
                names = await list_session_ids(opened)
            reports = [await opened.session(name).check() for name in names]
    rows = [
        {
            "id": one.session_id,
            "ok": one.ok,
            "items": one.readable,
            "found": format_findings(one),
            **msgspec.to_builtins(one),
        }
        for one in reports
    ]
    output.print_table(("id", "ok", "items", "found"), rows, empty="no sessions")
    return 0 if all(one.ok for one in reports) else FAILED


def format_findings(report: IntegrityReport) -> str:
    """The findings in words."""
    words = [f"record {one.position} cannot be read ({one.reason})" for one in report.corrupt]
    words += [f"item {one.index} is a {one.problem.replace('-', ' ')}" for one in report.unpaired]
    words += [f"{len(report.quarantined)} records were set aside"] if report.quarantined else []
    return "; ".join([*words, *([report.tampered] if report.tampered else [])])


async def list_session_ids(store: Store) -> list[str]:
    names: list[str] = []
    after = None
    while page := await store.sessions(limit=200, after=after):
        names += [info.session_id for info in page]
        after = page[-1].cursor
    return names
