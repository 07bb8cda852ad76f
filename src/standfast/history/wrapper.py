"""The base class of sessions that wrap another session.

Every session over a standfast store has the attribute ``stored_session``, the
:class:`~standfast.history.stored_session.StoredSession` that does the reading and writing. In a wrapper around a
third-party session it is ``None``, and only the four methods of the protocol work.
"""

import copy
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, Self

from standfast.base.errors import Unsupported
from standfast.base.item_pairs import drop_unpaired
from standfast.base.items import Item
from standfast.history.codec import UnreadableRecord
from standfast.history.integrity import IntegrityReport
from standfast.history.search import SearchHit
from standfast.history.session import (
    SessionABC,
    SessionSettings,
    get_conversation_key,
    make_conversation_key,
    use_run_context,
)
from standfast.history.stored_session import StoredSession
from standfast.store.records import Generation, Head, Row


class InnerSession(Protocol):
    """The session to which a wrapper delegates."""

    session_settings: SessionSettings | None

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]: ...

    async def add_items(
        self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None
    ) -> None: ...

    async def pop_item(self) -> Item | None: ...

    async def clear_session(self) -> None: ...

    async def check(self) -> IntegrityReport: ...


class SessionWrapper(SessionABC):
    """A session that delegates every call to ``inner``. Subclasses override the methods they change.

    The four methods accept the keyword ``wrapper``, the context of a run, and pass it on to a third-party session
    that takes it.
    """

    def __init__(self, session_id: str, inner: InnerSession) -> None:
        self.session_id = session_id
        self.inner = inner
        self.stored_session = find_stored_session(inner)

    @property
    def conversation_key(self) -> str:
        """The key under which tools keep state for this session; sessions of other stores have other keys."""
        if self.stored_session is None:
            return get_conversation_key(self.inner, self.session_id)
        return make_conversation_key(self.stored_session.backend.location, self.session_id)

    @property
    def session_settings(self) -> SessionSettings | None:
        """The settings of the session inside."""
        return self.inner.session_settings

    @session_settings.setter
    def session_settings(self, settings: SessionSettings | None) -> None:
        """The settings of the session inside."""
        self.inner.session_settings = settings

    async def get_items(
        self, limit: int | None = None, *, generation: int | None = None, wrapper: Any = None
    ) -> list[Item]:
        with use_run_context(wrapper):
            return await self.inner.get_items(limit, generation=generation)

    async def add_items(
        self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None, wrapper: Any = None
    ) -> None:
        with use_run_context(wrapper):
            await self.inner.add_items(items, key=key, expected=expected)

    async def pop_item(self, *, wrapper: Any = None) -> Item | None:
        with use_run_context(wrapper):
            return await self.inner.pop_item()

    async def clear_session(self, *, wrapper: Any = None) -> None:
        with use_run_context(wrapper):
            await self.inner.clear_session()

    async def check(self) -> IntegrityReport:
        """Check the session for unreadable records and unpaired calls. Changes nothing."""
        return await self.inner.check()

    async def get_paired_items(self, limit: int | None = None) -> list[Item]:
        """Return the items without calls that lack an output and outputs that lack a call."""
        return drop_unpaired(await self.get_items(limit))

    # --- only over a standfast store -------------------------------------------------------------

    async def head(self) -> Head:
        """Return version and length of the session."""
        return await self.require_stored_session("head").head()

    async def replace_items(self, items: Sequence[Item], *, expected: Head | None = None) -> Head:
        """Replace all items. The former ones stay readable as a generation."""
        return await self.require_stored_session("replace_items").replace_items(items, expected=expected)

    async def splice_items(
        self, start: int, stop: int | None, items: Sequence[Item], *, expected: Head | None = None
    ) -> Head:
        """Replace the items from ``start`` to ``stop``."""
        return await self.require_stored_session("splice_items").splice_items(start, stop, items, expected=expected)

    async def rewind(self, to: int, *, expected: Head | None = None) -> Head:
        """Keep the first ``to`` items. The others stay readable as a generation."""
        return await self.require_stored_session("rewind").rewind(to, expected=expected)

    async def generations(self) -> list[Generation]:
        """Return the earlier generations of the session."""
        return await self.require_stored_session("generations").generations()

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Show a generation again, followed by the items added since."""
        return await self.require_stored_session("restore").restore(generation, expected=expected)

    async def fork(self, at: int | None = None, session_id: str | None = None) -> Self:
        """Create a session that shares the first ``at`` items, by default all of them."""
        return self.rewrap(await self.require_stored_session("fork").fork(at, session_id))

    async def search(self, query: str, *, limit: int | None = 20) -> list[SearchHit]:
        """Return the items that have words with these beginnings."""
        return await self.require_stored_session("search").search(query, limit=limit)

    def export(self) -> AsyncIterator[tuple[Row, Item | UnreadableRecord]]:
        """Yield the stored rows with their items."""
        return self.require_stored_session("export").export()

    def require_stored_session(self, method: str) -> StoredSession:
        """Return the stored session, or raise :class:`Unsupported` for a third-party session."""
        if self.stored_session is None:
            raise Unsupported(
                f"{method}() needs a session in a standfast store; {type(self).__name__} wraps a third-party session"
            )
        return self.stored_session

    def rewrap(self, stored: StoredSession) -> Self:
        """Return a copy of this wrapper around another session of the same store."""
        clone = copy.copy(self)
        clone.session_id = stored.session_id
        clone.inner = self.inner.rewrap(stored) if isinstance(self.inner, SessionWrapper) else stored
        clone.stored_session = stored
        return clone


def find_stored_session(session: object) -> StoredSession | None:
    """Return the stored session that ``session`` is or wraps; ``None`` for a third-party session."""
    stored = getattr(session, "stored_session", None)
    return stored if isinstance(stored, StoredSession) else None
