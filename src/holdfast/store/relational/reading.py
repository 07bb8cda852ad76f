"""The reads of the contract for every backend that can run a function on a connection."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.store.contract import (
    ApprovalRecord,
    Cursor,
    Generation,
    Lease,
    Logged,
    Page,
    Quarantined,
    RunRecord,
    SessionRecord,
)
from holdfast.store.relational import reads

T = TypeVar("T")


class RelationalReads(ABC):
    """All reads but the search, which is every database's own."""

    @abstractmethod
    async def see(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``work`` with a connection and these arguments."""

    async def record(self, session_id: str) -> SessionRecord | None:
        return await self.see(reads.record, session_id)

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        return await self.see(reads.read, session_id, start=start, stop=stop, last=last, generation=generation)

    async def sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        return await self.see(reads.sessions, owner=owner, query=query, limit=limit, after=after)

    async def generations(self, session_id: str) -> list[Generation]:
        return await self.see(reads.generations, session_id)

    async def quarantined(self, session_id: str) -> list[Quarantined]:
        return await self.see(reads.quarantined, session_id)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self.see(reads.run, run_id)

    async def runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        return await self.see(reads.runs, status=status, session_id=session_id, limit=limit, after=after)

    async def journal(self, run_id: str, *, after: int) -> list[Logged]:
        return await self.see(reads.logged, "{_journal}", run_id, after=after, limit=reads.ALL)

    async def events(self, run_id: str, *, after: int, limit: int) -> list[Logged]:
        return await self.see(reads.logged, "{_events}", run_id, after=after, limit=limit)

    async def approval(self, approval_id: str) -> ApprovalRecord | None:
        return await self.see(reads.approval, approval_id)

    async def approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        return await self.see(
            reads.approvals, status=status, run_id=run_id, session_id=session_id, limit=limit, after=after
        )

    async def approvals_due(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        return await self.see(reads.approvals_due, status=status, at=at, limit=limit, after=after)

    async def lease(self, name: str) -> Lease | None:
        return await self.see(reads.lease, name)
