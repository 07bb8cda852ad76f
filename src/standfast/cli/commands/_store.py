"""The ``--store`` option, opening the store that it names, its keys and audit log, shell completion of ids in it."""

import asyncio
import getpass
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.text import make_visible
from standfast.history.encryption.session import EncryptedSession
from standfast.history.store import Store, open_store
from standfast.history.stored_session import StoredSession
from standfast.server.auth.audit import Audit
from standfast.server.auth.keys import ApiKey, ApiKeys, NewApiKey
from standfast.store.audit_entries import AuditEntry

if TYPE_CHECKING:
    from standfast.agents.agent import Agent
    from standfast.client import Client
    from standfast.client.administration import RemoteAdmin
    from standfast.runtime.handle import RunHandle
    from standfast.runtime.runtime import Runtime
    from standfast.runtime.types import Approval

DEFAULT_STORE = "sqlite:///standfast.db"
STORE_VARIABLE = "STANDFAST_STORE"
SQLITE_SESSION_TABLES = ("agent_sessions", "agent_messages")

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        "-s",
        envvar=STORE_VARIABLE,
        help="The URL of the store: sqlite:///PATH, postgresql+asyncpg://..., redis://..., or http://... of a server.",
    ),
]


def format_store_option(url: str) -> list[str]:
    """Return the option that selects this store, or nothing if it is the default."""
    return [] if url == os.environ.get(STORE_VARIABLE, DEFAULT_STORE) else ["--store", url]


KEY_VARIABLE = "STANDFAST_ENCRYPTION_KEY"
"""From the environment only: a command line can be read by other users of the machine."""


def get_encryption_keys() -> list[str] | None:
    """Return the encryption keys in the environment, one per line, the one to encrypt with first."""
    return [line for line in os.environ.get(KEY_VARIABLE, "").splitlines() if line] or None


def require_encryption_keys() -> list[str]:
    keys = get_encryption_keys()
    if keys is None:
        raise InvalidInput(f"set {KEY_VARIABLE} to the new key and the former ones, one per line, the new one first")
    return keys


def open_runtime(
    url: str, *, agents: "Sequence[Agent[Any]]" = (), **options: Any
) -> "AbstractAsyncContextManager[Runtime]":
    """Open a runtime on the store, with the encryption keys in the environment; or the runtime behind a server."""
    from standfast.runtime.runtime import Runtime

    if is_server(url):
        return cast("AbstractAsyncContextManager[Runtime]", open_client(url, agents))
    return Runtime.open(url, agents=agents, encryption_key=get_encryption_keys(), **options)


TOKEN_VARIABLE = "STANDFAST_TOKEN"  # noqa: S105 - the name of a variable


def is_server(url: str) -> bool:
    """Return whether the store is one behind ``standfast serve``."""
    return url.startswith(("http://", "https://"))


def require_store(url: str) -> str:
    """Return the URL; refuse that of a server, which has no endpoint for what some commands do."""
    if is_server(url):
        raise InvalidInput("this command works on a store, not on a server: name the store with --store")
    return url


def open_client(url: str, agents: "Sequence[Agent[Any]]" = ()) -> "Client":
    """Return a client with the token in the environment. The agents of a server are its own."""
    from standfast.client import Client

    if agents:
        raise InvalidInput("a server has its own agents: leave the agent out, or name a store instead of the server")
    return Client(url, token=os.environ.get(TOKEN_VARIABLE))


async def open_session(store: Store, session_id: str) -> StoredSession:
    """Return a session that exists, with the encryption keys in the environment if it is encrypted."""
    info, session, keys = await store.describe(session_id), store.session(session_id), get_encryption_keys()
    if not isinstance(session, StoredSession):  # of a server, which has the keys
        return session
    if not info.encrypted or keys is None:
        return session
    return EncryptedSession(session_id, session, keys).require_stored_session("open")


def describe_lock() -> str:
    """Return why a run or an approval cannot be read."""
    if get_encryption_keys() is None:
        return f"encrypted: set {KEY_VARIABLE}"
    return f"not encrypted, or not with the keys in {KEY_VARIABLE}"


MAX_SEARCHED = 500
"""How many of the latest runs or approvals are compared with the beginning of an id."""


async def find_run(rt: "Runtime", given: str) -> "RunHandle":
    """Return the run with this id, or the only one whose id begins with it."""
    try:
        return await rt.run(given)
    except NotFound:
        found = [info.run_id for info in await rt.runs(limit=MAX_SEARCHED, newest_first=True)]
        return await rt.run(choose_id("run", given, found))


async def find_approval(rt: "Runtime", given: str) -> "Approval":
    """Return the approval with this id, or the only one whose id begins with it."""
    try:
        return await rt.approval(given)
    except NotFound:
        found = [approval.id for approval in await rt.approvals(limit=MAX_SEARCHED)]
        return await rt.approval(choose_id("approval", given, found))


