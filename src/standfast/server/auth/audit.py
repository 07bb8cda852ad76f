"""The audit log: who decided, changed or was denied what, and when."""

import math
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.text import make_visible, sanitize_text
from standfast.base.time import Clock, system_clock
from standfast.history.store import Store
from standfast.server.auth.principals import Principal, Role
from standfast.store.operations import DeleteDocument, PutDocument

KIND = "audit"
MAX_FIELD_LENGTH = 300
MAX_DETAILS = 20
NOBODY = Principal(subject="nobody", role=Role.VIEWER, owner="", method="")
_PAGE_SIZE = 200
_LATEST = 9e10  # seconds; keys have 17 digits of microseconds
# What looks like a credential must not get into the log, whichever field a caller puts it into.
_SECRETS = re.compile(r"sf_[0-9a-z]+_\S+|eyJ[\w-]{8,}\.[\w.-]*|(?i:(?:bearer|basic)\s+\S+)")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry: ``subject``, of ``owner``, did ``action`` at this time. ``details`` say to what, and how it ended."""

    id: str
    """The id of the entry; later ones are greater."""
    at: float
    """When it happened, in seconds since 1970."""
    subject: str
    """Who did it."""
    action: str
    """What was done, such as ``decided`` or ``denied``."""
    owner: str = ""
    """The owner of the subject."""
    method: str = ""
    """How the subject was authenticated."""
    details: dict[str, str] = {}
    """To what it was done, and how it ended."""


class Audit:
    """The audit log of a store. Entries are only added, and deleted when they are old; none is ever changed.

    An entry has neither the body of a request nor a credential: of a path, the part after ``?`` is dropped, and what
    looks like a key or a token is replaced, whichever field it is in.
    """

    def __init__(self, store: Store, *, clock: Clock = system_clock) -> None:
        self.backend = store.backend
        self.clock = clock
        self._last_time = 0

    async def record(self, action: str, principal: Principal | None, facts: Mapping[str, object]) -> None:
        """Add an entry about a request, anonymous without a principal. Pass this method to :func:`create_app`."""
        await self.append(action, principal or NOBODY, facts)

    async def append(self, action: str, principal: Principal, details: Mapping[str, object]) -> AuditEntry:
        """Add an entry, and return it."""
        operation, entry = self.make_operation(action, principal.subject, details, principal.owner, principal.method)
        await self.backend.commit(operation)
        return entry

    def make_operation(
        self, action: str, subject: str, details: Mapping[str, object], owner: str = "", method: str = ""
    ) -> tuple[PutDocument, AuditEntry]:
        """Return the operation that adds an entry, for a commit with the change that it describes."""
        at = self.clock()
        # Entries of one moment keep their order.
        self._last_time = max(to_microseconds(at), self._last_time + 1)
        entry = AuditEntry(
            id=f"{self._last_time:017d}-{secrets.token_hex(6)}",
            at=at,
            subject=clean_text(subject),
            action=clean_text(action),
            owner=clean_text(owner),
            method=clean_text(method),
            details={
                clean_text(name): clean_text(str(value).partition("?")[0] if name == "path" else str(value))
                for name, value in list(details.items())[:MAX_DETAILS]
                if value is not None
            },
        )
        return PutDocument(kind=KIND, key=entry.id, data=msgspec.json.encode(entry), expected=0), entry

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


def format_time_key(at: float) -> str:
    """Return a time as text that sorts like the number."""
    return f"{to_microseconds(at):017d}"


def to_microseconds(at: float) -> int:
    if math.isnan(at):
        raise InvalidInput("a time must be a number of seconds")
    return int(min(max(at, 0.0), _LATEST) * 1_000_000)


def clean_text(text: str) -> str:
    """Return what may be kept of a field: no credential, nothing invisible, and not too much."""
    visible = make_visible(sanitize_text(_SECRETS.sub("[removed]", text)))
    return visible if len(visible) <= MAX_FIELD_LENGTH else visible[:MAX_FIELD_LENGTH] + "..."
