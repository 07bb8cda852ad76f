"""What administrators and operators of a server need: keys, the audit log, workers and calls."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from standfast.client.connection import Connection, decode_content, make_path
from standfast.client.event_stream import follow_stream
from standfast.server.answers import CallInfo, WorkerInfo
from standfast.server.auth.keys import ApiKey, NewApiKey
from standfast.server.types import Page
from standfast.store.audit_entries import AuditEntry


class RemoteAdmin:
    """The keys, the audit log, the workers and the calls of a server. What is allowed depends on the role."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def keys(self) -> list[ApiKey]:
        """Return all keys, without their secrets."""
        return cast(list[ApiKey], await self._connection.request("GET", "/keys", list[ApiKey]))

    async def create_key(self, name: str, *, role: str, owner: str, expires_at: float | None = None) -> NewApiKey:
        """Create a key. Its secret is in the answer and nowhere else."""
        body = {"name": name, "role": role, "owner": owner, "expires_at": expires_at}
        return cast(NewApiKey, await self._connection.request("POST", "/keys", NewApiKey, body=body))

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key. Servers refuse it within seconds."""
        return cast(ApiKey, await self._connection.request("DELETE", make_path("keys", key_id), ApiKey))

    async def audit(self, *, limit: int = 50, after: str | None = None, **filters: Any) -> list[AuditEntry]:
        """Return entries of the audit log, newest first. Filters: ``subject``, ``action``, ``since``, ``until``."""
        params = {"limit": limit, "after": after} | filters
        page: Page[AuditEntry] = await self._connection.request("GET", "/audit", Page[AuditEntry], params=params)
        return page.items

    async def pools(self) -> list[dict[str, Any]]:
        """Return the worker pools of the process that answers: how many sessions they have, in which states."""
        return cast(list[dict[str, Any]], await self._connection.request("GET", "/workers", list[dict[str, Any]]))

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers of the process that answers."""
        return cast(list[WorkerInfo], await self._connection.request("GET", "/workers/sessions", list[WorkerInfo]))

    async def calls(self) -> list[CallInfo]:
        """Return the calls under way in the process that answers."""
        return cast(list[CallInfo], await self._connection.request("GET", "/calls", list[CallInfo]))

    async def watch_call(self, call_id: str, *, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of a call without its audio, from the beginning, until it ends."""
        path = f"{make_path('calls', call_id)}/events"
        followed = follow_stream(self._connection, path, params={}, after=str(after))
        async with aclosing(followed) as events:  # type: ignore[type-var]
            async for event in events:
                yield decode_content(event.data, dict[str, Any])

    async def hang_up(self, call_id: str) -> None:
        """End a call of a page."""
        await self._connection.request("DELETE", make_path("calls", call_id))
