"""The runtime: start, find, decide, resume, cancel and fork durable runs."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import Item
from standfast.history.compaction import HistoryCompaction
from standfast.history.encryption.codec import EncryptingCodec
from standfast.history.reader import PLAIN_CODEC
from standfast.history.session import validate_listing_limit
from standfast.history.store import Store
from standfast.history.stored_session import StoredSession
from standfast.lifecycle.scope import Scope
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.run_state import RunState
from standfast.runtime._engine import approvals, control, deletion
from standfast.runtime._engine.approval_feed import follow_approvals, parse_cursor
from standfast.runtime._engine.approvals import APPROVAL_PREFIX, decode_approval, describe_approval
from standfast.runtime._engine.context import (
    RetryingBackend,
    RuntimeContext,
    ShutdownFlag,
    build_graphs,
    check_supports_runs,
    validate_options,
    validate_session_id,
)
from standfast.runtime._engine.encrypting_backend import encrypt_backend
from standfast.runtime._engine.imports import import_run
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.live_relay import LiveRelay
from standfast.runtime._engine.records import check_statuses, list_stored_statuses
from standfast.runtime._engine.recovery import RecoveryLoop
from standfast.runtime._engine.run_cipher import RunCipher
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime._engine.subscriptions import RunSubscriptions
from standfast.runtime.handle import RunHandle, make_run_info
from standfast.runtime.types import (
    Approval,
    ApprovalChange,
    ApprovalStatus,
    CancelMode,
    OnBusy,
    PruneReport,
    RekeyReport,
    RunInfo,
    RunStatus,
    Verdict,
)
from standfast.store.urls import open_backend

if TYPE_CHECKING:
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions
    from standfast.workspaces.retention import RetentionReport
    from standfast.workspaces.session_python import SessionPython
    from standfast.workspaces.view import Workspace


class Runtime:
    """Executes durable runs. Any number of runtimes, in any number of processes, can share one store.

    Create it with :meth:`open`. On exit it releases its runs, and other runtimes or a later one resume them.
    """

    def __init__(self, ctx: RuntimeContext, scheduler: Scheduler) -> None:
        self._ctx, self._scheduler = ctx, scheduler
        self.store = Store(ctx.backend)
        """The store of the runs and their sessions."""

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
        encryption_key: str | Sequence[str] | None = None,
        compaction: HistoryCompaction | None = None,
        live: bool = False,
    ) -> AsyncIterator["Runtime"]:
        """Open a runtime on the store at ``url``. An open :class:`Store` may be passed instead and is not closed.

        ``agents`` are the agents that runs start with, found by name. A run whose process died is resumed by another
        runtime within twice the ``lease`` seconds. Approvals expire after ``approval_ttl`` seconds.

        With ``encryption_key`` the runs and their sessions are encrypted as by an :class:`EncryptedSession` with that
        key; of several keys, the first encrypts and all decrypt. The runtime then executes encrypted runs only, and one
        without a key executes the others. Both list all runs.

        With ``compaction`` the oldest items of a session are replaced by a summary before a new run reads them, in one
        commit. A summariser that fails is logged, and the run continues with the whole history.

        With ``live`` every response of a model is streamed, and a reader who comes in the middle of one gets it from
        its beginning. Otherwise only those are streamed that begin while the events of the run are read.
        """
        validate_options(lease=lease, approval_ttl=approval_ttl, compaction=compaction)
        graphs, config = build_graphs(agents), RunConfig.coerce(run_config)
        codec = None if encryption_key is None else EncryptingCodec(encryption_key)
        opened = url.backend if isinstance(url, Store) else await open_backend(url)
        try:
            await check_supports_runs(opened)
            shutdown = ShutdownFlag()
            cipher = None if codec is None else RunCipher(codec.keyring)
            subscriptions = RunSubscriptions()
            backend: Any = RetryingBackend(encrypt_backend(opened, cipher), shutdown, subscriptions)
            renewer = LeaseRenewer(backend, ttl=lease)
            ctx = RuntimeContext(backend, graphs, renewer, config, lease, approval_ttl, shutdown=shutdown)
            ctx.subscriptions = subscriptions
            ctx.codec, ctx.cipher, ctx.compaction = codec or PLAIN_CODEC, cipher, compaction
            ctx.stored, ctx.live = opened, live
            relay = subscriptions.relay = LiveRelay(ctx.runtime_id, subscriptions, cipher)
            if graphs:
                relay.open_soon()
            await ctx.sync_clock()
            async with Scope() as scope:
                scheduler = Scheduler(ctx, scope)
                scope.start(renewer.run(), name="standfast leases")
                scope.start(RecoveryLoop(scheduler).run(), name="standfast recovery")
                scope.start(relay.run(opened), name="standfast live events")
                try:
                    yield cls(ctx, scheduler)
                finally:
                    await scheduler.aclose()
                    scope.cancel()
        finally:
            if not isinstance(url, Store):
                await opened.close()

    # --- start --------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        input: str | list[Item] | RunState[Any, Any],
        *,
        session_id: str | None = None,
        context: Any = None,
        key: str | None = None,
        on_busy: OnBusy = "enqueue",
        max_turns: int | None = DEFAULT_MAX_TURNS,
        owner: str | None = None,
    ) -> RunHandle:
        """Start a run of the agent with this name. The run is stored when this returns.

        With ``key``, the same request gives the same run, from any process. ``context`` must be JSON, or an object
        with a registered codec. ``on_busy`` applies when another run holds the session: ``enqueue`` waits for it,
        ``reject`` raises :class:`SessionBusy`, ``interrupt`` cancels the other run and starts before all queued runs,
        and ``rollback`` also removes what the other run has added to the session. ``owner`` becomes the owner of a
        session that has none; :meth:`Store.set_owner` changes it.

        A :class:`RunState` in place of the input makes a saved run durable: it keeps its id, its context, its session,
        which has to be in this store, and the variables and files of its Python. Other arguments are not used. The same
        state gives the same run.
        """
        self._ctx.get_graph(agent)
        if isinstance(input, RunState):
            return self._make_handle(await import_run(self._scheduler, agent, input))
        request = control.build_request(agent, input, session_id, context, max_turns, key, on_busy, owner)
        return self._make_handle(await control.start_run(self._scheduler, request))

    # --- queries ------------------------------------------------------------------------------------

    def session(self, session_id: str, *, owner: str | None = None) -> StoredSession:
        """Return the session with this id as the runs read and write it: encrypted if the runtime has a key.

        ``owner`` is recorded by the write that creates it.
        """
        return self._ctx.open_session(session_id, owner=owner)

    @property
    def agents(self) -> dict[str, Agent[Any]]:
        """The agents that runs can start with, by name."""
        return {name: graph.root for name, graph in self._ctx.graphs.items()}  # type: ignore[misc]

    def is_executing(self, run_id: str) -> bool:
        """Return whether this runtime executes the run at the moment."""
        return run_id in self._scheduler.executors

    def count_executing(self) -> int:
        """Return the number of runs that this runtime executes at the moment."""
        return len(self._scheduler.executors)

    def _make_handle(self, run_id: str) -> RunHandle:
        return RunHandle(self, self._ctx, run_id)

    async def run(self, run_id: str) -> RunHandle:
        """Return the run with this id, or raise :class:`NotFound`."""
        return self._make_handle((await self._ctx.get_run(run_id)).run_id)

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
        return decode_approval(await self._ctx.get_approval(approval_id))

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

    def python(self, session_id: str, pool: "SessionPool | PythonSessions") -> "SessionPython":
        """Return the Python of a session, to run cells in its variables and files beside its runs.

        With the pool of the agents' Python tool, the cells run in the same worker.
        """
        from standfast.workspaces.session_python import SessionPython

        name, ctx = validate_name("session id", session_id), self._ctx
        return SessionPython(ctx.backend, ctx.open_workspaces, name, self.session(name).conversation_key, pool)

    async def prune_workspaces(
        self, *, older_than: timedelta | float | None = None, keep: int | None = None, max_mb: float | None = None
    ) -> "RetentionReport":
        """Drop the checkpoints of each workspace that are older, not among its latest ``keep``, or over a size.

        The latest checkpoint of a workspace is kept, and versions without one are restored by running cells again. What
        no checkpoint refers to is deleted, once it is an hour old.
        """
        from standfast.workspaces.retention import prune_workspaces

        return await prune_workspaces(self._ctx.backend, older_than=older_than, keep=keep, max_mb=max_mb)

    async def state(self, run_id: str, *, at: int | None = None) -> RunState[Any, Any]:
        """Return the run as a portable state, as it is now or as it was after the step ``at``."""
        return await control.load_state(self._ctx, run_id, at=at)

    # --- commands -----------------------------------------------------------------------------------

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
        """Decide an approval, once, and resume its run.

        ``approve`` makes the call, with ``arguments`` in place of the model's; ``reject`` passes ``message`` to the
        model instead. With ``always`` the decision applies to every further call of that tool by that agent in the
        session.

        A call of kind ``uncertain`` may have happened already: ``done`` states that it did and returned ``output``,
        ``reject`` that it shall not be made, and ``again`` makes it again. ``approve`` raises :class:`UncertainCall`.
        """
        decided = await approvals.decide_approval(
            self._ctx, approval_id, decision, arguments=arguments, message=message, output=output, by=by, always=always
        )
        await self._scheduler.claim_if_runnable(decided.run_id)
        return decided

    async def resume(self, run_id: str, *, accept_changes: bool = False, agent: str | None = None) -> RunHandle:
        """Resume a run that failed, was cancelled, or does not fit the current code.

        ``accept_changes`` rejects the calls whose tools no longer exist; ``agent`` is the new name of the agent that
        the run started with. Resuming a run that waits for approvals, is running or completed does nothing, except
        that a running one accepts the changes.
        """
        if agent is not None:
            self._ctx.get_graph(agent)
        await control.resume_run(self._scheduler, run_id, accept=accept_changes, agent=agent)
        return self._make_handle(run_id)

    async def cancel(self, run_id: str, *, mode: CancelMode = "after_turn") -> None:
        """Stop a run, at the end of its turn or now. What it did is kept, and it can be resumed."""
        if mode not in ("after_turn", "immediate"):
            raise InvalidInput(f"mode must be 'after_turn' or 'immediate', not {mode!r}")
        await control.cancel_run(self._scheduler, run_id, mode)

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended, with its journal, events and approvals. Its session keeps its items.

        Raise :class:`RunActive` for a run that has not ended, and :class:`RunShared` for one that was forked: the fork
        shares its journal and must be deleted first. A key that started the run starts a new one afterwards.
        """
        await deletion.delete_run(self._ctx, run_id)

    async def prune(self, *, older_than: timedelta | float | None = None, keep: int | None = None) -> PruneReport:
        """Delete the runs that ended more than ``older_than`` ago, and those not among the latest ``keep`` ended runs.

        Each run is deleted in one commit as by :meth:`delete`. Runs that have not ended are neither touched nor
        counted.
        """
        return await deletion.prune_runs(self._ctx, older_than=older_than, keep=keep)

    async def rekey(self) -> RekeyReport:
        """Encrypt all encrypted runs again with the first key, so that the other keys are no longer needed for them.

        That includes their approvals and workspaces; for sessions there is :meth:`EncryptedSession.rekey`. Each run is
        rewritten in one commit, so that the call may be repeated after a crash, and runs may be executed meanwhile.
        Processes that encrypt with another key should be gone by then: what they write afterwards needs their key.
        """
        if self._ctx.cipher is None or self._ctx.stored is None:
            raise InvalidInput("rekey needs the keys: open the runtime with encryption_key=[new_key, old_key]")
        from standfast.runtime._engine.rekey import rekey_store

        return await rekey_store(self._ctx.stored, self._ctx.cipher)

    async def fork(
        self, run_id: str, *, at: int | None = None, session_id: str | None = None, owner: str | None = None
    ) -> RunHandle:
        """Start a new run from the step ``at`` of another run; a step is the ``seq`` of an event.

        The session of the new run is a fork of the other run's session as it was at that step. It belongs to ``owner``,
        by default that of the other; :class:`OutsideScope` if it belongs to someone else by then.
        """
        parent, owner = await self._ctx.get_run(run_id), validate_owner(owner)
        record = await control.fork_run(self._ctx, parent, at=at, session_id=session_id, owner=owner)
        await self._scheduler.claim(record)
        return self._make_handle(record.run_id)
