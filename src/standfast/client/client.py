"""The client: the methods of a runtime, carried out by a server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, cast

from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.client.administration import RemoteAdmin
from standfast.client.budgets import RemoteBudgets
from standfast.client.connection import MAX_RESPONSE_BYTES, Connection, make_path
from standfast.client.event_stream import follow_approvals
from standfast.client.runs import RemoteRun
from standfast.client.schedules import RemoteSchedules
from standfast.client.sessions import RemoteSession, RemoteStore
from standfast.client.webhooks import RemoteWebhooks
from standfast.client.workspaces import RemotePython, RemoteWorkspace, open_workspace
from standfast.runtime.types import (
    Approval,
    ApprovalChange,
    ApprovalStatus,
    CancelMode,
    OnBusy,
    PruneReport,
    QueueInfo,
    RunInfo,
    RunOutcome,
    RunStatus,
    RuntimeInfo,
    Verdict,
)
from standfast.server.answers import FleetView, Overview, RunStepView
from standfast.server.types import AgentInfo, DecisionResult, NamedDecision, Page, ServerInfo, ToolInfo
from standfast.store.records import WorkspaceRecord
from standfast.workspaces.retention import RetentionReport


class Client:
    """A runtime behind HTTP. While the server cannot be reached, requests that are safe to repeat are sent again.

    Errors are the exceptions that a :class:`Runtime` raises, found by their codes. An answer, or an event, of more than
    ``max_response_bytes``, a compressed one, and one that is not what it should be raise :class:`ServerError`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.connection = Connection(url, token=token, timeout=timeout, max_response_bytes=max_response_bytes)
        self.store = RemoteStore(self)
        """The sessions of the server."""
        self.admin = RemoteAdmin(self.connection)
        """The keys, the audit log, the workers and the calls of the server."""
        self.schedules = RemoteSchedules(self.connection)
        """The schedules of the server."""
        self.budgets = RemoteBudgets(self.connection)
        """The budgets of the server."""
        self.webhooks = RemoteWebhooks(self.connection)
        """The webhooks of the server."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the server."""
        await self.connection.close()

    async def info(self) -> ServerInfo:
        """Return the version of the server, and the principal that this client is authenticated as."""
        return cast(ServerInfo, await self.connection.request("GET", "/info", ServerInfo))

    async def overview(self) -> Overview:
        """Return the numbers of runs by status, the oldest approval, and the health of the store."""
        return cast(Overview, await self.connection.request("GET", "/overview", Overview))

    async def agents(self) -> list[AgentInfo]:
        """Return the agents that runs can start with."""
        page: Page[AgentInfo] = await self.connection.request("GET", "/agents", Page[AgentInfo])
        return page.items

    # --- runs ---------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        input: str | list[Item],
        *,
        session_id: str | None = None,
        context: Any = None,
        key: str | None = None,
        on_busy: OnBusy = "enqueue",
        **options: Any,
    ) -> RemoteRun:
        """Start a run, once, as :meth:`Runtime.start` does. The owner of its session is that of the credential."""
        body = {"agent": agent, "input": input, "session_id": session_id, "context": context, "on_busy": on_busy}
        info: RunInfo = await self.connection.request(
            "POST",
            "/runs",
            RunInfo,
            body=body | options,
            headers={"idempotency-key": key or new_id("start")},
            is_repeatable=True,
        )
        return RemoteRun(self, info.run_id)

    async def run(self, run_id: str) -> RemoteRun:
        """Return the run with this id, or raise :class:`NotFound`."""
        return RemoteRun(self, (await self.get_run_info(run_id)).run_id)

    async def get_run_info(self, run_id: str) -> RunInfo:
        """Return the status of a run."""
        return cast(RunInfo, await self.connection.request("GET", make_path("runs", run_id), RunInfo))

    async def get_outcome(self, run_id: str) -> RunOutcome:
        """Return the outcome of a run as it is now."""
        path = make_path("runs", run_id, "outcome")
        return cast(RunOutcome, await self.connection.request("GET", path, RunOutcome))

    async def runs(
        self,
        *,
        status: RunStatus | Sequence[RunStatus] | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        after: RunInfo | str | None = None,
        newest_first: Literal[True] = True,
    ) -> list[RunInfo]:
        """Return runs, always the latest first; ``after`` continues a listing after that run."""
        params = {
            "status": [status] if isinstance(status, str) else status,
            "session_id": session_id,
            "owner": owner,
            "limit": limit,
            "after": after.run_id if isinstance(after, RunInfo) else after,
        }
        page: Page[RunInfo] = await self.connection.request("GET", "/runs", Page[RunInfo], params=params)
        return page.items

    async def state(self, run_id: str, *, at: int | None = None) -> dict[str, Any]:
        """Return the run as portable JSON, as it is now or as it was after the step ``at``."""
        path = make_path("runs", run_id, "state")
        return cast(dict[str, Any], await self.connection.request("GET", path, dict[str, Any], params={"at": at}))

    async def cancel(self, run_id: str, *, mode: CancelMode = "after_turn") -> None:
        """Cancel a run after its turn, or at once. Its progress is kept."""
        await self._act("cancel", run_id, {"mode": mode})

    async def resume(self, run_id: str, *, accept_changes: bool = False, agent: str | None = None) -> RemoteRun:
        """Let a stopped, failed or blocked run continue."""
        return await self._act("resume", run_id, {"accept_changes": accept_changes, "agent": agent})

    async def fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        session_id: str | None = None,
        input: str | list[Item] | None = None,
        outputs: dict[str, str] | None = None,
        agent: str | None = None,
    ) -> RemoteRun:
        """Start a new run from a step of another one, with other input, outputs or agent: see :meth:`Runtime.fork`."""
        body = {"at": at, "session_id": session_id, "input": input, "outputs": outputs, "agent": agent}
        return await self._act("fork", run_id, body)

    async def step(self, run_id: str, *, at: int | None = None) -> RunStepView:
        """Return what a run had done by the step ``at``, with the variables and files of its Python then."""
        path = make_path("runs", run_id, "step")
        return cast(RunStepView, await self.connection.request("GET", path, RunStepView, params={"at": at}))

    async def _act(self, action: str, run_id: str, body: dict[str, Any]) -> RemoteRun:
        path = make_path("runs", run_id, action)
        info: RunInfo = await self.connection.request("POST", path, RunInfo, body=body)
        return RemoteRun(self, info.run_id)

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended, with its events and approvals."""
        await self.connection.request("DELETE", make_path("runs", run_id))

    async def prune(self, *, older_than: timedelta | float | None = None, keep: int | None = None) -> PruneReport:
        """Delete ended runs of all owners, as :meth:`Runtime.prune` does."""
        body = {"older_than": to_seconds(older_than), "keep": keep}
        return cast(PruneReport, await self.connection.request("POST", "/runs/prune", PruneReport, body=body))

    # --- approvals ----------------------------------------------------------------------------------

    async def approvals(
        self,
        *,
        status: ApprovalStatus | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        limit: int = 50,
        after: str = "",
    ) -> list[Approval]:
        """Return approvals in the order of their requests."""
        params = {"status": status, "run_id": run_id, "session_id": session_id, "owner": owner, "limit": limit}
        page: Page[Approval] = await self.connection.request(
            "GET", "/approvals", Page[Approval], params=params | {"after": after or None}
        )
        return page.items

    async def follow_approvals(
        self, *, after: str | None = None, owner: str | None = None
    ) -> AsyncIterator[ApprovalChange]:
        """Yield the approvals that wait, and then every change, without end; see :meth:`Runtime.follow_approvals`."""
        followed = follow_approvals(self.connection, after=after, owner=owner)
        async with aclosing(followed) as changes:  # type: ignore[type-var]
            async for change in changes:
                yield change

    async def approval(self, approval_id: str) -> Approval:
        """Return an approval; raise ``NotFound`` for an unknown id."""
        return cast(Approval, await self.connection.request("GET", make_path("approvals", approval_id), Approval))

    async def decide(
        self,
        approval_id: str,
        decision: Verdict,
        *,
        arguments: Any = None,
        message: str | None = None,
        output: Any = None,
        by: str | None = None,
        always: bool = False,
    ) -> Approval:
        """Decide an approval as :meth:`Runtime.decide` does.

        The server records the subject of the credential as the decider, whatever ``by`` is.
        """
        body = {"decision": decision, "arguments": arguments, "message": message, "output": output, "always": always}
        path = make_path("approvals", approval_id)
        return cast(Approval, await self.connection.request("POST", path, Approval, body=body))

    async def decide_each(self, decisions: Sequence[NamedDecision]) -> list[DecisionResult]:
        """Decide several approvals, one after the other; each has a result of its own."""
        found: list[DecisionResult] = await self.connection.request(
            "POST", "/approvals/decide", list[DecisionResult], body=list(decisions)
        )
        return found

    async def find_tool(self, approval_id: str) -> ToolInfo:
        """Return the tool that the call of an approval is for, with the schema of its arguments."""
        path = make_path("approvals", approval_id, "tool")
        return cast(ToolInfo, await self.connection.request("GET", path, ToolInfo))

    async def queues(self) -> list[QueueInfo]:
        """Return the queues in which runs wait, as :meth:`Runtime.queues` does."""
        return (await self._get_fleet()).queues

    async def runtimes(self) -> list[RuntimeInfo]:
        """Return the runtimes that execute runs, as :meth:`Runtime.runtimes` does."""
        return (await self._get_fleet()).runtimes

    async def _get_fleet(self) -> FleetView:
        return cast(FleetView, await self.connection.request("GET", "/fleet", FleetView))

    # --- workspaces ---------------------------------------------------------------------------------

    async def workspace(self, name: str, *, at: int | None = None) -> RemoteWorkspace:
        """Return the variables and files of a session as of version ``at`` of them, without starting a worker."""
        return await open_workspace(self.connection, name, at)

    def python(self, session_id: str) -> RemotePython:
        """Return the Python of a session; nothing is sent. The server must allow it: ``standfast serve --python``."""
        return RemotePython(self.connection, session_id)

    async def workspaces(self, *, limit: int = 50, after: str | None = None) -> list[WorkspaceRecord]:
        """Return the workspaces of all owners by key, those after this key."""
        params = {"limit": limit, "after": after}
        page: Page[WorkspaceRecord] = await self.connection.request(
            "GET", "/workspaces", Page[WorkspaceRecord], params=params
        )
        return page.items

    async def prune_workspaces(
        self, *, older_than: timedelta | float | None = None, keep: int | None = None, max_mb: float | None = None
    ) -> RetentionReport:
        """Drop old checkpoints of all workspaces, as :meth:`Runtime.prune_workspaces` does."""
        body = {"older_than": to_seconds(older_than), "keep": keep, "max_mb": max_mb}
        return cast(
            RetentionReport, await self.connection.request("POST", "/workspaces/prune", RetentionReport, body=body)
        )

    # --- sessions -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> RemoteSession:
        """Return the session with this id; nothing is sent."""
        return RemoteSession(self, session_id)


def to_seconds(age: timedelta | float | None) -> float | None:
    return age.total_seconds() if isinstance(age, timedelta) else age
