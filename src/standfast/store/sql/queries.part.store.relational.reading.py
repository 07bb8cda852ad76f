"""The reads of the contract for every backend that can run a function on a connection."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.store.contract import (
    ApprovalRecord,
    Cursor,
    Generation,
    Lease,
    LogEntry,
    Page,
    QuarantinedItem,
    RunRecord,
    SessionRecord,
)
from holdfast.store.relational import reads

T = TypeVar("T")


class RelationalQueries(ABC):
    """All reads but the search, which is every database's own."""

    @abstractmethod
    async def run_query(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``work`` with a connection and these arguments."""

    async def get_session(self, session_id: str) -> SessionRecord | None:
        return await self.run_query(reads.get_session, session_id)

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        return await self.run_query(reads.read, session_id, start=start, stop=stop, last=last, generation=generation)

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        return await self.run_query(reads.list_sessions, owner=owner, query=query, limit=limit, after=after)

    async def list_generations(self, session_id: str) -> list[Generation]:
        return await self.run_query(reads.list_generations, session_id)

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        return await self.run_query(reads.list_quarantined, session_id)

    async def get_run(self, run_id: str) -> RunRecord | None:
        return await self.run_query(reads.get_run, run_id)

    async def list_runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        return await self.run_query(reads.list_runs, status=status, session_id=session_id, limit=limit, after=after)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        return await self.run_query(reads.read_log, "{_journal}", run_id, after=after, limit=reads.NO_LIMIT)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        return await self.run_query(reads.read_log, "{_events}", run_id, after=after, limit=limit)

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        return await self.run_query(reads.get_approval, approval_id)

    async def list_approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        return await self.run_query(
            reads.list_approvals, status=status, run_id=run_id, session_id=session_id, limit=limit, after=after
        )

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        return await self.run_query(reads.list_due_approvals, status=status, at=at, limit=limit, after=after)

    async def get_lease(self, name: str) -> Lease | None:
        return await self.run_query(reads.get_lease, name)
