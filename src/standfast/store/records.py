"""The records that a backend returns: sessions with items, runs with logs, approvals, workspaces, documents, leases."""

from typing import Any

import msgspec

from standfast.store.tape import TapeSpan, TapeSpans, join_spans


class Head(msgspec.Struct, frozen=True, order=True):
    """The state of a history as two numbers: ``version`` counts its changes, ``length`` its items."""

    version: int
    length: int

    def __str__(self) -> str:
        return f"version {self.version} ({self.length} {'item' if self.length == 1 else 'items'})"


EMPTY_HEAD = Head(0, 0)


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session.

    ``tape`` identifies the append-only log of the items that the session wrote, see :mod:`standfast.store.tape`. The
    last span of its view is open: it starts at ``open_from`` and ends where the tape ends. The spans before it are
    ``closed``.
    """

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

    @property
    def approvals_id(self) -> str:
        """The key that replaces the run id of approvals that belong to the session and not to one of its runs.

        It contains the tape, so that they do not apply to a later session of the same name.
        """
        return f"session:{self.tape}:{self.session_id}"

    def matches(self, *, owner: str | None, query: str | None) -> bool:
        """Return whether the filters of :meth:`Backend.list_sessions` select this session."""
        if owner is not None and self.owner != owner:
            return False
        if not query:
            return True
        metadata = msgspec.json.encode(self.metadata).decode()
        return query.lower() in self.session_id.lower() or query.lower() in metadata.lower()


class Row(msgspec.Struct, frozen=True):
    """A stored item: its position in the view that was read, its location (``tape``, ``seq``), and its bytes.

    ``data`` is ``None`` if the view contains the item but the stored record is missing.
    """

    position: int
    tape: int
    seq: int
    data: bytes | None


class HistoryPage(msgspec.Struct, frozen=True):
    """A session and a range of its items, read in one transaction."""

    record: SessionRecord
    rows: list[Row]
    overrun: bool = False
    """Whether the tape of a sealed session has records after its end: its row is a copy from before those."""


class Generation(msgspec.Struct, frozen=True):
    """The view of a history before it was rewound or replaced."""

    number: int
    length: int
    spans: TapeSpans
    resumes_at: int
    """The ``seq`` on the session's own tape at which the following generation starts to append."""
    replaced_at: float


class QuarantinedItem(msgspec.Struct, frozen=True):
    """An unreadable item that was removed from the view. Its stored bytes are kept."""

    tape: int
    seq: int
    reason: str
    at: float


class SearchCandidate(msgspec.Struct, frozen=True):
    """A stored item that may match a search, and a session whose view may contain it."""

    session_id: str
    tape: int
    seq: int
    data: bytes


ENDED_RUN_STATUSES = ("completed", "failed", "cancelled")
"""The statuses of runs that no process executes or will execute by itself."""
CLAIMABLE_RUN_STATUSES = ("woken", "next", "queued")
"""The statuses of runs that any runtime may claim, in the order in which it does."""
QUEUED_RUN_STATUSES = ("next", "queued")
"""The statuses of runs that wait until their session is free, in the order in which they start."""
HOLDING_RUN_STATUSES = ("woken", "running", "waiting", "blocked")
"""The statuses of runs that hold their session: at most one run of a session has one of them."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a run. ``order`` increases with each run that is created.

    A fork shares the journal of its ``parent``. ``event_length`` is the length of the second log, see
    :class:`~standfast.store.operations.AppendEvents`.
    """

    run_id: str
    order: int
    session_id: str | None
    status: str
    revision: int
    data: bytes
    journal_length: int
    event_length: int
    parent: str | None = None
    seal: bytes | None = None
    """Of an encrypted run: a proof of its header and of the entries of its journal."""
    queue: str = ""
    priority: int = 0
    share: str = ""
    """The queue in which it waits, its priority there, and whose share of the queue it uses."""
    behind: bool = False
    """Whether it was seen to wait for another run of its session; see :class:`~standfast.store.operations.MoveBehind`.
    """
    created_at: float
    updated_at: float


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs wait in a queue with this status, and since when the oldest does.

    Those that are ``behind`` wait for another run of their session, the others for a runtime.
    """

    queue: str
    status: str
    behind: bool
    count: int
    oldest_at: float


class LogEntry(msgspec.Struct, frozen=True):
    """An entry of a run's journal or of its second log. ``seq`` counts the entries of that log from 1, without gaps."""

    seq: int
    kind: str
    data: bytes
    at: float


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored request for approval."""

    approval_id: str
    run_id: str
    session_id: str | None
    status: str
    revision: int
    data: bytes
    requested_at: float
    expires_at: float | None


class ApprovalPlace(msgspec.Struct, frozen=True, array_like=True):
    """The place of the latest change of an approval among those of all approvals.

    Numbers grow in the order of the commits: a reader that has seen a number has seen all below it. Approvals that were
    stored before changes were numbered share the first one, so that the id is needed, too.
    """

    number: int = 0
    approval_id: str = ""


class ChangedApproval(msgspec.Struct, frozen=True):
    """An approval, and the place of its latest change."""

    place: ApprovalPlace
    record: ApprovalRecord


class WorkspaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace of a conversation. ``version`` is its latest; ``workspace_id`` tells it from others of its key."""

    key: str
    workspace_id: str
    version: int
    created_at: float
    updated_at: float


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a workspace: how it was made, and the id and size of its checkpoint if it has one."""

    version: int
    data: bytes
    created_at: float
    checkpoint_id: str | None = None
    size: int = 0


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of one version: a manifest, and the digests of the blobs that it refers to."""

    checkpoint_id: str
    key: str
    version: int
    data: bytes
    blobs: tuple[str, ...]
    size: int
    created_at: float


class BlobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content by its digest, in the store, or at ``place`` in an object store."""

    digest: str
    size: int
    place: str | None = None


class JournalEnd(msgspec.Struct, frozen=True):
    """The length of a journal after entries were appended, and their time."""

    length: int
    at: float


class FreedBlobs(msgspec.Struct, frozen=True):
    """How many blobs an operation deleted, and the places in an object store that nothing refers to."""

    count: int = 0
    places: tuple[str, ...] = ()


class DocumentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A small record of one kind under its key. ``revision`` counts its writes, ``at`` is the time of the last one."""

    kind: str
    key: str
    data: bytes
    revision: int
    at: float


class Lease(msgspec.Struct, frozen=True):
    """Exclusive ownership of a name until ``expires_at``.

    ``token`` is a fencing token: it increases whenever the owner changes, so that a former owner can be recognised.
    """

    name: str
    owner: str
    token: int
    expires_at: float


class SessionTurn(msgspec.Struct, frozen=True):
    """Whose turn it is in a session.

    ``lease`` is the latest lease of its name, also one that was released or has expired. It was read before the others:
    if the next owner gets the next token, no run of the session was claimed in between.
    """

    lease: Lease | None
    holder: RunRecord | None
    """The earliest run that is active or waits."""
    queued: RunRecord | None
    """The queued run that starts next when the session is free."""
    session: SessionRecord | None
