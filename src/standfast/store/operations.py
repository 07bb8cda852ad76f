"""The operations that :meth:`~standfast.store.backend.Backend.commit` takes.

Each is a plain value. A commit applies any number of them in one transaction, and each sees the effects of those
before it. The tags identify operations in SQL and Lua scripts and must not change.
"""

from typing import Any, TypeAlias

import msgspec

from standfast.store.records import Head, Lease
from standfast.store.tape import TapeSpans, generate_tape_id

# --- histories ----------------------------------------------------------------------------------


class ViewUpdate(msgspec.Struct, frozen=True):
    """A new view for a session. A :class:`Splice` without one only extends the last span."""

    closed: TapeSpans
    open_from: int
    length: int
    archive: bool = False
    """Keep the previous view as a generation."""


class BatchKey(msgspec.Struct, frozen=True):
    """An idempotency key. A splice with the same name and digest is a no-op; with another digest it is refused."""

    name: str
    digest: str


class Splice(msgspec.Struct, frozen=True, kw_only=True, tag="splice"):
    """Change one history: append ``add`` to its tape and, with ``view_update``, replace its view.

    Appending needs neither ``view_update`` nor ``expected``. A view update is computed from a record and is only
    accepted together with the version of that record. ``expected=0`` requires that the session does not exist.

    A sealed history only accepts changes that carry the next seal (:class:`WrongKey` otherwise). A seal is computed
    for one ``tape``: :class:`HistoryMoved` if the session has another.
    """

    session_id: str
    add: tuple[bytes, ...] = ()
    words: tuple[str, ...] = ()
    """The words of each added item, for backends that index on writing."""
    view_update: ViewUpdate | None = None
    expected: int | None = None
    key: BatchKey | None = None
    seal: bytes | None = None
    tape: int = msgspec.field(default_factory=generate_tape_id)
    """The tape of the session if this operation creates it."""
    links: tuple[tuple[int, int], ...] = ()
    """For a fork: (tape, end) of each ancestor's tape that its view contains."""
    owner: str | None = None


class Erase(msgspec.Struct, frozen=True, kw_only=True, tag="erase"):
    """Destroy the items of a session in all generations, and its batch keys.

    Items that existing forks started with are kept for them. The record, its version and its metadata stay unless
    ``forget``; with ``forget`` a sealed history needs no new seal.
    """

    session_id: str
    expected: int | None = None
    seal: bytes | None = None
    forget: bool = False


class Annotate(msgspec.Struct, frozen=True, kw_only=True, tag="annotate"):
    """Merge ``metadata`` into that of a session; a value of ``None`` removes its key. Creates a missing session."""

    session_id: str
    metadata: dict[str, Any]
    owner: str | None = None
    tape: int = msgspec.field(default_factory=generate_tape_id)


class RequireVersion(msgspec.Struct, frozen=True, tag="require"):
    """Precondition: the session is at this version."""

    session_id: str
    version: int


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, tag="quarantine"):
    """Record why an item was removed from the view."""

    session_id: str
    tape: int
    seq: int
    reason: str


# --- runs and approvals -------------------------------------------------------------------------


class SaveRun(msgspec.Struct, frozen=True, kw_only=True, tag="save-run"):
    """Write a run's header at revision ``expected + 1``; ``expected=0`` creates the run."""

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
    """Append (type, data) events to a run's event log, which can be rebuilt from its journal."""

    run_id: str
    events: tuple[tuple[str, bytes], ...]


class SaveApproval(msgspec.Struct, frozen=True, kw_only=True, tag="save-approval"):
    """Write an approval at revision ``expected + 1``; ``expected=0`` creates it."""

    approval_id: str
    expected: int
    run_id: str
    status: str
    data: bytes
    session_id: str | None = None
    expires_at: float | None = None


# --- leases -------------------------------------------------------------------------------------


class AcquireLease(msgspec.Struct, frozen=True, kw_only=True, tag="take-lease"):
    """Own ``name`` for ``ttl`` seconds, or raise :class:`LeaseHeld`. The current owner keeps its token."""

    name: str
    owner: str
    ttl: float


class RenewLease(msgspec.Struct, frozen=True, kw_only=True, tag="renew-lease"):
    """Own the lease for ``ttl`` more seconds. An expired lease can be renewed until another owner acquires it."""

    name: str
    token: int
    ttl: float


class ReleaseLease(msgspec.Struct, frozen=True, kw_only=True, tag="drop-lease"):
    """Release the lease. Has no effect if another owner has acquired it."""

    name: str
    token: int


class CheckFence(msgspec.Struct, frozen=True, tag="fence"):
    """Precondition: no other owner has acquired the lease since ``token`` was issued."""

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
"""The result of an operation: a Head for Splice, Erase and Annotate, a Lease for AcquireLease and RenewLease."""
