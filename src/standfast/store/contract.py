"""The durable store: reads, and one write.

:meth:`Backend.commit` takes operations and writes all of them or none; preconditions (an expected version or
revision, a fencing token) are checked inside the same transaction. Everything standfast keeps goes through it.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from standfast.base.errors import StandfastError, WrongKey
from standfast.store.tape import TapeSpan, TapeSpans, join_spans


class Head(msgspec.Struct, frozen=True, order=True):
    """Where a history stands: ``version`` counts its changes, ``length`` its items."""

    version: int
    length: int

    def __str__(self) -> str:
        return f"version {self.version} ({self.length} items)"


EMPTY_HEAD = Head(0, 0)


class LeaseHeld(StandfastError):
    """Somebody else owns this. Nothing was written."""

    code = "lease-held"

    def __init__(self, name: str, *, owner: str, expires_at: float) -> None:
        super().__init__(f"lease {name!r} is held by {owner!r}")
        self.name, self.owner, self.expires_at = name, owner, expires_at


def make_wrong_key_error(session_id: str) -> WrongKey:
    return WrongKey(f"session {session_id!r} is encrypted: open it with EncryptedSession and its key")


def generate_tape_id() -> int:
    """A tape number nobody else has; 63 bits, so that every database can hold it."""
    return secrets.randbits(62) + 1


# --- what is read -------------------------------------------------------------------------------


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session as stored. The last span of its view is open: it ends wherever the tape ends."""

    session_id: str
    tape: int
    version: int
    length: int
    next_seq: int
    open_from: int
    closed: TapeSpans = ()
    generation: int = 0
    seal: bytes | None = None
    owner: str | None = None
    metadata: dict[str, Any] = {}
    created_at: float
    updated_at: float

    @property
    def head(self) -> Head:
        return Head(self.version, self.length)

    @property
    def view(self) -> TapeSpans:
        return join_spans(self.closed, (TapeSpan(self.tape, self.open_from, self.next_seq),))

    def matches(self, *, owner: str | None, query: str | None) -> bool:
        """Whether it belongs into a listing of these, see :meth:`Backend.sessions`."""
        if owner is not None and self.owner != owner:
            return False
        if not query:
            return True
        told = msgspec.json.encode(self.metadata).decode()
        return query.lower() in self.session_id.lower() or query.lower() in told.lower()


class Row(msgspec.Struct, frozen=True):
    """One stored item: its position in the view that was read, its place on a tape, and its bytes.

    ``data`` is ``None`` when the record is missing although the view shows it.
    """

    position: int
    tape: int
    seq: int
    data: bytes | None


class Page(msgspec.Struct, frozen=True):
    """A session and a stretch of its items, read at one moment."""

    record: SessionRecord
    rows: list[Row]


class Generation(msgspec.Struct, frozen=True):
    """What a history showed before it was rewound or replaced."""

    number: int
    length: int
    spans: TapeSpans
    resumes_at: int
    """Where on its own tape the session went on after the replacement."""
    replaced_at: float


class QuarantinedItem(msgspec.Struct, frozen=True):
    """A record that could not be read and was taken out of the view, not destroyed."""

    tape: int
    seq: int
    reason: str
    at: float


class SearchCandidate(msgspec.Struct, frozen=True):
    """A stored item that may match a search, and a session that may show it."""

    session_id: str
    tape: int
    seq: int
    data: bytes


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a run; ``order`` rises with creation."""

    run_id: str
    order: int
    session_id: str | None
    status: str
    revision: int
    data: bytes
    journal_length: int
    event_length: int
    created_at: float
    updated_at: float


class LogEntry(msgspec.Struct, frozen=True):
    """A journal entry or an event: the ``seq``-th of its run, counted from 1 without gaps."""

    seq: int
    kind: str
    data: bytes
    at: float


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a person, as stored."""

    approval_id: str
    run_id: str
    session_id: str | None
    status: str
    revision: int
    data: bytes
    requested_at: float
    expires_at: float | None


class Lease(msgspec.Struct, frozen=True):
    """Ownership for a while. ``token`` rises whenever the owner changes and fences off earlier ones."""

    name: str
    owner: str
    token: int
    expires_at: float


# --- what is written ----------------------------------------------------------------------------


class ViewUpdate(msgspec.Struct, frozen=True):
    """A new view for a session: what :class:`Splice` stores instead of merely growing the last span."""

    closed: TapeSpans
    open_from: int
    length: int
    archive: bool = False
    """Keep what was shown before as a generation."""


class BatchKey(msgspec.Struct, frozen=True):
    """Makes a splice happen once: the same name and digest again is a no-op, another digest is refused."""

    name: str
    digest: str


class Splice(msgspec.Struct, frozen=True, kw_only=True, tag="splice"):
    """Change one history: write ``add`` to its tape and, with ``shape``, change what it shows.

    Appending needs neither ``shape`` nor ``expected``. A shape is computed from a record, so it is only accepted
    together with the version of that record. ``expected=0`` means that the session must not exist.

    A history with a seal only takes changes that bring the next one (:class:`WrongKey` otherwise), and a seal is
    made for a ``tape``: :class:`HistoryMoved` when the session has another.
    """

    session_id: str
    add: tuple[bytes, ...] = ()
    words: tuple[str, ...] = ()
    """For backends that index when they write: the words of each added item."""
    view_update: ViewUpdate | None = None
    expected: int | None = None
    key: BatchKey | None = None
    seal: bytes | None = None
    tape: int = msgspec.field(default_factory=generate_tape_id)
    """Used when the session does not exist yet."""
    links: tuple[tuple[int, int], ...] = ()
    """For a fork: (tape, end) of what it shares with its ancestors, as its shape shows it."""
    owner: str | None = None


