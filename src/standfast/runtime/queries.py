"""What can be read of durable runs: the runs, their approvals, sessions and workspaces."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, get_args

from standfast.base.ids import validate_name, validate_owner
from standfast.history.session import validate_listing_limit
from standfast.history.store import Store
from standfast.history.stored_session import StoredSession
from standfast.runs.run_state import RunState
from standfast.runtime._engine.approval_feed import follow_approvals, parse_cursor
from standfast.runtime._engine.approvals import APPROVAL_PREFIX, decode_approval, describe_approval, find_tool
from standfast.runtime._engine.context import RuntimeContext, validate_session_id
from standfast.runtime._engine.records import check_statuses, list_stored_statuses
from standfast.runtime._engine.run_steps import describe_step, load_state
from standfast.runtime.handle import RunHandle, make_run_info
from standfast.runtime.types import Approval, ApprovalChange, ApprovalStatus, RunInfo, RunStatus, RunStep

if TYPE_CHECKING:
    from standfast.runtime.runtime import Runtime
    from standfast.workspaces.view import Workspace


class RunQueries:
    """The durable runs of a store, to read. Those of :meth:`Runtime.scoped` see what one owner has."""

    def __init__(self, runtime: "Runtime", ctx: RuntimeContext) -> None:
        self._runtime, self._ctx = runtime, ctx
        self.store = Store(ctx.backend)
        """The store of the runs and their sessions."""

    def session(self, session_id: str, *, owner: str | None = None) -> StoredSession:
        """Return the session with this id as the runs read and write it: encrypted if the runtime has a key.

        ``owner`` is recorded by the write that creates it.
        """
        return self._ctx.open_session(session_id, owner=owner)

    def _make_handle(self, run_id: str) -> RunHandle:
        return RunHandle(self._runtime, self._ctx, run_id)

    async def run(self, run_id: str) -> RunHandle:
        """Return the run with this id, or raise :class:`NotFound`."""
        return self._make_handle((await self._ctx.get_run(run_id)).run_id)

    async def run_with_info(self, run_id: str) -> tuple[RunHandle, RunInfo]:
        """Return the run with this id and how it is listed now, in one read, or raise :class:`NotFound`."""
        record = await self._ctx.get_run(run_id)
        return self._make_handle(record.run_id), make_run_info(record)

    async def runs(
        self,
        *,
        status: RunStatus | Sequence[RunStatus] | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        limit: int | None = 50,
        after: RunInfo | str | None = None,
        newest_first: bool = False,
    ) -> list[RunInfo]:
        """Return runs in the order of their starts; ``after`` continues a listing after that run, given by its id.

        ``owner`` selects the runs of sessions with this owner.
        """
        previous = after.run_id if isinstance(after, RunInfo) else after
        order = 0 if previous is None else (await self._ctx.get_run(previous)).order
        records = await self._ctx.backend.list_runs(
            status=list_stored_statuses(status),
            session_id=validate_session_id(session_id),
            limit=validate_listing_limit(limit),
            after=order,
            owner=validate_owner(owner),
            newest_first=newest_first,
        )
        return [make_run_info(record) for record in records]

    async def approvals(
        self,
        *,
        status: ApprovalStatus | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        limit: int | None = 50,
        after: str = "",
    ) -> list[Approval]:
        """Return approvals in the order of their ids, which is roughly that of their requests.

        ``owner`` selects the approvals in sessions with this owner.
        """
        if status is not None:
            check_statuses([status], get_args(ApprovalStatus))
        records = await self._ctx.backend.list_approvals(
            status=status,
            run_id=run_id,
            session_id=validate_session_id(session_id),
            limit=validate_listing_limit(limit),
            after=after or APPROVAL_PREFIX,
            owner=validate_owner(owner),
        )
        return [describe_approval(record) for record in records]

    async def approval(self, approval_id: str) -> Approval:
        """Return the approval with this id, or raise :class:`NotFound`."""
        return decode_approval(await self._ctx.get_approval(approval_id))

    async def find_tool(self, approval_id: str) -> Any:
        """Return the tool that the call of an approval is for; raise :class:`NotFound` if this runtime lacks it."""
        approval = await self.approval(approval_id)
        return await find_tool(self._ctx, approval, await self._ctx.get_run(approval.run_id))

    def follow_approvals(
        self, *, after: str | None = None, owner: str | None = None
    ) -> AsyncGenerator[ApprovalChange, None]:
        """Yield the approvals that are pending, and then every change of an approval, without end.

        With ``after``, the cursor of a change, yield what has changed since, in the order of the changes. An approval
        that has changed several times by then is yielded once, as it is. ``owner`` selects the approvals in sessions
        with this owner.
        """
        place = None if after is None else parse_cursor(after)
        return follow_approvals(self._ctx, place, owner=validate_owner(owner))

    async def workspace(self, name: str, *, at: int | None = None) -> "Workspace":
        """Return the variables and files of a session or run, as of version ``at`` of them, without starting a worker.

        ``name`` is the id of the session or run, or the key of a workspace. Raise :class:`NotFound` if it has none.
        The files of a sandbox are shown if there is no Python beside it; its key is that of the other with ``sandbox:``
        in front.
        """
        from standfast.workspaces.view import find_key, open_workspace

        key = await find_key(self._ctx.backend, validate_name("session or run id", name))
        return await open_workspace(self._ctx.backend, key, at=at)

    async def state(self, run_id: str, *, at: int | None = None) -> RunState[Any, Any]:
        """Return the run as a portable state, as it is now or as it was after the step ``at``."""
        return await load_state(self._ctx, run_id, at=at)

    async def step(self, run_id: str, *, at: int | None = None) -> RunStep:
        """Return what the run had done by the step ``at``, by default the latest: items, calls, usage, workspace."""
        return await describe_step(self._ctx, run_id, at=at)
