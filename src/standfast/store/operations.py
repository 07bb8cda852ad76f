"""The operations that :meth:`~standfast.store.backend.Backend.commit` takes.

Each is a plain value. A commit applies any number of them in one transaction, and each sees the effects of those
before it. The tags identify operations in SQL and Lua scripts and must not change.
"""

from typing import Any, TypeAlias

import msgspec

from standfast.base.errors import StandfastError, WrongKey
from standfast.store.records import FreedBlobs, Head, JournalEnd, Lease
from standfast.store.tape import TapeSpans, generate_tape_id

# --- histories ----------------------------------------------------------------------------------


class ViewUpdate(msgspec.Struct, frozen=True):
    """A new view for a session. A :class:`Splice` without one only extends the last span.

    ``closed`` are all spans but the last, which starts at ``open_from`` on the session's own tape and grows with it.
    """

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
    """Change one history: append ``add`` to its tape, replace its view by ``view_update``, or both.

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
    """Destroy the items of a session in all generations, and its idempotency keys.

    Items that existing forks started with are kept for them. The record, its version and its metadata stay unless
    ``forget``; with ``forget`` a sealed history needs no new seal.
    """

    session_id: str
    expected: int | None = None
    seal: bytes | None = None
    forget: bool = False


class Annotate(msgspec.Struct, frozen=True, kw_only=True, tag="annotate"):
    """Merge ``metadata`` into that of a session; a value of ``None`` removes its key. Creates a missing session.

    ``owner`` replaces the owner of the session. With ``claim`` it does not: a session that has another owner refuses
    the commit with :class:`OutsideScope`, so that of two owners who create a session at once only one succeeds.
    """

    session_id: str
    metadata: dict[str, Any]
    owner: str | None = None
    claim: bool = False
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
    """Write a run's header at revision ``expected + 1``; ``expected=0`` creates the run.

    ``parent`` counts when a fork is created: the run whose journal it shares, or :class:`NotFound`. ``queue``,
    ``priority`` and ``share`` stay as they are if they are ``None``.
    """

    run_id: str
    expected: int
    status: str
    data: bytes
    session_id: str | None = None
    parent: str | None = None
    queue: str | None = None
    priority: int | None = None
    share: str | None = None


class MoveBehind(msgspec.Struct, frozen=True, kw_only=True, tag="move-behind"):
    """Note that a queued run waits for another run of its session, so that it is not listed to claim; or the opposite.

    It is a hint beside the run, whose revision stays. Every :class:`SaveRun` removes it.
    """

    run_id: str
    behind: bool


class DeleteRun(msgspec.Struct, frozen=True, kw_only=True, tag="delete-run"):
    """Destroy a run at revision ``expected`` with its journal, events and approvals.

    :class:`RunShared` if it has a fork. ``expected=0`` requires that there is no such run, and destroys the approvals
    under its id.
    """

    run_id: str
    expected: int


class AppendJournal(msgspec.Struct, frozen=True, kw_only=True, tag="journal"):
    """Append (kind, data) entries to a run's journal.

    The journal of an encrypted run has a seal, which is computed for one length: a sealed journal only accepts entries
    with the next seal (:class:`WrongKey` otherwise), and ``expected`` is the length and ``previous_seal`` the seal
    before them (:class:`JournalMoved`).
    """

    run_id: str
    entries: tuple[tuple[str, bytes], ...]
    expected: int | None = None
    seal: bytes | None = None
    previous_seal: bytes | None = None


class AppendEvents(msgspec.Struct, frozen=True, kw_only=True, tag="emit"):
    """Append (kind, data) entries to a run's second log, which holds what can be rebuilt from the journal.

    Today these are snapshots of the journal. The events that programs read are journal entries and are not stored here.
    """

    run_id: str
    events: tuple[tuple[str, bytes], ...]


class RewriteRun(msgspec.Struct, frozen=True, kw_only=True, tag="rewrite-run"):
    """Replace the bytes of an encrypted run: its header, all entries of both logs, and its seal.

    Numbers, kinds, times, status and revision stay as they are. :class:`JournalMoved` if the run has another seal than
    ``previous_seal``, or if a log has another length.
    """

    run_id: str
    data: bytes
    journal: tuple[bytes, ...]
    events: tuple[bytes, ...]
    previous_seal: bytes
    seal: bytes


class SaveApproval(msgspec.Struct, frozen=True, kw_only=True, tag="save-approval"):
    """Write an approval at revision ``expected + 1``; ``expected=0`` creates it."""

    approval_id: str
    expected: int
    run_id: str
    status: str
    data: bytes
    session_id: str | None = None
    expires_at: float | None = None


# --- workspaces ---------------------------------------------------------------------------------


class AppendVersions(msgspec.Struct, frozen=True, kw_only=True, tag="append-versions"):
    """Add versions to the workspace ``key``, which is at version ``expected``; ``expected=0`` creates it.

    :class:`WorkspaceMoved` if it is at another version, or if its ``workspace_id`` differs: it was deleted meanwhile.
    """

    key: str
    workspace_id: str
    expected: int
    versions: tuple[bytes, ...]


class RewriteVersions(msgspec.Struct, frozen=True, kw_only=True, tag="rewrite-versions"):
    """Replace the bytes of all versions of a workspace, which has these and no others (:class:`WorkspaceMoved`)."""

    key: str
    workspace_id: str
    versions: tuple[bytes, ...]


class SaveCheckpoint(msgspec.Struct, frozen=True, kw_only=True, tag="save-checkpoint"):
    """Store the manifest of a version. A version that has a checkpoint keeps it.

    :class:`NotFound` if there is no such version, :class:`BlobsMissing` if one of ``blobs`` is not stored.
    """

    key: str
    workspace_id: str
    version: int
    checkpoint_id: str
    data: bytes
    blobs: tuple[str, ...]
    size: int


class DropCheckpoint(msgspec.Struct, frozen=True, kw_only=True, tag="drop-checkpoint"):
    """Delete the checkpoint of a version, if it has one, and the blobs that no other checkpoint refers to."""

    key: str
    version: int


class DeleteWorkspace(msgspec.Struct, frozen=True, tag="delete-workspace"):
    """Destroy a workspace, if there is one, with the blobs that no checkpoint of another workspace refers to."""

    key: str


class PutBlob(msgspec.Struct, frozen=True, kw_only=True, tag="put-blob"):
    """Store content under its digest, or note its ``place`` in an object store. A stored blob only gets a new time.

    A blob that no checkpoint refers to is deleted by :class:`SweepBlobs`.
    """

    digest: str
    size: int
    data: bytes = b""
    place: str | None = None


class SweepBlobs(msgspec.Struct, frozen=True, kw_only=True, tag="sweep-blobs"):
    """Delete up to ``limit`` blobs that no checkpoint refers to and that were stored before ``before``."""

    before: float
    limit: int = 100


# --- documents ----------------------------------------------------------------------------------


class PutDocument(msgspec.Struct, frozen=True, kw_only=True, tag="put-document"):
    """Write a document at its next revision. ``expected`` is the revision before, 0 for a new document.

    :class:`DocumentMoved` if it is at another revision. Without ``expected``, whatever is there is replaced.
    """

    kind: str
    key: str
    data: bytes
    expected: int | None = None


class DeleteDocument(msgspec.Struct, frozen=True, kw_only=True, tag="delete-document"):
    """Destroy a document, if there is one. :class:`DocumentMoved` if it is at another revision than ``expected``."""

    kind: str
    key: str
    expected: int | None = None


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
    | MoveBehind
    | DeleteRun
    | AppendJournal
    | AppendEvents
    | RewriteRun
    | SaveApproval
    | AppendVersions
    | RewriteVersions
    | SaveCheckpoint
    | DropCheckpoint
    | DeleteWorkspace
    | PutBlob
    | SweepBlobs
    | PutDocument
    | DeleteDocument
    | AcquireLease
    | RenewLease
    | ReleaseLease
    | CheckFence
)
OpResult: TypeAlias = Head | Lease | FreedBlobs | JournalEnd | None
"""The result of an operation: a Head for Splice, Erase and Annotate, a Lease for AcquireLease and RenewLease,
FreedBlobs for DropCheckpoint, DeleteWorkspace and SweepBlobs, and, if the backend knows it, a JournalEnd for
AppendJournal."""

# --- errors -------------------------------------------------------------------------------------


class LeaseHeld(StandfastError):
    """Another owner holds the lease. Nothing was written."""

    code = "lease-held"

    def __init__(self, name: str, *, owner: str, expires_at: float) -> None:
        super().__init__(f"lease {name!r} is held by {owner!r}")
        self.name, self.owner, self.expires_at = name, owner, expires_at


def make_wrong_key_error(session_id: str) -> WrongKey:
    return WrongKey(f"session {session_id!r} is encrypted: open it with EncryptedSession and its key")


def make_encrypted_run_error(run_id: str) -> WrongKey:
    return WrongKey(
        f"run {run_id!r} is encrypted: open the runtime with encryption_key=, the key that it was written with"
    )
