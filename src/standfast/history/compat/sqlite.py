"""Sessions in an SQLite file, with the same constructors as in openai-agents."""

import os
import weakref
from typing import Any, Self

from standfast.base.errors import Closed
from standfast.history.session import SessionSettings
from standfast.history.stored_session import StoredSession
from standfast.store.records import Head
from standfast.store.sql.connection import TableNames
from standfast.store.sql.openai_agents_tables import ForeignTablesPolicy
from standfast.store.sqlite.backend import SqliteBackend
from standfast.store.sqlite.shared_backends import get_shared_backend


class SQLiteSession(StoredSession):
    """A session in an SQLite file. With ``:memory:`` the history exists only in this object.

    Sessions on the same file share one writer thread. The file is released by :meth:`close`, or when the session is
    garbage collected. Tables of openai-agents are used as they are, until they are adopted: both programs can use the
    session, and methods for which they have no place raise :class:`NotAdopted`.
    """

    backend: "SqliteBackend | ClosedBackend"
    foreign_tables: ForeignTablesPolicy = "share"
    db_path: str | os.PathLike[str]
    sessions_table: str
    messages_table: str

    def __init__(
        self,
        session_id: str,
        db_path: str | os.PathLike[str] = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.db_path, self.sessions_table, self.messages_table = db_path, sessions_table, messages_table
        names = TableNames(sessions_table, messages_table)
        backend = get_shared_backend(db_path, names=names, foreign_tables=self.foreign_tables)
        self._release = weakref.finalize(self, backend.close_sync)
        super().__init__(session_id, backend, settings=session_settings)

    def open_sibling(self, session_id: str) -> Any:
        """Return another session in the same tables. It need not be closed."""
        return SharedFileSession(session_id, self)

    async def check_head(self, expected: Head | None) -> None:
        """Raise :class:`HistoryMoved` if the head is not the expected one, and :class:`Closed` if the session is."""
        if isinstance(self.backend, ClosedBackend):
            raise Closed(f"session {self.session_id!r} is closed")
        await super().check_head(expected)

    def close(self) -> None:
        """Release the file. Using the session afterwards raises :class:`Closed`."""
        self.backend = ClosedBackend(self.session_id)
        self._release()


class SharedFileSession(StoredSession):
    """A session in the database of another one, ``origin``, which it keeps alive."""

    def __init__(self, session_id: str, origin: StoredSession) -> None:
        super().__init__(session_id, origin.backend, settings=origin.session_settings, owner=origin.owner)
        self.origin = origin

    def open_sibling(self, session_id: str) -> Self:
        return type(self)(session_id, self.origin)


class AsyncSQLiteSession(SQLiteSession):
    """A :class:`SQLiteSession` whose :meth:`close` is a coroutine."""

    async def close(self) -> None:  # type: ignore[override]
        backend, self.backend = self.backend, ClosedBackend(self.session_id)
        if self._release.detach() is not None:
            await backend.close()


class ClosedBackend:
    """The backend of a closed session: every use raises :class:`Closed`."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def __getattr__(self, name: str) -> Any:
        raise Closed(f"session {self._session_id!r} is closed")
