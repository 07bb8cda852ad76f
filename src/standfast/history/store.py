"""All the histories in one store: open it, list them, find, annotate, move and delete them."""

import base64
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, Self

import msgspec

from standfast.base.errors import AlreadyExists, HistoryMoved, InvalidInput, InvalidItem, NotFound, SessionDamaged
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import Item, encode_items, extract_text, extract_words, to_plain_json
from standfast.history.codec import UnreadableRecord
from standfast.history.compat.turns import get_log_id, is_turn_log
from standfast.history.search import SearchHit, parse_query, search_index
from standfast.history.session import SessionSettings, validate_listing_limit
from standfast.history.stored_session import StoredSession
from standfast.store.contract import Annotate, Backend, Cursor, Erase, Head, SessionRecord, Splice
from standfast.store.urls import open_backend

EXPORT_FORMAT = 1


class StoredSessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a session besides its items."""

    session_id: str
    owner: str | None
    metadata: dict[str, Any]
    head: Head
    generation: int
    encrypted: bool
    created_at: float
    updated_at: float

    @classmethod
    def from_record(cls, record: SessionRecord) -> Self:
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
        """Pass it as ``after`` to go on listing behind this session."""
        return base64.urlsafe_b64encode(msgspec.json.encode(Cursor(self.updated_at, self.session_id))).decode()


class Store:
    """Histories by their ids. Made by :func:`open_store`."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.closed = False

    async def close(self) -> None:
        """Release what opening this store acquired. Engines and clients that were handed in stay open."""
        if not self.closed:  # once: other stores on the same file share its backend
            self.closed = True
            await self.backend.close()

    def session(
        self,
        session_id: str,
        *,
        settings: SessionSettings | dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> StoredSession:
        """The history with this id, whether it exists yet or not. ``owner`` is recorded when it is created."""
        return StoredSession(session_id, self.backend, settings=settings, owner=owner)

    async def sessions(
        self, *, owner: str | None = None, query: str | None = None, limit: int | None = 50, after: str | None = None
    ) -> list[StoredSessionInfo]:
        """Sessions, those changed last first. ``query`` is part of an id or annotation, ``after`` a cursor.

        A branch of an :class:`AdvancedSQLiteSession` is a session too; its annotation ``branch_of`` says of which.
        """
        if query is not None:
            validate_text("query", query)
        where, most = {"owner": validate_owner(owner), "query": query}, validate_listing_limit(limit)
        found: list[StoredSessionInfo] = []
        behind, there_may_be_more = parse_cursor(after), True
        while there_may_be_more and len(found) < most:
            page = await self.backend.list_sessions(**where, limit=most - len(found), after=behind)
            found += [
                StoredSessionInfo.from_record(record) for record in page if not await is_turn_log(self.backend, record)
            ]
            if there_may_be_more := bool(page):
                behind = Cursor(page[-1].updated_at, page[-1].session_id)
        return found

    async def describe(self, session_id: str) -> StoredSessionInfo:
        record = await self.backend.get_session(validate_name("session id", session_id))
        if record is None:
            raise NotFound("session", session_id)
        return StoredSessionInfo.from_record(record)

    async def annotate(
        self, session_id: str, metadata: dict[str, Any], *, owner: str | None = None
    ) -> StoredSessionInfo:
        """Merge ``metadata`` into what is noted about the session; a value of ``None`` removes its key."""
        try:
            plain = to_plain_json(metadata, "metadata")
        except InvalidItem as problem:
            raise InvalidInput(str(problem)) from None
        if not isinstance(plain, dict):
            raise InvalidInput(f"metadata must be a mapping, not {type(metadata).__name__}")
        await self.backend.commit(
            Annotate(session_id=validate_name("session id", session_id), metadata=plain, owner=validate_owner(owner))
        )
        return await self.describe(session_id)

    async def delete(self, session_id: str) -> None:
        """Destroy the session, its generations and everything noted about it. Forks keep what they show."""
        with suppress(SessionDamaged):  # there it is, and beyond repair
            await self.require_record(validate_name("session id", session_id))
        gone = [session_id]
        log = await self.backend.get_session(get_log_id(session_id))
        if log is not None and await is_turn_log(self.backend, log):
            gone.append(log.session_id)
        await self.backend.commit(*(Erase(session_id=name, forget=True) for name in gone))

    async def search(self, query: str, *, owner: str | None = None, limit: int | None = 20) -> list[SearchHit]:
        """Items of all sessions in which every word of ``query`` begins a word, newest sessions first."""
        terms, most = parse_query(query, limit)
        if not terms or not most:
            return []
        reader = self.session("any")
        found = await search_index(self.backend, reader.match_candidate, terms, owner=validate_owner(owner), limit=most)
        return found if found is not None else await self.scan(terms, owner, most)

    async def scan(self, terms: list[str], owner: str | None, limit: int) -> list[SearchHit]:
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

    async def export(self, session_id: str) -> AsyncIterator[str]:
        """The session as JSON Lines: a header, then one line per item. :meth:`import_` reads it.

        A record that cannot be read is exported as it is stored, with the reason, so that nothing is lost.
        """
        info = await self.describe(session_id)
        session = self.session(session_id)
        session.codec.verify(await self.require_record(session_id))
        return export_lines(info, session)

    async def require_record(self, session_id: str) -> SessionRecord:
        record = await self.backend.get_session(session_id)
        if record is None:
            raise NotFound("session", session_id)
        return record

    async def import_(
        self, lines: Iterable[str] | AsyncIterable[str], *, session_id: str | None = None
    ) -> StoredSession:
        """Create a session from exported lines, in one commit. An existing one is never touched."""
        parsed = [(number, parse_line(number, line)) async for number, line in number_lines(lines) if line.strip()]
        if not parsed or parsed[0][1].get("standfast") != "session":
            raise InvalidInput("line 1: this is not an exported session")
        (_, header), *rest = parsed
        if header.get("format") != EXPORT_FORMAT:
            raise InvalidInput(f"line 1: export format {header.get('format')!r} is not known, only {EXPORT_FORMAT}")
        name = validate_name("session id", session_id or header.get("session_id"))
        metadata = header.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise InvalidInput(f"line 1: metadata must be a mapping, not {type(metadata).__name__}")
        data = [decode_exported_record(number, line) for number, line in rest]
        words = tuple(" ".join(extract_words(extract_text(line.get("item") or {}))) for _, line in rest)
        try:
            await self.backend.commit(
                Splice(
                    session_id=name,
                    add=tuple(data),
                    words=words if self.backend.indexes_words else (),
                    expected=0,
                    owner=validate_owner(header.get("owner")),
                ),
                Annotate(session_id=name, metadata=metadata),
            )
        except HistoryMoved:
            raise AlreadyExists("session", name) from None
        return self.session(name)


class _StoreOpener:
    """A store about to be opened: ``await`` it, or enter it with ``async with`` to have it closed as well."""

    def __init__(self, backend_factory: Callable[[], Any]) -> None:
        self.backend_factory = backend_factory
        self.store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self.open().__await__()

    async def open(self) -> Store:
        self.store = Store(await self.backend_factory())
        return self.store

    async def __aenter__(self) -> Store:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        if self.store is not None:
            await self.store.close()


def open_store(url: Any, **options: Any) -> _StoreOpener:
    """Open the store at ``url``, creating its tables if need be.

    ``memory://`` · ``sqlite:///path`` · ``postgresql+asyncpg://...`` (any SQLAlchemy asyncio URL) · ``redis://...``;
    or an SQLAlchemy ``AsyncEngine`` or a redis-py asyncio client, which stay the caller's. What ``SQLiteSession`` and
    ``SQLAlchemySession`` wrote is in tables of its own: ``sqlite:///path?tables=agent_sessions,agent_messages``.
    """
    return _StoreOpener(lambda: open_backend(url, **options))


def parse_cursor(after: str | None) -> Cursor | None:
    if after is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after), type=Cursor)
    except (ValueError, TypeError, msgspec.MsgspecError):
        raise InvalidInput(f"{after!r} is not a cursor of this listing") from None


