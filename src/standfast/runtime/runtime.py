"""Durable runs by id: started once, driven by one process at a time, taken up by another when that is gone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

from standfast.agents.agent import Agent
from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.base.errors import InvalidInput, Unsupported
from standfast.base.ids import validate_name
from standfast.base.items import Item
from standfast.history.session import validate_listing_limit
from standfast.history.store import Store
from standfast.lifecycle.scope import Scope
from standfast.runs.active_run import ActiveRun
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.core.context import restore_context, save_context
from standfast.runs.run_state import RunState
from standfast.runs.session_io import validate_input
from standfast.runtime._engine import approvals, control
from standfast.runtime._engine.approvals import APPROVAL_PREFIX, decode_approval
from standfast.runtime._engine.context import RuntimeContext, build_graphs
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.records import PUBLIC_STATUS, decode_header
from standfast.runtime._engine.recovery import RecoveryLoop
from standfast.runtime._engine.retrying_backend import RetryControl, RetryingBackend
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime._engine.snapshots import replay, validate_step
from standfast.runtime.handle import RunHandle, make_run_info
from standfast.runtime.types import Approval, ApprovalStatus, CancelMode, OnBusy, RunInfo, RunStatus, Verdict
from standfast.store.contract import Backend
from standfast.store.urls import open_backend


class Runtime:
    """Runs that outlive their process. Any number of runtimes, in any number of processes, share one store.

    Made by :meth:`open`. Leaving it hands back what it drives, for other runtimes or a later one to go on.
    """

    def __init__(self, ctx: RuntimeContext, scheduler: Scheduler) -> None:
        self._ctx, self._scheduler = ctx, scheduler
        self.store = Store(ctx.backend)
        """The histories of the runs' sessions."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: Any,
        *,
        agents: Sequence[Agent[Any]] = (),
        lease: float = 30.0,
        approval_ttl: float | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
    ) -> AsyncIterator["Runtime"]:
        """A runtime on the store at ``url``, while the block lasts; an open :class:`Store` stays the caller's.

        ``agents`` are those that runs begin with, found by their names. A run whose process died is taken up by
        another runtime within twice the ``lease``. Questions to people expire after ``approval_ttl`` seconds.
        """
        graphs = build_graphs(agents)
        for name, seconds in (("lease", lease), ("approval_ttl", approval_ttl)):
            if seconds is not None and not seconds > 0:
                raise InvalidInput(f"{name} must be a positive number of seconds, not {seconds!r}")
        opened = url.backend if isinstance(url, Store) else await open_backend(url)
        try:
            await _check_supports_runs(opened)
            patience = RetryControl()
            backend: Any = RetryingBackend(opened, patience)
            renewing = LeaseRenewer(backend, ttl=lease)
            home = RuntimeContext(
                backend, graphs, renewing, RunConfig.coerce(run_config), lease, approval_ttl, retry=patience
            )
            await home.sync_clock()
            async with Scope() as scope:
                driving = Scheduler(home, scope)
                scope.start(renewing.run(), name="standfast leases")
                scope.start(RecoveryLoop(driving).run(), name="standfast reaper")
                try:
                    yield cls(home, driving)
                finally:
                    await driving.aclose()
                    scope.cancel()
        finally:
            if not isinstance(url, Store):
                await opened.close()

    # --- starting -----------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        input: str | list[Item],
        *,
        session_id: str | None = None,
        context: Any = None,
        key: str | None = None,
        on_busy: OnBusy = "enqueue",
        max_turns: int | None = DEFAULT_MAX_TURNS,
    ) -> RunHandle:
        """Ask for a run of the agent with that name. It is durable when this returns.

        With ``key``, asking again for the same gives the same run, from any process. ``context`` must be JSON, or an
        object with a registered codec. When another run has the session, ``on_busy`` says what becomes of this one:
        ``enqueue`` waits in line, ``reject`` raises :class:`SessionBusy`, ``interrupt`` cancels the other and goes in
        front of those in line, and ``rollback`` also takes back what the other has added to the session.
        """
        self._ctx.get_graph(agent)
        if on_busy not in ("enqueue", "reject", "interrupt", "rollback"):
            raise InvalidInput(f"on_busy is enqueue, reject, interrupt or rollback, not {on_busy!r}")
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int)):
            raise InvalidInput(f"max_turns must be a whole number or None, not {max_turns!r}")
        request = control.StartRequest(
            agent,
            validate_input(input),
            _validate_session_id(session_id),
            save_context(context, serializer=None, strict=True),
            max_turns,
            None if key is None else validate_name("key", key),
            on_busy,
        )
        return self._make_handle(await control.start_run(self._scheduler, request))

    # --- looking ------------------------------------------------------------------------------------

    def drives(self, run_id: str) -> bool:
        """Whether the run is driven by this runtime at present."""
        return run_id in self._scheduler.executors

    def _make_handle(self, run_id: str) -> RunHandle:
        return RunHandle(self, self._ctx, run_id)

    async def run(self, run_id: str) -> RunHandle:
        """The run with this id; :class:`NotFound` when there is none."""
        return self._make_handle((await self._ctx.get_run(run_id)).run_id)

    async def runs(
        self,
        *,
        status: RunStatus | Sequence[RunStatus] | None = None,
        session_id: str | None = None,
        limit: int | None = 50,
        after: RunInfo | None = None,
    ) -> list[RunInfo]:
        """Runs in the order in which they were asked for; ``after`` goes on behind one of them."""
        shown = [status] if isinstance(status, str) else status
        _check_statuses(shown or (), get_args(RunStatus))
        statuses = None if shown is None else [name for name, seen in PUBLIC_STATUS.items() if seen in shown]
        behind = 0 if after is None else (await self._ctx.get_run(after.run_id)).order
        found = await self._ctx.backend.list_runs(
            status=statuses,
            session_id=_validate_session_id(session_id),
            limit=validate_listing_limit(limit),
            after=behind,
        )
        return [make_run_info(record) for record in found]

    async def approvals(
        self,
        *,
        status: ApprovalStatus | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        limit: int | None = 50,
        after: str = "",
    ) -> list[Approval]:
        """Questions to people in the order of their ids, which is about that of asking."""
        if status is not None:
            _check_statuses([status], get_args(ApprovalStatus))
        found = await self._ctx.backend.list_approvals(
            status=status,
            run_id=run_id,
            session_id=_validate_session_id(session_id),
            limit=validate_listing_limit(limit),
            after=after or APPROVAL_PREFIX,
        )
        return [decode_approval(record) for record in found]

    async def approval(self, approval_id: str) -> Approval:
        return decode_approval(await self._ctx.get_approval(approval_id))

    async def state(self, run_id: str, *, at: int | None = None) -> RunState[Any, Any]:
        """The run as a portable state, as it is now or as it was after the step ``at``."""
        record = await self._ctx.get_run(run_id)
        graph = self._ctx.get_graph(decode_header(record).agent)
        replayed = await replay(self._ctx.backend, record, upto=None if at is None else validate_step(record, at))
        context: RunContextWrapper[Any] = RunContextWrapper(
            restore_context(replayed.context, deserializer=None, strict=False),
            usage=replayed.usage,
            approvals=Approvals(list(replayed.state.approvals)),
            tool_input=replayed.state.tool_input,
        )
        return RunState.from_run(ActiveRun(replayed.state, graph=graph, context=context, config=self._ctx.config))

    # --- acting -------------------------------------------------------------------------------------

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
        """Answer a question, once, and let its run go on.

        ``approve`` lets the call be made, with ``arguments`` in place of the model's; ``reject`` tells the model no,
        in the words of ``message``; ``done`` says that an uncertain call did happen, with ``output``. ``always`` holds
        for every further call of that agent's tool in the session.
        """
        answered = await approvals.decide_approval(
            self._ctx, approval_id, decision, arguments=arguments, message=message, output=output, by=by, always=always
        )
        await self._scheduler.claim_if_runnable(answered.run_id)
        return answered

    async def resume(self, run_id: str, *, accept_changes: bool = False, agent: str | None = None) -> RunHandle:
        """Let a run go on that failed, was cancelled, or met changed code.

        ``accept_changes`` refuses the calls whose tools are gone; ``agent`` is the new name of the one it began with.
        A run that waits for people goes on when they have answered; one that is under way or completed is left alone,
        but one under way takes accepted changes in.
        """
        if agent is not None:
            self._ctx.get_graph(agent)
        await control.resume_run(self._scheduler, run_id, accept=accept_changes, agent=agent)
        return self._make_handle(run_id)

    async def cancel(self, run_id: str, *, mode: CancelMode = "after_turn") -> None:
        """Stop a run, keeping what it did: when its turn is over, or now. It can be resumed later."""
        if mode not in ("after_turn", "immediate"):
            raise InvalidInput(f"a run is cancelled 'after_turn' or 'immediate', not {mode!r}")
        await control.cancel_run(self._scheduler, run_id, mode)

    async def fork(self, run_id: str, *, at: int | None = None, session_id: str | None = None) -> RunHandle:
        """A new run from the step ``at`` of another one: the number of its event. It begins at once.

        Its session is a fork of what the other run's session had at that step.
        """
        record = await control.fork_run(self._ctx, await self._ctx.get_run(run_id), at=at, session_id=session_id)
        await self._scheduler.claim(record)
        return self._make_handle(record.run_id)


def _validate_session_id(name: object) -> str | None:
    return None if name is None else validate_name("session id", name)


def _check_statuses(wanted: Sequence[str], known: Sequence[str]) -> None:
    if unknown := set(wanted) - set(known):
        raise InvalidInput(f"there is no status {', '.join(sorted(unknown))}; there are {', '.join(known)}")


async def _check_supports_runs(backend: Backend) -> None:
    try:
        await backend.get_run("any")
    except Unsupported as problem:
        raise Unsupported(f"{problem}: open the runtime on SQLite or an SQL database") from None