class Erase(msgspec.Struct, frozen=True, kw_only=True, tag="erase"):
    """Destroy a session's items in all generations, and its keys, except what living forks of it began with.

    The record, its version and its annotations stay, unless ``forget``; then a sealed history needs no new seal.
    """

    session_id: str
    expected: int | None = None
    seal: bytes | None = None
    forget: bool = False


class Annotate(msgspec.Struct, frozen=True, kw_only=True, tag="annotate"):
    """Merge ``metadata`` into a session's own; a ``None`` removes its key. Creates the session if need be."""

    session_id: str
    metadata: dict[str, Any]
    owner: str | None = None
    tape: int = msgspec.field(default_factory=generate_tape_id)


class RequireVersion(msgspec.Struct, frozen=True, tag="require"):
    """Precondition: the session is at this version."""

    session_id: str
    version: int


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, tag="quarantine"):
    """Remember why a record was taken out of the view."""

    session_id: str
    tape: int
    seq: int
    reason: str


class SaveRun(msgspec.Struct, frozen=True, kw_only=True, tag="save-run"):
    """Write a run's header at revision ``expected + 1``; ``expected=0`` creates it."""

    run_id: str
    expected: int
    status: str
    data: bytes
    session_id: str | None = None


class AppendJournal(msgspec.Struct, frozen=True, kw_only=True, tag="journal"):
    """Append (kind, data) entries to a run's journal."""

    run_id: str
    entries: tuple[tuple[str, bytes], ...]


class AppendEvents(msgspec.Struct, frozen=True, kw_only=True, tag="emit"):
    """Append (type, data) events to a run's event log. What is there can be made again from its journal."""

    run_id: str
    events: tuple[tuple[str, bytes], ...]


class SaveApproval(msgspec.Struct, frozen=True, kw_only=True, tag="save-approval"):
    """Write an approval at revision ``expected + 1``; ``expected=0`` files it."""

    approval_id: str
    expected: int
    run_id: str
    status: str
    data: bytes
    session_id: str | None = None
    expires_at: float | None = None


class AcquireLease(msgspec.Struct, frozen=True, kw_only=True, tag="take-lease"):
    """Own ``name`` for ``ttl`` seconds, or :class:`LeaseHeld`. The present owner keeps its token."""

    name: str
    owner: str
    ttl: float


class RenewLease(msgspec.Struct, frozen=True, kw_only=True, tag="renew-lease"):
    """Own it for ``ttl`` more seconds, even when it had run out, as long as nobody else took it."""

    name: str
    token: int
    ttl: float


class ReleaseLease(msgspec.Struct, frozen=True, kw_only=True, tag="drop-lease"):
    """Give it back. Harmless when it passed on already."""

    name: str
    token: int


class CheckFence(msgspec.Struct, frozen=True, tag="fence"):
    """Precondition: nobody else took the lease since ``token`` was handed out."""

    name: str
    token: int


Op: TypeAlias = (
    Splice
    | Erase
    | Annotate
    | RequireVersion
    | Quarantine
    | SaveRun
    | AppendJournal
    | AppendEvents
    | SaveApproval
    | AcquireLease
    | RenewLease
    | ReleaseLease
    | CheckFence
)
OpResult: TypeAlias = Head | Lease | None
"""What an operation answers: splices, erasures and annotations a Head, leases a Lease, the others nothing."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a listing of sessions stopped."""

    updated_at: float
    session_id: str


class Backend(Protocol):
    """A place where everything is kept. One suite, ``standfast.testing.StoreContract``, says what it must do."""

    indexes_words: bool
    """Whether splices should carry the words of their items."""

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Do all of it or nothing; answer one outcome for each operation.

        Cancelling the caller does not undo a commit that was already under way.
        """
        ...

    async def close(self) -> None:
        """Release what this backend opened itself; what was handed in stays the caller's."""
        ...

    async def get_session(self, session_id: str) -> SessionRecord | None: ...

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        """A stretch of the view: from ``start`` to ``stop``, or the ``last`` so many. Oldest first."""
        ...

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        """Newest first. ``query`` is a part of the session id or of the annotations."""
        ...

    async def list_generations(self, session_id: str) -> list[Generation]: ...

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]: ...

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        """Candidates in a steady order, newest sessions and items first; ``None`` when there is no index.

        May answer more than what matches, never less: the caller looks at each.
        """
        ...

    async def get_run(self, run_id: str) -> RunRecord | None: ...

    async def list_runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        """In order of creation, those with an order above ``after``."""
        ...

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]: ...

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]: ...

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None: ...

    async def list_approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        """By id, those with an id above ``after``."""
        ...

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        """Those that expire at that time or earlier, the earliest first, and behind ``after``."""
        ...

    async def get_time(self) -> float:
        """The time by the clock that decides about leases: the server's, where there is one."""
        ...

    async def get_lease(self, name: str) -> Lease | None: ...
