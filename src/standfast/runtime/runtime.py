"""The runtime: start, find, decide, resume, cancel and fork durable runs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from standfast.agents.agent import Agent
from standfast.base.errors import InvalidInput
from standfast.base.ids import validate_name, validate_owner
from standfast.base.items import Item
from standfast.history.compaction import HistoryCompaction
from standfast.history.store import Store
from standfast.lifecycle.owner import Opener, Owner
from standfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from standfast.runs.run_state import RunState
from standfast.runs.session_io import validate_input
from standfast.runtime._engine import approvals, control
from standfast.runtime._engine.context import RetryingBackend, RuntimeContext
from standfast.runtime._engine.encrypting_backend import encrypt_backend
from standfast.runtime._engine.forks import ForkEdit, ForkTarget, fork_run
from standfast.runtime._engine.imports import import_run
from standfast.runtime._engine.presence import describe_queues, describe_runtimes
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime.budgets import Budgets
from standfast.runtime.handle import RunHandle
from standfast.runtime.lifetime import hold_runtime
from standfast.runtime.queries import RunQueries
from standfast.runtime.schedules import Schedules
from standfast.runtime.types import (
    Approval,
    CancelMode,
    OnBusy,
    PruneReport,
    QueueInfo,
    RekeyReport,
    RuntimeInfo,
    Verdict,
)
from standfast.runtime.webhooks import Webhooks
from standfast.store.audit_entries import Actor

if TYPE_CHECKING:
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions
    from standfast.workspaces.retention import RetentionReport
    from standfast.workspaces.session_python import SessionPython


class Runtime(RunQueries):
    """Executes durable runs. Any number of runtimes, in any number of processes, can share one store.

    Create it with :meth:`open`. On exit it releases unfinished runs for another runtime.
    """

    def __init__(self, ctx: RuntimeContext, scheduler: Scheduler) -> None:
        super().__init__(self, ctx)
        self._scheduler = scheduler
        self._owner: Owner[Runtime] | None = None

    @classmethod
    def open(
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
        max_runs: int | None = None,
    ) -> Opener["Runtime"]:
        """Open a runtime on the store at ``url``. An open :class:`Store` may be passed instead and is not closed.

        Use it with ``async with``, which also closes it; or ``await`` it, and call :meth:`close` in the end.

        ``agents`` are the agents that runs start with, found by name. A run whose process died is resumed by another
        runtime within twice the ``lease`` seconds. Approvals expire after ``approval_ttl`` seconds.

        With ``encryption_key`` the runs and their sessions are encrypted as by an :class:`EncryptedSession` with that
        key; of several keys, the first encrypts and all decrypt. The runtime then executes encrypted runs only, and one
        without a key executes the others. Both list all runs.

        With ``compaction`` the oldest items of a session are replaced by a summary before a new run reads them, in one
        commit. A summariser that fails is logged, and the run continues with the whole history.

        With ``live`` every response of a model is streamed, and a reader that joins in the middle of one gets it from
        its beginning. Otherwise only those are streamed that begin while the events of the run are read.

        With ``max_runs`` this runtime executes at most as many runs at once, and the others stay queued for it or for
        another runtime; a run that waits for a decision does not count.
        """

        @asynccontextmanager
        async def hold() -> AsyncIterator[Runtime]:
            async with hold_runtime(
                url,
                agents=agents,
                lease=lease,
                approval_ttl=approval_ttl,
                run_config=run_config,
                encryption_key=encryption_key,
                compaction=compaction,
                live=live,
                max_runs=max_runs,
            ) as scheduler:
                yield cls(scheduler.ctx, scheduler)

        async def open() -> Runtime:
            owner = Owner(hold, name="standfast runtime")
            opened = await owner.start()
            opened._owner = owner
            return opened

        return Opener("Runtime.open(...)", hold=hold, open=open)

    async def close(self) -> None:
        """Close a runtime that was opened with ``await``, as leaving ``async with`` does. Further calls do nothing."""
        if self._owner is None:
            raise InvalidInput("this runtime was opened with `async with`, which closes it")
        await self._owner.close()

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
        priority: int = 0,
    ) -> RunHandle:
        """Start a run of the agent with this name. The run is stored when this returns.

        With ``key``, the same request gives the same run, from any process. ``context`` must be JSON, or an object
        with a registered codec. ``on_busy`` applies when another run holds the session: ``enqueue`` waits for it,
        ``reject`` raises :class:`SessionBusy`, ``interrupt`` cancels the other run and starts before all queued runs,
        and ``rollback`` also removes what the other run has added to the session. ``owner`` becomes the owner of a
        session that has none; :meth:`Store.set_owner` changes it.

        If the run has to wait for a runtime with capacity, those with a higher ``priority`` precede it, and among equal
        ones the owners take turns.

        A :class:`RunState` in place of the input makes a saved run durable: it keeps its id, its context, its session,
        which has to be in this store, and the variables and files of its Python. Other arguments are not used. The same
        state gives the same run.
        """
        self._ctx.get_graph(agent)
        if isinstance(input, RunState):
            return self._make_handle(await import_run(self._scheduler, agent, input))
        request = control.build_request(agent, input, session_id, context, max_turns, key, on_busy, owner, priority)
        return self._make_handle(await control.start_run(self._scheduler, request))

    def scoped(self, owner: str) -> RunQueries:
        """Return the runs as ``owner`` sees them. PostgreSQL with row-level security enforces it.

        What belongs to others does not exist. Every other store raises :class:`Unsupported`, see :meth:`Store.scoped`.
        """
        ctx = self._ctx
        narrowed: Any = encrypt_backend(Store(ctx.stored or ctx.backend).scoped(owner).backend, ctx.cipher)
        return RunQueries(self, replace(ctx, backend=RetryingBackend(narrowed, ctx.shutdown, ctx.subscriptions)))

    async def has_row_security(self) -> bool:
        """Return whether the database separates owners, so that :meth:`scoped` can be used."""
        look = getattr(self._ctx.stored, "has_row_security", None)
        return look is not None and await look()

    # --- this runtime -------------------------------------------------------------------------------

    @property
    def agents(self) -> dict[str, Agent[Any]]:
        """The agents that runs can start with, by name."""
        return {name: graph.root for name, graph in self._ctx.graphs.items()}  # type: ignore[misc]

    @property
    def compaction(self) -> HistoryCompaction | None:
        """How sessions are compacted before a run reads them."""
        return self._ctx.compaction

    @property
    def is_encrypted(self) -> bool:
        """Whether the runtime has a key, and so reads and writes encrypted runs and sessions."""
        return self._ctx.cipher is not None

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store: runs that start at given times."""
        return Schedules(self._ctx, self._ctx.on_schedule_changed)

    @property
    def budgets(self) -> Budgets:
        """The budgets of the store: what runs may spend."""
        return Budgets(self._ctx)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of the store: servers that are notified when runs stop and approvals change."""
        return Webhooks(self._ctx)

    async def queues(self) -> list[QueueInfo]:
        """Return the queues in which runs wait, one for each agent."""
        return await describe_queues(self._ctx)

    async def runtimes(self) -> list[RuntimeInfo]:
        """Return the runtimes of this store that execute runs, with their capacity."""
        return await describe_runtimes(self._ctx.backend)

    def is_executing(self, run_id: str) -> bool:
        """Return whether this runtime executes the run at the moment."""
        return run_id in self._scheduler.executors

    def count_executing(self) -> int:
        """Return the number of runs that this runtime executes at the moment."""
        return len(self._scheduler.executors)

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

    # --- commands -----------------------------------------------------------------------------------

    async def decide(
        self,
        approval_id: str,
        decision: Verdict,
        *,
        arguments: Any = None,
        message: str | None = None,
        output: Any = None,
        by: Actor | str | None = None,
        always: bool = False,
    ) -> Approval:
        """Decide an approval, once, and resume its run. ``by`` says who decides: a name, or the principal of a request.

        ``approve`` makes the call, with ``arguments`` in place of the model's; ``reject`` passes ``message`` to the
        model instead. With ``always`` the decision applies to every further call of that tool by that agent in the
        session.

        A call of kind ``uncertain`` may have happened already: ``done`` states that it did and returned ``output``,
        ``reject`` that it shall not be made, and ``again`` makes it again. ``approve`` raises :class:`UncertainCall`.

        The audit log of the store gets an entry in the same commit.
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
        await control.delete_run(self._ctx, run_id)

    async def prune(self, *, older_than: timedelta | float | None = None, keep: int | None = None) -> PruneReport:
        """Delete the runs that ended more than ``older_than`` ago, and those not among the latest ``keep`` ended runs.

        Each run is deleted in one commit as by :meth:`delete`. Runs that have not ended are neither touched nor
        counted.
        """
        return await control.prune_runs(self._ctx, older_than=older_than, keep=keep)

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
        self,
        run_id: str,
        *,
        at: int | None = None,
        session_id: str | None = None,
        owner: str | None = None,
        input: str | list[Item] | None = None,
        outputs: dict[str, str] | None = None,
        agent: str | None = None,
    ) -> RunHandle:
        """Start a new run from the step ``at`` of another run; a step is the ``seq`` of an event.

        The session of the new run is a fork of the other run's session as it was at that step. It belongs to ``owner``,
        by default that of the other; :class:`OutsideScope` if it belongs to another owner by then.

        With ``input`` the new run begins where the other began, with this input in place of the other's. ``outputs``
        replaces the outputs of tool calls, by call id, that no model has seen at that step. ``agent`` is the name of
        the agent to continue with, for example one with another model.
        """
        parent = await self._ctx.get_run(run_id)
        edit = ForkEdit(None if input is None else validate_input(input), dict(outputs or {}), agent)
        target = ForkTarget(at, session_id, validate_owner(owner))
        record = await fork_run(self._ctx, parent, target, edit)
        await self._scheduler.claim(record)
        return self._make_handle(record.run_id)
