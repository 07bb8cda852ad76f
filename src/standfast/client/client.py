"""The client: the methods of a runtime, carried out by a server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self, cast

from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.client.connection import Connection, make_path
from standfast.client.event_stream import follow_approvals
from standfast.client.runs import RemoteRun
from standfast.client.sessions import RemoteSession
from standfast.client.store import RemoteStore
from standfast.client.workspaces import RemotePython, RemoteWorkspace, open_workspace
from standfast.runtime.types import (
    Approval,
    ApprovalChange,
    ApprovalStatus,
    CancelMode,
    OnBusy,
    RunInfo,
    RunOutcome,
    RunStatus,
    Verdict,
)
from standfast.server.types import AgentInfo, Page, ServerInfo


class Client:
    """A runtime behind HTTP. Requests that can be repeated safely are, while the server is away for a moment.

    Errors are the exceptions that a :class:`Runtime` raises, found by their codes.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 30.0) -> None:
        self.connection = Connection(url, token=token, timeout=timeout)
        self.store = RemoteStore(self)
        """The sessions of the server."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    async def info(self) -> ServerInfo:
        """Return the version of the server, and who this client is for it."""
        return cast(ServerInfo, await self.connection.request("GET", "/info", ServerInfo))

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
        return cast(RunInfo, await self.connection.request("GET", make_path("runs", run_id), RunInfo))

    async def get_outcome(self, run_id: str) -> RunOutcome:
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
        await self._act("cancel", run_id, {"mode": mode})

    async def resume(self, run_id: str, *, accept_changes: bool = False, agent: str | None = None) -> RemoteRun:
        return await self._act("resume", run_id, {"accept_changes": accept_changes, "agent": agent})

    async def fork(self, run_id: str, *, at: int | None = None, session_id: str | None = None) -> RemoteRun:
        return await self._act("fork", run_id, {"at": at, "session_id": session_id})

    async def _act(self, action: str, run_id: str, body: dict[str, Any]) -> RemoteRun:
        path = make_path("runs", run_id, action)
        info: RunInfo = await self.connection.request("POST", path, RunInfo, body=body)
        return RemoteRun(self, info.run_id)

    async def delete(self, run_id: str) -> None:
        await self.connection.request("DELETE", make_path("runs", run_id))

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

    # --- workspaces ---------------------------------------------------------------------------------

    async def workspace(self, name: str, *, at: int | None = None) -> RemoteWorkspace:
        """Return the variables and files of a session as of version ``at`` of them, without starting a worker."""
        return await open_workspace(self.connection, name, at)

    def python(self, session_id: str) -> RemotePython:
        """Return the Python of a session; nothing is sent. The server must allow it: ``standfast serve --python``."""
        return RemotePython(self.connection, session_id)

    # --- sessions -----------------------------------------------------------------------------------

    def session(self, session_id: str) -> RemoteSession:
        """Return the session with this id; nothing is sent."""
        return RemoteSession(self, session_id)
