"""``sessions export``, ``import`` and ``rekey``, and what all commands about sessions share."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from standfast.base.errors import HistoryTampered, WrongKey
from standfast.cli.commands import _store
from standfast.cli.commands._errors import FAILED, command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, format_count, format_time, print_utf8
from standfast.cli.commands._store import (
    DEFAULT_STORE,
    StoreUrl,
    get_encryption_keys,
    is_server,
    open_existing_store,
    require_encryption_keys,
)
from standfast.history.encryption.session import EncryptedSession
from standfast.history.store import Store, StoredSessionInfo, open_store
from standfast.store.sqlite.files import create_private_file

SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="The session's id.", autocompletion=_store.complete_sessions)
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


async def list_session_ids(store: Store) -> list[str]:
    names: list[str] = []
    after = None
    while page := await store.sessions(limit=200, after=after):
        names += [info.session_id for info in page]
        after = page[-1].cursor
    return names


@command
async def export(
    session_id: SessionId,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Export a session as JSON Lines, which `import` reads. The lines are JSON with or without --json.

    An encrypted session is decrypted with the key in STANDFAST_ENCRYPTION_KEY; the lines are not encrypted.

    standfast sessions export user-7 -o user-7.jsonl
    """
    keys: dict[str, Any] = {} if is_server(store) else {"encryption_key": get_encryption_keys()}  # a server has its own
    async with open_existing_store(store) as opened:
        with CommandPrinter(as_json or file is None).show_status("reading"):
            lines = [line async for line in await opened.export(session_id, **keys)]
    if file is None:
        print_utf8("\n".join(lines).encode())
    else:
        create_private_file(str(file))
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = f"{format_count(len(lines) - 1, 'item')} written to {escape(str(file))}"
        CommandPrinter(as_json).print_result({"id": session_id, "items": len(lines) - 1, "file": str(file)}, text)


@command
async def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `export`; - reads standard input.")],
    new_id: Annotated[
        str | None, typer.Option("--as", help="The id of the new session. Default: the id in the export.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a session from an export. An existing session is never changed.

    It is encrypted if there is a key in STANDFAST_ENCRYPTION_KEY.

    standfast sessions import user-7.jsonl --as user-7-copy
    """
    keys: dict[str, Any] = {} if is_server(store) else {"encryption_key": get_encryption_keys()}  # a server has its own
    async with open_existing_store(store) if is_server(store) else open_store(store) as opened:
        with CommandPrinter(as_json).show_status("writing"):
            imported = await opened.import_(read_lines(file), session_id=new_id, **keys)
        info = await opened.describe(imported.session_id)
    CommandPrinter(as_json).print_result(
        session_to_dict(info), f"{escape(imported.session_id)} has {format_count(info.head.length, 'item')}"
    )


def read_lines(file: Path) -> Iterator[str]:
    if str(file) == "-":
        yield from sys.stdin
        return
    with file.open(encoding="utf-8") as lines:
        yield from lines


@command
async def rekey(
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="The sessions. Default: all encrypted ones.",
            autocompletion=_store.complete_sessions,
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Encrypt sessions again with the first key in STANDFAST_ENCRYPTION_KEY; the other keys decrypt.

    Their earlier generations are deleted. For the runs in them, see `standfast runs rekey`.

    standfast sessions rekey
    """
    keys, output = require_encryption_keys(), CommandPrinter(as_json)
    rows: list[dict[str, Any]] = []
    async with open_existing_store(_store.require_store(store)) as opened:
        with output.show_status("encrypting"):
            for name in session_ids or await list_session_ids(opened):
                if not (await opened.describe(name)).encrypted:
                    continue
                try:
                    await EncryptedSession(name, opened.session(name), keys).rekey()
                except (WrongKey, HistoryTampered) as problem:
                    rows.append({"id": name, "ok": False, "problem": str(problem)})
                else:
                    rows.append({"id": name, "ok": True, "problem": None})
    output.print_table(("id", "ok", "problem"), rows, empty="no encrypted sessions")
    return 0 if all(row["ok"] for row in rows) else FAILED