async def export_lines(info: StoredSessionInfo, session: StoredSession) -> AsyncIterator[str]:
    header = {
        "standfast": "session",
        "format": EXPORT_FORMAT,
        "session_id": info.session_id,
        "owner": info.owner,
        "metadata": info.metadata,
        "created_at": info.created_at,
        "length": info.head.length,
    }
    yield msgspec.json.encode(header).decode()
    async for row, item in session.export():
        if isinstance(item, UnreadableRecord):
            stored = base64.b64encode(row.data or b"").decode()
            yield msgspec.json.encode({"unreadable": stored, "reason": str(item)}).decode()
        else:
            yield msgspec.json.encode({"item": item}).decode()


async def number_lines(lines: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[tuple[int, str]]:
    number = 0
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            number += 1
            yield number, validate_text(f"line {number}", line)
    elif isinstance(lines, Iterable) and not isinstance(lines, (str, bytes)):
        for line in lines:
            number += 1
            yield number, validate_text(f"line {number}", line)
    else:
        raise InvalidInput(f"expected the lines of an export, not {type(lines).__name__}")


def validate_text(what: str, text: object) -> str:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{what} is not valid Unicode (a lone surrogate)") from None
        return text
    raise InvalidInput(f"{what} must be a string, not {type(text).__name__}")


def parse_line(number: int, line: str) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"line {number}: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidInput(f"line {number}: expected a JSON object")
    return parsed


def decode_exported_record(number: int, line: dict[str, Item]) -> bytes:
    if "unreadable" in line:
        try:
            return base64.b64decode(str(line["unreadable"]), validate=True)
        except ValueError as error:
            raise InvalidInput(f"line {number}: its bytes are not base64: {error}") from None
    if not isinstance(line.get("item"), dict):
        raise InvalidInput(f"line {number}: there is no item in it")
    return encode_items([line["item"]])[0]
