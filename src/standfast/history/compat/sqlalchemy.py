"""Sessions in any database that SQLAlchemy supports, with the same constructors as in openai-agents."""

from typing import Any, Self
from weakref import WeakValueDictionary

from standfast.base.errors import MissingExtra
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.sql.connection import TableNames

try:
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

    from standfast.store.sqlalchemy.backend import SqlBackend
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise MissingExtra("sql", "SQLAlchemySession") from error

# Sessions on the same engine share a backend, and so the tables are inspected only once.
_backends: WeakValueDictionary[tuple[int, TableNames, bool], SqlBackend] = WeakValueDictionary()


class SQLAlchemySession(StoredSession):
    """A session in a database of SQLAlchemy. The caller owns the engine, except with :meth:`from_url`.

    ``create_tables=True`` creates and upgrades the tables on first use; otherwise they must exist. ``ensure_ascii`` is
    accepted for compatibility and has no effect: items are stored as UTF-8. Tables of openai-agents are used as they
    are, until they are adopted: both programs can use the session, and methods for which they have no place raise
    :class:`NotAdopted`.
    """

    def __init__(
        self,
        session_id: str,
        *,
        engine: AsyncEngine,
        create_tables: bool = False,
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        ensure_ascii: bool = True,
    ) -> None:
        key = (id(engine), TableNames(sessions_table, messages_table), create_tables)
        backend = _backends.get(key)
        if backend is None:
            backend = _backends[key] = SqlBackend(
                engine, names=key[1], create_tables=create_tables, foreign_tables="share"
            )
        self._owned_engine: AsyncEngine | None = None
        self._engine = engine
        super().__init__(session_id, backend, settings=session_settings)

    @classmethod
    def from_url(
        cls,
        session_id: str,
        *,
        url: str,
        engine_kwargs: dict[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a session with an engine of its own, which :meth:`close` disposes of."""
        engine = create_async_engine(url, **(engine_kwargs or {}))
        session = cls(session_id, engine=engine, session_settings=session_settings, **kwargs)
        session._owned_engine = engine
        return session

    @property
    def engine(self) -> AsyncEngine:
        """The engine that the session uses."""
        return self._engine

    def open_sibling(self, session_id: str) -> Any:
        """Return another session in the same tables of the same engine."""
        return StoredSession(session_id, self.backend, settings=self.session_settings, owner=self.owner)

    async def close(self) -> None:
        """Dispose of the engine if :meth:`from_url` created it. An engine of the caller stays open."""
        if self._owned_engine is not None:
            await self._owned_engine.dispose()
