"""Take over the sessions of openai-agents in their own database, and give them back."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

from standfast.base.errors import InvalidInput, MissingExtra, WrongKey
from standfast.base.items import encode_item
from standfast.history.codec import decode_page
from standfast.history.compat.branches import MAIN_BRANCH
from standfast.history.compat.openai_agents_branches import read_branches
from standfast.history.compat.turns import is_turn_log_page
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.encryption.openai_agents import EnvelopeCipher
from standfast.history.imports.copies import CopiedSession
from standfast.history.imports.openai_agents import DEFAULT_PREFIX, DEFAULT_TABLES, REDIS_SCHEMES, read_openai_agents
from standfast.history.imports.sources import has_table, open_database
from standfast.history.reader import PLAIN_CODEC
from standfast.store.records import HistoryPage
from standfast.store.sql import adoption
from standfast.store.sql.adoption import ReturnedSession
from standfast.store.sql.connection import DatabaseConnection, GetColumns, TableNames, get_names_beside
from standfast.store.sql.openai_agents_tables import ForeignTablesPolicy
from standfast.store.sqlite.backend import SqliteBackend
from standfast.store.sqlite.migrator import get_columns

AdoptionWork = Callable[[DatabaseConnection, GetColumns, str], list[ReturnedSession]]


async def adopt(
    url: str,
    *,
    tables: tuple[str, str] = DEFAULT_TABLES,
    prefix: str = DEFAULT_PREFIX,
    secrets: Sequence[str] = (),
    dry_run: bool = False,
) -> list[CopiedSession]:
    """Take over the tables of openai-agents in one transaction, and return a report.

    Afterwards ``SQLiteSession`` and ``SQLAlchemySession`` with these table names use tables of standfast, with all
    features, and openai-agents can read its tables but no longer write to them. ``secrets`` only serve to check that
    encrypted sessions can be read. In Redis the sessions under ``prefix`` are taken over, each in one transaction.
    """
    if url.startswith(REDIS_SCHEMES):
        from standfast.history.imports.redis_adoption import adopt_prefix

        return await adopt_prefix(url, prefix=prefix, secrets=secrets, dry_run=dry_run)
    if await is_adopted(url, tables):
        raise InvalidInput(f"the tables {' and '.join(tables)} are adopted already")
    report = [
        CopiedSession(
            session_id=source.session_id,
            outcome="adopted",
            items=len(source.items),
            branches=max(len(source.branches) - 1, 0),
            note="; ".join([*source.notes, *filter(None, [source.problem])]),
        )
        async for source in read_openai_agents(url, tables=tables, secrets=secrets)
    ]
    if not dry_run:
        async with _open_backend(url, TableNames(*tables), "adopt") as backend:
            await backend.open()
    return report


async def undo_adoption(
    url: str,
    *,
    tables: tuple[str, str] = DEFAULT_TABLES,
    prefix: str = DEFAULT_PREFIX,
    secrets: Sequence[str] = (),
    dry_run: bool = False,
) -> list[CopiedSession]:
    """Give the tables back to openai-agents, with what was written since, in one transaction, and return a report.

    The tables of standfast are dropped, with earlier generations and metadata. If a session cannot be represented in
    the tables of openai-agents, its outcome is ``refused``, and nothing is changed. ``secrets`` are needed for
    encrypted sessions that were used since. Stop the programs that use standfast before.
    """
    if url.startswith(REDIS_SCHEMES):
        from standfast.history.imports.redis_adoption import return_prefix

        return await return_prefix(url, prefix=prefix, secrets=secrets, dry_run=dry_run)
    if not await is_adopted(url, tables):
        raise InvalidInput(f"the tables {' and '.join(tables)} are not adopted: there is nothing to give back")
    names = TableNames(*tables)
    encode = partial(_encode_page, messages=names.items, secrets=secrets)

    def work(db: DatabaseConnection, columns: GetColumns, dialect: str) -> list[ReturnedSession]:
        return adoption.return_sessions(db, names, columns, dialect=dialect, encode=encode, dry_run=dry_run)

    async with _open_backend(url, names, "refuse") as backend:
        returned = await _run_in_transaction(backend, work)
    return [
        CopiedSession(session_id=entry.session_id, outcome=entry.outcome, items=entry.items, note=entry.problem)
        for entry in returned
    ]


async def is_adopted(url: str, tables: tuple[str, str] = DEFAULT_TABLES) -> bool:
    """Return whether standfast has taken over the tables. Raise :class:`InvalidInput` if they do not exist."""
    names = TableNames(*tables)
    async with open_database(url) as query:
        if not await has_table(query, names.items, "message_data"):
            raise InvalidInput(
                f"there is no table {names.items!r} of openai-agents; --tables SESSIONS,MESSAGES names other tables"
            )
        return await has_table(query, get_names_beside(names).sessions, "tape")


@asynccontextmanager
async def _open_backend(url: str, names: TableNames, policy: ForeignTablesPolicy) -> AsyncIterator[Any]:
    backend: Any
    if url.startswith("sqlite://"):
        path = unquote(url.partition("///")[2].partition("?")[0])
        backend = SqliteBackend(path, names=names, foreign_tables=policy)
    else:
        try:
            from standfast.store.sqlalchemy.backend import SqlBackend
        except ImportError as error:
            raise MissingExtra("sql", "a database server") from error
        backend = SqlBackend.from_url(url, names=names, foreign_tables=policy)
    try:
        yield backend
    finally:
        await backend.close()


async def _run_in_transaction(backend: Any, work: AdoptionWork) -> list[ReturnedSession]:
    await backend.open()
    if isinstance(backend, SqliteBackend):
        return await backend.write(lambda db: work(db, partial(get_columns, db), "sqlite"))
    migrator, transactions = backend.make_migrator(), backend.transactions

    def run(raw: Any) -> list[ReturnedSession]:
        columns = partial(migrator.get_columns, raw)
        done: list[ReturnedSession] = transactions.run_in_transaction(
            raw, lambda db: work(db, columns, transactions.dialect.name)
        )
        return done

    returned: list[ReturnedSession] = await backend.connections.acquire_and_run(run)
    return returned


def _encode_page(
    db: DatabaseConnection, page: HistoryPage, *, messages: str, secrets: Sequence[str]
) -> list[str] | ReturnedSession | None:
    """Return the texts of a session for the tables of openai-agents; see :data:`adoption.EncodePage`."""
    record = page.record
    if is_turn_log_page(page):
        return None
    if record.seal is not None:
        try:
            return _encode_encrypted(page, secrets)
        except WrongKey as error:
            return ReturnedSession(record.session_id, "refused", problem=str(error))
    items = [entry.item for entry in decode_page(PLAIN_CODEC, page)[0]]
    main = record.metadata.get("branch_of", record.session_id)
    name = record.metadata.get("branch", MAIN_BRANCH)
    stored = read_branches(db, messages, main) if db.lock_clause == "" else None
    if stored is None and main == record.session_id:
        return [(row.data or b"").decode("utf-8", "surrogateescape") for row in page.rows]
    if stored is not None and stored.branches.get(name) == items:
        return ReturnedSession(record.session_id, "unchanged") if main == record.session_id else None
    return ReturnedSession(
        main,
        "refused",
        problem=f"its branch {name!r} was changed here: write it to a file with `standfast export openai-agents`",
    )


def _encode_encrypted(page: HistoryPage, secrets: Sequence[str]) -> list[str]:
    session_id = page.record.session_id
    if not secrets:
        raise WrongKey(f"session {session_id!r} is encrypted: pass its key")
    codec, cipher = EncryptingCodec(list(secrets), allow_short=True), EnvelopeCipher(session_id, secrets)
    codec.verify_page(page)
    return [
        encode_item(cipher.encrypt(entry.item, written_at=entry.written_at)).decode()
        for entry in decode_page(codec, page)[0]
    ]
