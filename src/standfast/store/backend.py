"""The interface of a storage backend: reads, and :meth:`Backend.commit` as the only write.

A commit applies operations in one transaction, all of them or none. Preconditions (an expected version or revision,
a fencing token) are checked inside that transaction. Everything that standfast stores goes through it.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from standfast.store.links import Link, LinkListener
from standfast.store.operations import Op, OpResult
from standfast.store.records import (
    ApprovalPlace,
    ApprovalRecord,
    BlobRecord,
    ChangedApproval,
    CheckpointRecord,
    DocumentRecord,
    Generation,
    HistoryPage,
    Lease,
    LogEntry,
    QuarantinedItem,
    QueueDepth,
    RunRecord,
    SearchCandidate,
    SessionRecord,
    SessionTurn,
    VersionRecord,
    WorkspaceRecord,
)


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The position in a listing of sessions after which the next page starts."""

    updated_at: float
    session_id: str


class Backend(Protocol):
    """A storage backend. The suite ``standfast.testing.StoreContract`` tests everything that it must do."""

    indexes_words: bool
    """Whether splices must carry the words of their items."""

    location: str
    """Where the data are, without credentials: the same for all backends over one set of tables, and no others."""

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Apply all operations or none, and return one result for each.

        Cancelling the caller does not undo a commit that has started.
        """
        ...

    async def close(self) -> None:
        """Close what this backend opened. An engine or client that the caller passed in stays open."""
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
    ) -> HistoryPage | None:
        """Read a range of the view, oldest first: from ``start`` to ``stop``, or the ``last`` N items."""
        ...

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        """List sessions, newest first. ``query`` is a substring of the session id or of the metadata."""
        ...

    async def list_generations(self, session_id: str) -> list[Generation]: ...

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]: ...

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        """Return candidates in a stable order, newest sessions and items first, or ``None`` without an index.

        The result may contain items that do not match but omits none that do; the caller checks each.
        """
        ...

    async def get_run(self, run_id: str) -> RunRecord | None: ...

    async def list_runs(
        self,
        *,
        status: Sequence[str] | None,
        session_id: str | None,
        limit: int,
        after: int,
        owner: str | None = None,
        newest_first: bool = False,
    ) -> list[RunRecord]:
        """List runs in order of creation, those with an ``order`` above ``after``; ``owner`` is their session's.

        With ``newest_first`` the order is reversed, and ``after``, unless it is 0, is above those of the page.
        """
        ...

    async def list_claimable(self, *, queues: Sequence[str], limit: int, after: str | None) -> list[RunRecord]:
        """List runs of these queues that a runtime may claim, in the order in which it should.

        Those with a higher priority precede, then those that were started before, then the earlier queue. Within these
        the shares take turns, beginning with the first above ``after``; each share's runs are in order of creation.
        The cost does not depend on how many runs wait.
        """
        ...

    async def list_waiting_queues(self) -> list[str]:
        """List the queues in which runs wait that a runtime may claim. The cost depends on the number of queues."""
        ...

    async def list_queue_depths(self) -> list[QueueDepth]:
        """Count the runs that no runtime executes and any may execute, by queue and status."""
        ...

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]: ...

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        """Return entries of the run's second log, see :class:`~standfast.store.operations.AppendEvents`."""
        ...

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None: ...

    async def list_approvals(
        self,
        *,
        status: str | None,
        run_id: str | None,
        session_id: str | None,
        limit: int,
        after: str,
        owner: str | None = None,
    ) -> list[ApprovalRecord]:
        """List approvals by id, those with an id above ``after``; ``owner`` is their session's."""
        ...

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        """List approvals that expire at or before ``at``, earliest first, those that follow ``after``."""
        ...

    async def list_changed_approvals(
        self, *, after: ApprovalPlace, upto: int | None, status: str | None, limit: int, owner: str | None = None
    ) -> list[ChangedApproval]:
        """List approvals in the order of their latest changes: those after ``after``, up to the number ``upto``."""
        ...

    async def count_approval_changes(self) -> int:
        """Return the number of the latest change of an approval; all changes up to it can be listed."""
        ...

    async def get_workspace(self, key: str) -> WorkspaceRecord | None: ...

    async def list_workspaces(self, *, limit: int, after: str) -> list[WorkspaceRecord]:
        """List workspaces by key, those with a key above ``after``."""
        ...

    async def read_versions(self, key: str, *, after: int = 0, upto: int | None = None) -> list[VersionRecord]: ...

    async def get_checkpoint(self, key: str, version: int) -> CheckpointRecord | None: ...

    async def find_blobs(self, digests: Sequence[str]) -> list[BlobRecord]:
        """Return those of the blobs that are stored, in the order of ``digests``."""
        ...

    async def read_blob(self, blob: BlobRecord) -> bytes | None: ...

    async def get_document(self, kind: str, key: str) -> DocumentRecord | None: ...

    async def list_documents(
        self, kind: str, *, limit: int, after: str = "", before: str | None = None, reverse: bool = False
    ) -> list[DocumentRecord]:
        """List documents by key, those above ``after`` and below ``before``; the last ones first with ``reverse``."""
        ...

    async def get_time(self) -> float:
        """Return the time of the clock that leases expire by: the server's, if there is a server."""
        ...

    async def get_lease(self, name: str) -> Lease | None: ...

    async def get_session_turn(self, session_id: str, *, lease: str) -> SessionTurn:
        """Return whose turn it is in a session whose runs hold the lease of this name."""
        ...

    async def open_link(self, name: str, listener: LinkListener) -> Link:
        """Open a link to the others who use the same store, or raise :class:`LinkUnavailable`.

        ``name`` is the address of this end; no other has the same. Close it before the backend.
        """
        ...
