"""A store: open it, and list, search, annotate, export, import and delete its sessions."""

import base64
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec

from standfast.base.errors import InvalidInput, InvalidItem, NotFound, Unsupported
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import to_plain_json
from standfast.history.compat.turns import is_turn_log
from standfast.history.deletion import DeletedSession, RunsOfSession, delete_session
from standfast.history.search import SearchHit, parse_query, search_index, validate_query
from standfast.history.session import SessionSettings, make_conversation_key, validate_listing_limit
from standfast.history.stored_session import StoredSession
from standfast.history.transfer import export_lines, import_session, parse_lines, validate_text
from standfast.lifecycle.owner import Opener
from standfast.store.audit_entries import Actor, AuditWriter
from standfast.store.backend import Backend, Cursor
from standfast.store.operations import Annotate, Op
from standfast.store.records import Head, SessionRecord
from standfast.store.urls import open_backend
from standfast.workspaces.versions import name_session_workspace

if TYPE_CHECKING:
    from standfast.workspaces.executor import WorkspaceExecutor


class StoredSessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a session in a store: everything but its items."""

    session_id: str
    """The id of the session."""
    owner: str | None
    """The user or tenant that the session belongs to."""
    metadata: dict[str, Any]
    """What the program has noted about the session with ``Store.annotate``."""
    head: Head
    """The version and length of its history."""
    generation: int
    """The number of its current generation."""
    encrypted: bool
    """Whether its items are encrypted."""
    created_at: float
    """When it was created, in seconds since 1970."""
    updated_at: float
    """When it was changed last, in seconds since 1970."""

    @classmethod
    def from_record(cls, record: SessionRecord) -> Self:
        """Return what a record says about its session."""
        return cls(
            session_id=record.session_id,
            owner=record.owner,
            metadata=record.metadata,
            head=record.head,
            generation=record.generation,
            encrypted=record.seal is not None,
            created_at=record.created_at,
            updated_at=record.updated_at,
        )

    @property
    def cursor(self) -> str:
        """The value to pass as ``after`` to continue a listing after this session."""
        return base64.urlsafe_b64encode(msgspec.json.encode(Cursor(self.updated_at, self.session_id))).decode()


class Store:
    """The sessions of one database. Created by :func:`open_store`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.closed = False

    async def close(self) -> None:
        """Release the resources that were acquired by opening. An engine or client of the caller stays open."""
        if not self.closed:  # stores on the same file share a backend, which counts its users
            self.closed = True
            await self.backend.close()

    def scoped(self, owner: str) -> "Store":
        """Return the store as ``owner`` sees it. On PostgreSQL with row-level security, the database enforces it.

        Sessions can be read and written, and runs, approvals and workspaces read. What belongs to others does not
        exist. Every other store, and every operation that destroys, raises :class:`Unsupported`. Closing this store
        has no effect on the other.
        """
        narrow = getattr(self.backend, "for_owner", None)
        if narrow is None:
            raise Unsupported("only a store in PostgreSQL can be scoped to an owner")
        return Store(narrow(validate_name("owner", owner)))

    def session(
        self,
        session_id: str,
        *,
        settings: SessionSettings | dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> StoredSession:
        """Return the session with this id. It is created by the first write, which also records ``owner``."""
        return StoredSession(session_id, self.backend, settings=settings, owner=owner)

    def open_workspaces(self, **options: Any) -> "WorkspaceExecutor":
        """Return the executor for workspaces in this store, for :class:`~standfast.workers.PythonSessions`."""
        from standfast.workspaces.executor import WorkspaceExecutor  # only programs with workers need it

        return WorkspaceExecutor(self.backend, **options)

    def name_workspace(self, conversation: str) -> str:
        """Return the key of the workspace of a conversation: its session if that is in this store."""
        own = make_conversation_key(self.backend.location, "")
        if conversation.startswith(own) and len(conversation) > len(own):
            return name_session_workspace(conversation.removeprefix(own))
        return f"conversation:{conversation}"

    async def sessions(
        self, *, owner: str | None = None, query: str | None = None, limit: int | None = 50, after: str | None = None
    ) -> list[StoredSessionInfo]:
        """List sessions, the most recently changed first.

        ``query`` selects sessions with this text in their id or metadata. ``after`` is a
        :attr:`StoredSessionInfo.cursor`. The branches of an :class:`AdvancedSQLiteSession` are listed as sessions whose
        annotation ``branch_of`` is the id of that session.
        """
        if query is not None:
            validate_text("query", validate_query(query))
        filters, max_count = {"owner": validate_owner(owner), "query": query}, validate_listing_limit(limit)
        listed: list[StoredSessionInfo] = []
        cursor, may_have_more = parse_cursor(after), True
        while may_have_more and len(listed) < max_count:
            page = await self.backend.list_sessions(**filters, limit=max_count - len(listed), after=cursor)
            listed += [
                StoredSessionInfo.from_record(record) for record in page if not await is_turn_log(self.backend, record)
            ]
            if may_have_more := bool(page):
                cursor = Cursor(page[-1].updated_at, page[-1].session_id)
        return listed

    async def describe(self, session_id: str) -> StoredSessionInfo:
        """Return the description of a session, or raise :class:`NotFound`."""
        return StoredSessionInfo.from_record(await self.require_record(validate_name("session id", session_id)))

    async def annotate(
        self, session_id: str, metadata: dict[str, Any], *, owner: str | None = None, claim: bool = False
    ) -> StoredSessionInfo:
        """Merge ``metadata`` into that of the session. A value of ``None`` removes its key.

        ``owner`` replaces the owner; with ``claim``, raise :class:`OutsideScope` if the session has another one.
        """
        try:
            plain = to_plain_json(metadata, "metadata")
        except InvalidItem as problem:
            raise InvalidInput(str(problem)) from None
        if not isinstance(plain, dict):
            raise InvalidInput(f"metadata must be a mapping, not {type(metadata).__name__}")
        name = validate_name("session id", session_id)
        await self.backend.commit(Annotate(session_id=name, metadata=plain, owner=validate_owner(owner), claim=claim))
        return await self.describe(session_id)

    async def set_owner(self, session_id: str, owner: str, *, by: Actor | str | None = None) -> StoredSessionInfo:
        """Record another owner of the session, and so of its runs and approvals. An owner is a label, no permission.

        With ``by``, who changes it, the audit log of the store gets an entry in the same commit.
        """
        await self.require_record(validate_name("session id", session_id))
        ops: list[Op] = [Annotate(session_id=session_id, metadata={}, owner=validate_name("owner", owner))]
        if by is not None:
            facts = {"session_id": session_id, "owner": owner}
            ops.append(AuditWriter().make_operation("owner changed", by, facts)[0])
        await self.backend.commit(*ops)
        return await self.describe(session_id)

    async def delete(self, session_id: str, *, runs: RunsOfSession = "delete") -> DeletedSession:
        """Delete the session with its generations, annotations and durable runs, in one commit.

        Raise :class:`SessionBusy` if one of its runs has not ended, and :class:`RunShared` if a run of another session
        was forked from one of them. With ``runs="keep"`` the runs stay, with the words of the conversation in their
        journals, and the result lists them. Forks of the session keep the items that they show.
        """
        return await delete_session(self.backend, validate_name("session id", session_id), runs=runs)

    async def search(self, query: str, *, owner: str | None = None, limit: int | None = 20) -> list[SearchHit]:
        """Return the items in which each word of ``query`` is the beginning of a word, newest sessions first.

        Encrypted sessions are not searched.
        """
        terms, max_hits = parse_query(query, limit)
        if not terms or not max_hits:
            return []
        reader = self.session("any")  # candidates carry their session; the reader only decodes them
        hits = await search_index(
            self.backend, reader.match_candidate, terms, owner=validate_owner(owner), limit=max_hits
        )
        return hits if hits is not None else await self.scan(terms, owner, max_hits)

    async def scan(self, terms: list[str], owner: str | None, limit: int) -> list[SearchHit]:
        """Search without an index, session by session."""
        hits: list[SearchHit] = []
        after: str | None = None
        while len(hits) < limit:
            page = await self.sessions(owner=owner, after=after)
            for info in page:
                if not info.encrypted:
                    hits += await self.session(info.session_id).scan(terms, limit - len(hits))
            if not page:
                break
            after = page[-1].cursor
        return hits[:limit]

    async def export(self, session_id: str, *, encryption_key: str | Sequence[str] | None = None) -> AsyncIterator[str]:
        """Return the session as JSON Lines: a header, then one line per item. :meth:`import_` reads them.

        An encrypted session is decrypted with ``encryption_key``: the lines are not encrypted. A record that cannot be
        read is exported as it is stored, with the reason, so that nothing is lost.
        """
        record = await self.require_record(validate_name("session id", session_id))
        session = self.open_for_transfer(session_id, encryption_key if record.seal is not None else None)
        session.codec.verify(record)
        return export_lines(record, session)

    async def import_(
        self,
        lines: Iterable[str] | AsyncIterable[str],
        *,
        session_id: str | None = None,
        encryption_key: str | Sequence[str] | None = None,
        owner: str | None = None,
    ) -> StoredSession:
        """Create a session from exported lines in one commit. Raise :class:`AlreadyExists` if it exists.

        With ``encryption_key`` it is encrypted as by an :class:`EncryptedSession` with that key. With ``owner`` it
        belongs to that owner, whichever the export names; raise :class:`OutsideScope` if the id is another owner's.
        """
        exported = await parse_lines(lines)
        if owner is not None:
            exported.header["owner"] = validate_owner(owner)
        session = self.open_for_transfer(session_id or exported.session_id, encryption_key)
        session.claims = owner is not None
        await import_session(exported, session)
        return session

    def open_for_transfer(self, session_id: str, encryption_key: str | Sequence[str] | None) -> StoredSession:
        """Return a session for export or import, decrypting and encrypting with the key if there is one."""
        session = self.session(session_id)
        if encryption_key is None:
            return session
        from standfast.history.encryption.session import EncryptedSession

        return EncryptedSession(session_id, session, encryption_key).require_stored_session("export and import")

    async def require_record(self, session_id: str) -> SessionRecord:
        """Return the record of a session, or raise :class:`NotFound`."""
        record = await self.backend.get_session(session_id)
        if record is None:
            raise NotFound("session", session_id)
        return record


def open_store(url: Any, **options: Any) -> Opener[Store]:
    """Open the store at ``url``. Missing tables are created.

    Use it with ``async with``, which also closes it; or ``await`` it, and call :meth:`Store.close` in the end.

    ``memory://`` · ``sqlite:///path`` · ``postgresql+asyncpg://...`` (any SQLAlchemy asyncio URL) · ``redis://...``;
    or an SQLAlchemy ``AsyncEngine`` or a redis-py asyncio client, which the caller closes. ``SQLiteSession`` and
    ``SQLAlchemySession`` use tables with other names; open those with
    ``sqlite:///path?tables=agent_sessions,agent_messages``. With ``blobs="s3://bucket/prefix"``, or the URL of another
    object store or of a directory (``file:///path``), the content of workspaces is kept there.
    """

    async def open() -> Store:
        return Store(await open_backend(url, **options))

    @asynccontextmanager
    async def hold() -> AsyncIterator[Store]:
        store = await open()
        try:
            yield store
        finally:
            await store.close()

    return Opener("open_store(...)", hold=hold, open=open)


def parse_cursor(after: str | None) -> Cursor | None:
    if after is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after), type=Cursor)
    except (ValueError, TypeError, msgspec.MsgspecError):
        raise InvalidInput(f"after must be the cursor of a listed session, got {after!r}") from None
