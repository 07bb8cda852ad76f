"""The sessions of a server, with the methods of a store."""

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from standfast.client.connection import make_path
from standfast.client.sessions import RemoteSession
from standfast.history.deletion import DeletedSession, RunsOfSession
from standfast.history.search import SearchHit
from standfast.history.store import StoredSessionInfo
from standfast.server.answers import ListedSession
from standfast.server.types import Page

if TYPE_CHECKING:
    from standfast.client.client import Client


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
