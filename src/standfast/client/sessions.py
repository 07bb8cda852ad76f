"""A session on a server. It can be used wherever a session is expected, for example in ``Runner.run``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from standfast.base.errors import NotFound
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.client.connection import make_path
from standfast.history.integrity import IntegrityReport
from standfast.history.search import SearchHit
from standfast.history.session import SessionABC, SessionSettings
from standfast.history.store import StoredSessionInfo
from standfast.server.answers import CompactionPreview, SessionBranch, SessionView
from standfast.server.types import SessionItems
from standfast.store.records import EMPTY_HEAD, Generation, Head

if TYPE_CHECKING:
    from standfast.client.client import Client


class RemoteSession(SessionABC):
    """The session with this id on a server. It is created by the first write and belongs to the client's owner."""

    def __init__(self, client: "Client", session_id: str) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = SessionSettings()
        self._client, self._path = client, make_path("sessions", session_id)

    async def get_items(self, limit: int | None = None, *, generation: int | None = None) -> list[Item]:
        """Return the items, or the latest ``limit`` of them, oldest first."""
        return (await self._read(limit=limit, generation=generation)).items

    async def head(self) -> Head:
        """Return version and length of the session."""
        return (await self._read(limit=0)).head

    async def _read(self, **params: Any) -> SessionItems:
        try:
            result: SessionItems = await self._client.connection.request(
                "GET", f"{self._path}/items", SessionItems, params=params
            )
        except NotFound:  # a session without any write is empty
            return SessionItems(items=[], head=EMPTY_HEAD)
        return result

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        """Append items in one transaction. The request is repeated with its key if the connection is lost."""
        await self._client.connection.request(
            "POST",
            f"{self._path}/items",
            body={"items": list(items)},
            headers={"idempotency-key": key or new_id("batch")} | make_condition(expected),
            is_repeatable=True,
        )

    async def pop_item(self) -> Item | None:
        """Remove the latest item and return it."""
        found: list[Item] = await self._client.connection.request(
            "POST", f"{self._path}/items/pop", list[Item], body={}
        )
        return found[0] if found else None

    async def clear_session(self) -> None:
        """Destroy all items of the session."""
        await self._client.connection.request("DELETE", f"{self._path}/items")

    async def rewind(self, to: int, *, expected: Head | None = None) -> Head:
        """Keep the first ``to`` items. The others stay readable as a generation."""
        return await self._change("rewind", {"to": to}, expected)

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Show a generation again, followed by the items added since."""
        return await self._change("restore", {"generation": generation}, expected)

    async def _change(self, action: str, body: dict[str, Any], expected: Head | None) -> Head:
        info: StoredSessionInfo = await self._client.connection.request(
            "POST", f"{self._path}/{action}", StoredSessionInfo, body=body, headers=make_condition(expected)
        )
        return info.head

    async def fork(self, *, at: int | None = None, session_id: str | None = None) -> "RemoteSession":
        """Create a session that shares the first ``at`` items, by default all of them."""
        info: StoredSessionInfo = await self._client.connection.request(
            "POST", f"{self._path}/fork", StoredSessionInfo, body={"at": at, "session_id": session_id}
        )
        return RemoteSession(self._client, info.session_id)

    async def generations(self) -> list[Generation]:
        """Return the earlier generations of the session."""
        found: list[Generation] = await self._client.connection.request(
            "GET", f"{self._path}/generations", list[Generation]
        )
        return found

    async def branches(self) -> list[SessionBranch]:
        """Return the sessions that begin with items of this one: its forks, and what it was forked from."""
        found: list[SessionBranch] = await self._client.connection.request(
            "GET", f"{self._path}/branches", list[SessionBranch]
        )
        return found

    async def get_paired_items(self, limit: int | None = None) -> list[Item]:
        """Return the items that a model would get: those without their counterpart are left out."""
        return (await self._read(limit=limit, paired=True)).items

    async def search(self, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Return the items of this session that have all these words."""
        params = {"q": query, "limit": limit, "session_id": self.session_id}
        found: list[SearchHit] = await self._client.connection.request(
            "GET", "/sessions/search", list[SearchHit], params=params
        )
        return found

    async def view(self, *, generation: int | None = None) -> SessionView:
        """Return every item, and for those that a model does not see, the reason."""
        params = {"generation": generation}
        return cast(
            SessionView,
            await self._client.connection.request("GET", f"{self._path}/view", SessionView, params=params),
        )

    async def preview_compaction(self, *, keep_last: int | None = None) -> CompactionPreview:
        """Return the items that :meth:`compact` would replace."""
        params = {"keep_last": keep_last}
        return cast(
            CompactionPreview,
            await self._client.connection.request("GET", f"{self._path}/compaction", CompactionPreview, params=params),
        )

    async def compact(
        self, summary: str | None = None, *, keep_last: int | None = None, expected: Head | None = None
    ) -> Head:
        """Replace the oldest items by a summary; without one the server makes it, if it can."""
        return await self._change("compaction", {"summary": summary, "keep_last": keep_last}, expected)

    async def undo_compaction(self) -> Head:
        """Show the items again that the latest compaction replaced, followed by those that were added since."""
        info: StoredSessionInfo = await self._client.connection.request(
            "DELETE", f"{self._path}/compaction", StoredSessionInfo
        )
        return info.head

    async def check(self) -> IntegrityReport:
        """Check the session for unreadable records and unpaired calls. Changes nothing."""
        report: IntegrityReport = await self._client.connection.request("GET", f"{self._path}/check", IntegrityReport)
        return report


def make_condition(expected: Head | None) -> dict[str, str]:
    return {} if expected is None else {"if-match": f'"{expected.version}-{expected.length}"'}
