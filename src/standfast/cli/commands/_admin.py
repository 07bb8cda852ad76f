"""The keys and the audit log, of a store or of the server in front of it."""

import getpass
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from standfast.cli.commands._store import is_server, open_client, open_existing_store
from standfast.history.store import Store
from standfast.server.auth.audit import Audit
from standfast.server.auth.keys import ApiKey, ApiKeys, NewApiKey
from standfast.store.audit_entries import AuditEntry

if TYPE_CHECKING:
    from standfast.client.administration import RemoteAdmin


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