def choose_id(what: str, given: str, ids: list[str]) -> str:
    """Return the id that begins with what was given, with or without the word that all ids begin with."""
    matching = [name for name in ids if name.startswith(given) or name.partition("_")[2].startswith(given)]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise NotFound(what, given)
    raise InvalidInput(f"{given!r} is the beginning of {len(matching)} {what}s: {', '.join(sorted(matching)[:5])}")


class StoreNotFound(NotFound):
    """There is no database at the URL yet."""

    def __init__(self, url: str) -> None:
        super().__init__("store", url)
        self.args = (f"there is no store at {url}: choose another with --store or STANDFAST_STORE",)


def require_existing_store(url: str) -> str:
    """Return the URL; raise :class:`StoreNotFound` rather than create a missing SQLite file."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and path not in ("", ":memory:") and not Path(path).exists():
        raise StoreNotFound(url)
    return url


@asynccontextmanager
async def open_existing_store(url: str) -> AsyncIterator[Store]:
    """Open an existing store. Errors about a missing session mention other tables of the same file."""
    if is_server(url):
        async with open_client(url) as client:
            yield cast(Store, client.store)
        return
    async with open_store(require_existing_store(url)) as store:
        try:
            yield store
        except NotFound as missing:
            missing.args = ("; ".join([str(missing), *find_other_tables(url)]),)
            raise


def find_other_tables(url: str) -> list[str]:
    """Describe tables that ``SQLiteSession`` has written to the same file under other names."""
    path, _, query = url.removeprefix("sqlite:///").partition("?")
    if not url.startswith("sqlite:///") or path in ("", ":memory:") or "tables=" in query:
        return []
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
        names = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names.issuperset(SQLITE_SESSION_TABLES):
        return []
    other = f"{url}{'&' if query else '?'}tables={','.join(SQLITE_SESSION_TABLES)}"
    return [f"this file also has sessions written by SQLiteSession: --store '{other}'"]


Completion = tuple[str, str]
"""An id and a description, which some shells show."""

MAX_COMPLETIONS = 100
TIMEOUT = 2.0
"""Seconds after which a slow store yields no completions: the user waits at the prompt."""


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_session_ids)


def complete_runs(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_run_ids)


def complete_approvals(ctx: typer.Context, incomplete: str) -> list[Completion]:
    return complete(ctx, incomplete, find_approval_ids)


def complete(
    ctx: typer.Context, incomplete: str, find: Callable[[str, str], Coroutine[Any, Any, list[Completion]]]
) -> list[Completion]:
    """Return the ids that start with ``incomplete``; nothing if the store is missing or does not answer.

    The shell prints them as they are, so that ids with invisible characters cannot be offered.
    """
    store = ctx.params.get("store") or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
    try:
        ids = asyncio.run(asyncio.wait_for(find(store, incomplete), TIMEOUT))
    except Exception:  # noqa: BLE001 - must not disturb the prompt
        return []
    offered = [(name, make_visible(description)) for name, description in ids if name.startswith(incomplete)]
    return [(name, description) for name, description in offered if name == make_visible(name)]


async def find_session_ids(store: str, prefix: str) -> list[Completion]:
    async with open_existing_store(store) as opened:
        found = await opened.sessions(query=prefix or None, limit=MAX_COMPLETIONS)
    return [(info.session_id, f"{info.head.length} items") for info in found]


async def find_run_ids(store: str, prefix: str) -> list[Completion]:

    async with open_runtime(require_existing_store(store)) as rt:
        return [
            (info.run_id, f"{info.status}, {info.agent}")
            for info in await rt.runs(limit=MAX_COMPLETIONS, newest_first=True)
        ]


async def find_approval_ids(store: str, prefix: str) -> list[Completion]:
    async with open_runtime(require_existing_store(store)) as rt:
        return [(one.id, f"{one.status}, {one.tool}") for one in await rt.approvals()]


class StoreAdmin:
    """The keys and the audit log of a store, with the methods that :class:`RemoteAdmin` has for those of a server."""

    def __init__(self, store: Store) -> None:
        self._keys, self._audit = ApiKeys(store), Audit(store)

    async def keys(self) -> list[ApiKey]:
        return list(await self._keys.list())

    async def create_key(self, name: str, *, role: str, owner: str, expires_at: float | None) -> NewApiKey:
        return await self._keys.create(name, role=role, owner=owner, expires=expires_at, by=get_subject())

    async def revoke_key(self, key_id: str) -> ApiKey:
        return await self._keys.revoke(key_id, by=get_subject())

    async def audit(self, *, limit: int, after: str | None, **filters: Any) -> list[AuditEntry]:
        return list(await self._audit.list(limit=limit, after=after, **filters))


@asynccontextmanager
async def open_admin(
    url: str, open_store: Callable[[str], AbstractAsyncContextManager[Store]] = open_existing_store
) -> "AsyncIterator[StoreAdmin | RemoteAdmin]":
    """Open the keys and the audit log of a store, which must exist unless ``open_store`` makes it, or of a server."""
    if is_server(url):
        async with open_client(url) as client:
            yield client.admin
        return
    async with open_store(url) as store:
        yield StoreAdmin(store)


def get_subject() -> str:
    """Return the subject that the audit log records for a command."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "cli"
