"""The sessions of a server, with the methods of a store, and a session of it.

A session can be used wherever one is expected, for example in ``Runner.run``.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from standfast.base.errors import NotFound
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.client.connection import make_path
from standfast.history.deletion import DeletedSession, RunsOfSession
from standfast.history.integrity import IntegrityReport
from standfast.history.search import SearchHit
from standfast.history.session import SessionABC, SessionSettings
from standfast.history.store import StoredSessionInfo
from standfast.server.answers import CompactionPreview, ListedSession, SessionBranch, SessionView
from standfast.server.types import Page, SessionItems
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


class RemoteStore:
    """The sessions that the client may see."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def session(self, session_id: str) -> RemoteSession:
        """Return the session with this id; nothing is sent."""
        return RemoteSession(self._client, session_id)

    async def sessions(
        self,
        *,
        owner: str | None = None,
        query: str | None = None,
        limit: int = 50,
        after: str | None = None,
        since: float | None = None,
        stats: bool = False,
    ) -> list[ListedSession]:
        """List sessions, the most recently changed first, with their sizes if ``stats`` is set."""
        params = {"owner": owner, "query": query, "limit": limit, "after": after, "since": since}
        page: Page[ListedSession] = await self._client.connection.request(
            "GET", "/sessions", Page[ListedSession], params=params | {"stats": stats or None}
        )
        return page.items

    async def describe(self, session_id: str) -> StoredSessionInfo:
        """Return what is known of a session."""
        path = make_path("sessions", session_id)
        return cast(StoredSessionInfo, await self._client.connection.request("GET", path, StoredSessionInfo))

    async def annotate(self, session_id: str, metadata: dict[str, Any]) -> StoredSessionInfo:
        """Merge ``metadata`` into that of a session. A value of None removes its key."""
        path, body = make_path("sessions", session_id), {"metadata": metadata}
        return cast(
            StoredSessionInfo, await self._client.connection.request("PATCH", path, StoredSessionInfo, body=body)
        )

    async def set_owner(self, session_id: str, owner: str) -> StoredSessionInfo:
        """Change the owner of a session."""
        path, body = make_path("sessions", session_id, "owner"), {"owner": owner}
        return cast(StoredSessionInfo, await self._client.connection.request("PUT", path, StoredSessionInfo, body=body))

    async def delete(self, session_id: str, *, runs: RunsOfSession = "delete") -> DeletedSession:
        """Delete a session with its runs, or without them."""
        path, params = make_path("sessions", session_id), {"runs": runs}
        return cast(
            DeletedSession, await self._client.connection.request("DELETE", path, DeletedSession, params=params)
        )

    async def search(self, query: str, *, owner: str | None = None, limit: int = 20) -> list[SearchHit]:
        """Return the items that contain words with these beginnings."""
        params = {"q": query, "owner": owner, "limit": limit}
        return cast(
            list[SearchHit],
            await self._client.connection.request("GET", "/sessions/search", list[SearchHit], params=params),
        )

    async def export(self, session_id: str) -> AsyncIterator[str]:
        """Return a session as JSON Lines."""
        return self._export(session_id)

    async def _export(self, session_id: str) -> AsyncIterator[str]:
        async with self._client.connection.stream(make_path("sessions", session_id, "export")) as lines:
            async for line in lines:
                yield line

    async def import_(self, lines: Iterable[str], *, session_id: str | None = None) -> RemoteSession:
        """Create a session from exported lines. It belongs to the owner of the credential."""
        if session_id is not None:
            header, *rest = (line for line in lines if line.strip())
            named = msgspec.json.decode(header, type=dict[str, Any]) | {"session_id": session_id}
            lines = [msgspec.json.encode(named).decode(), *rest]
        content = "".join(f"{line.rstrip()}\n" for line in lines).encode()
        info: StoredSessionInfo = await self._client.connection.request(
            "POST", "/sessions/import", StoredSessionInfo, content=content
        )
        return self.session(info.session_id)
