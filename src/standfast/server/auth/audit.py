"""The audit log: who decided, changed or was denied what, and when."""

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.time import Clock, system_clock
from standfast.history.store import Store
from standfast.server.auth.principals import Principal
from standfast.store.audit_entries import KIND, AuditEntry, AuditWriter, format_time_key
from standfast.store.operations import DeleteDocument

_PAGE_SIZE = 200


class Audit(AuditWriter):
    """The audit log of a store. Entries are only added, and deleted when they are old; none is ever changed."""

    def __init__(self, store: Store, *, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self.backend = store.backend

    async def append(self, action: str, principal: Principal | None, details: Mapping[str, object]) -> AuditEntry:
        """Add an entry about a request, anonymous without a principal, and return it."""
        operation, entry = self.make_operation(action, principal, details)
        await self.backend.commit(operation)
        return entry

    async def list(
        self,
        *,
        subject: str | None = None,
        action: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Sequence[AuditEntry]:
        """List entries, newest first: those from ``since`` until ``until``. ``after`` is the id of a listed entry.

        The log is sorted by time only. A listing of a rare subject or action reads everything that is newer.
        """
        if limit < 1:
            raise InvalidInput(f"limit must be at least 1, not {limit}")
        found: list[AuditEntry] = []
        async for entry in self.iterate(since=since, until=until, after=after):
            if subject in (None, entry.subject) and action in (None, entry.action):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    async def iterate(
        self, *, since: float | None = None, until: float | None = None, after: str | None = None
    ) -> AsyncIterator[AuditEntry]:
        """Yield entries, newest first."""
        lowest = "" if since is None else format_time_key(since)
        # Keys have a suffix after the time, which "~" follows: an entry at this very time is included.
        bounds = [bound for bound in (after, None if until is None else f"{format_time_key(until)}~") if bound]
        before = min(bounds, default=None)
        while True:
            page = await self.backend.list_documents(KIND, limit=_PAGE_SIZE, after=lowest, before=before, reverse=True)
            for document in page:
                yield msgspec.json.decode(document.data, type=AuditEntry)
            if len(page) < _PAGE_SIZE:
                return
            before = page[-1].key

    async def prune(self, *, older_than: float) -> int:
        """Delete the entries that are older than so many seconds, and return their number."""
        if older_than < 0:
            raise InvalidInput(f"older_than must not be negative, got {older_than}")
        before, deleted = format_time_key(self.clock() - older_than), 0
        while page := await self.backend.list_documents(KIND, limit=_PAGE_SIZE, before=before):
            await self.backend.commit(*(DeleteDocument(kind=KIND, key=one.key) for one in page))
            deleted += len(page)
        return deleted
