"""Durable runs by id: started once, driven by one process at a time, taken up by another when that is gone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from holdfast.agents.agent import Agent
from holdfast.agents.approvals import Approvals
from holdfast.agents.context import RunContextWrapper
from holdfast.base.errors import InvalidInput, NotFound, RunMoved, StoreUnavailable, Unsupported
from holdfast.base.ids import checked_name
from holdfast.base.items import Item
from holdfast.history.store import Store
from holdfast.lifecycle.scope import Scope
from holdfast.runs.config import DEFAULT_MAX_TURNS, RunConfig
from holdfast.runs.contexts import restored_context, saved_context
from holdfast.runs.live import Live
from holdfast.runs.persistence import checked_input
from holdfast.runs.run_state import RunState
from holdfast.runtime import deciding, forking, queueing
from holdfast.runtime.contract import Approval, ApprovalStatus, OnBusy, RunInfo, Verdict
from holdfast.runtime.errors import RunEnded, SessionBusy
from holdfast.runtime.executing import Execution
from holdfast.runtime.filing import approval_of, withdrawals
from holdfast.runtime.handle import RunHandle, info_of
from holdfast.runtime.home import Home, graphs_of
from holdfast.runtime.journal import replay
from holdfast.runtime.leases import Hold, Renewing, take
from holdfast.runtime.patience import PatientBackend
from holdfast.runtime.reaper import Reaper
from holdfast.runtime.records import (
    ENDED,
    SHOWN,
    Called,
    CancelAsked,
    CancelMode,
    Header,
    JournalEntry,
    Rested,
    Status,
    encoded,
    header_of,
    logged,
)
from holdfast.store.contract import Backend, Journal, Op, RunRecord, SaveRun
from holdfast.store.opening import open_backend

GRACE = 5.0
"""Seconds that tools may go on when a runtime closes. After that they are cancelled, and their calls are uncertain."""


class Runtime:
    """Runs that outlive their process. Any number of runtimes, in any number of processes, share one store.

    Made by :meth:`open`. Leaving it hands back what it drives, for other runtimes or a later one to go on.
    """

    def __init__(self, home: Home, scope: Scope) -> None:
        self._home, self._scope = home, scope
        self._local: dict[str, Execution] = {}
        self._closing = False
        self.store = Store(home.backend)
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
        graphs = graphs_of(agents)
        for name, seconds in (("lease", lease), ("approval_ttl", approval_ttl)):
            if seconds is not None and not seconds > 0:
                raise InvalidInput(f"{name} must be a positive number of seconds, not {seconds!r}")
        opened = url.backend if isinstance(url, Store) else await open_backend(url)
        try:
            await _check_keeps_runs(opened)
            backend: Any = PatientBackend(opened)
            renewing = Renewing(backend, ttl=lease)
            home = Home(backend, graphs, renewing, RunConfig.of(run_config), lease, approval_ttl)
            async with Scope() as scope:
                runtime = cls(home, scope)
                scope.start(renewing.run(), name="holdfast leases")
                reaper = Reaper(home, runtime._local, runtime._take_up)
                scope.start(reaper.run(), name="holdfast reaper")
                try:
                    yield runtime
                finally:
                    await runtime._hand_back()
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
        ``enqueue`` waits in line, ``reject`` raises :class:`SessionBusy`, ``interrupt`` cancels the other, and
        ``rollback`` also takes back what the other has added to the session.
        """
        if agent not in self._home.graphs:
            raise NotFound("agent", agent)
        if on_busy not in ("enqueue", "reject", "interrupt", "rollback"):
            raise InvalidInput(f"on_busy is enqueue, reject, interrupt or rollback, not {on_busy!r}")
        run_id = queueing.run_id_of(None if key is None else checked_name("key", key))
        given: dict[str, Any] = {
            "agent": agent,
            "session_id": None if session_id is None else checked_name("session id", session_id),
            "context": saved_context(context, serializer=None, strict=True),
            "max_turns": max_turns,
            "key": key,
        }
        ops = queueing.begun(run_id, checked_input(input), **given)
        if key is not None and (known := await self._home.backend.run(run_id)) is not None:
            return self._handle(queueing.same_request(known, ops, key).run_id)
        if session_id is not None and on_busy != "enqueue":
            ops = await self._make_room(run_id, input, ops, given, on_busy)
        try:
            await self._create(run_id, ops)
        except RunMoved:
            if key is None:
                raise
            return self._handle(queueing.same_request(await self._home.record(run_id), ops, key).run_id)
        await self._take_up(await self._home.record(run_id))
        return self._handle(run_id)

    async def _create(self, run_id: str, ops: list[Op]) -> None:
        try:
            await self._home.backend.commit(*ops)
        except StoreUnavailable:
            if await self._home.backend.run(run_id) is None:
                raise
        self._home.feeds.written(run_id)

    async def _make_room(
        self, run_id: str, input: Any, ops: list[Op], given: dict[str, Any], on_busy: OnBusy
    ) -> list[Op]:
        """Deal with a session that another run has, before this run is created."""
        session_id, backend = given["session_id"], self._home.backend
        if on_busy == "reject":
            # With the session's lease in hand nobody else can begin meanwhile.
            hold = await take(backend, run_id, session_id, owner=self._home.owner, ttl=self._home.lease, ops=[])
            if hold is None:
                other = await queueing.holder(backend, session_id)
                raise SessionBusy(session_id, run_id=other.run_id if other else None)
            try:
                await queueing.refuse_if_busy(backend, session_id)
            except SessionBusy:
                await backend.commit(*hold.releases())
                raise
            return ops
        other = await queueing.holder(backend, session_id)
        if other is None:
            return ops
        with suppress(RunEnded):
            await self._cancel(other.run_id, "immediate", undone=on_busy == "rollback")
        undo = (other.run_id,) if on_busy == "rollback" else ()
        return queueing.begun(run_id, checked_input(input), **given, undo=undo)

    async def _take_up(self, record: RunRecord) -> bool:
        """Drive the run here, if it is its turn and nobody else does."""
        if self._closing or record.run_id in self._local:
            return False
        found = await queueing.take_up(self._home, record)
        if found is None:
            return False
        owned, hold = found
        if self._closing:
            await self._home.backend.commit(*hold.releases())
            return False
        self._scope.start(self._execute(owned, hold), name=f"run {record.run_id}")
        return True

    async def _execute(self, record: RunRecord, hold: Hold) -> None:
        execution = self._local[record.run_id] = Execution(self._home, record, hold)
        try:
            await execution.run()
        finally:
            self._local.pop(record.run_id, None)
        if not self._closing:
            await self._next(record.session_id)

    async def _next(self, session_id: str | None) -> None:
        """Let the next run of a session begin, if it is free."""
        if session_id is None:
            return
        with suppress(StoreUnavailable):  # the reaper will try again
            following = await queueing.first_queued(self._home.backend, session_id)
            if following is not None and header_of(following).agent in self._home.graphs:
                await self._take_up(following)

    async def _hand_back(self) -> None:
        """Stop driving: after what is under way, or after a while."""
        self._closing = True
        tasks = {one.task for one in self._local.values() if one.task is not None}
        for execution in list(self._local.values()):
            execution.close()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)

    # --- looking ------------------------------------------------------------------------------------

    def drives(self, run_id: str) -> bool:
        """Whether the run is driven by this runtime at present."""
        return run_id in self._local

    def _handle(self, run_id: str) -> RunHandle:
        return RunHandle(self, self._home, run_id)

    async def run(self, run_id: str) -> RunHandle:
        """The run with this id; :class:`NotFound` when there is none."""
        return self._handle((await self._home.record(run_id)).run_id)

    async def runs(
        self,
        *,
        status: Status | Sequence[Status] | None = None,
        session_id: str | None = None,
        limit: int = 50,
        after: RunInfo | None = None,
    ) -> list[RunInfo]:
        """Runs in the order in which they were asked for; ``after`` goes on behind one of them."""
        shown = [status] if isinstance(status, str) else status
        statuses = None if shown is None else [name for name, seen in SHOWN.items() if seen in shown]
        behind = 0 if after is None else (await self._home.record(after.run_id)).order
        found = await self._home.backend.runs(status=statuses, session_id=session_id, limit=limit, after=behind)
        return [info_of(record) for record in found]

    async def approvals(
        self,
        *,
        status: ApprovalStatus | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        after: str = "",
    ) -> list[Approval]:
        """Questions to people in the order of their ids, which is about that of asking."""
        found = await self._home.backend.approvals(
            status=status, run_id=run_id, session_id=session_id, limit=limit, after=after
        )
        return [approval_of(record) for record in found if not record.run_id.startswith("session:")]

    async def approval(self, approval_id: str) -> Approval:
        found = await self._home.backend.approval(approval_id)
        if found is None:
            raise NotFound("approval", approval_id)
        return approval_of(found)

    async def state(self, run_id: str, *, at: int | None = None) -> RunState[Any, Any]:
        """The run as a portable state, as it is now or as it was after the step ``at``."""
        record = await self._home.record(run_id)
        name = header_of(record).agent
        graph = self._home.graphs.get(name)
        if graph is None:
            raise NotFound("agent", name)
        replayed = await replay(self._home.backend, record, upto=at)
        context: RunContextWrapper[Any] = RunContextWrapper(
            restored_context(replayed.context, deserializer=None, strict=False),
            usage=replayed.usage,
            approvals=Approvals(list(replayed.state.approvals)),
            tool_input=replayed.state.tool_input,
        )
        return RunState.of(Live(replayed.state, graph=graph, context=context, config=self._home.config))

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
        answered = await deciding.decide(
            self._home, approval_id, decision, arguments=arguments, message=message, output=output, by=by, always=always
        )
        await self._go_on(answered.run_id)
        return answered

    async def resume(self, run_id: str, *, accept_changes: bool = False, agent: str | None = None) -> RunHandle:
        """Let a run go on that failed, was cancelled, or met changed code.

        ``accept_changes`` refuses the calls whose tools are gone; ``agent`` is the new name of the one it began with.
        A run that waits for people goes on when they have answered; one that is under way is left alone.
        """
        if agent is not None and agent not in self._home.graphs:
            raise NotFound("agent", agent)
        while True:
            record = await self._home.record(run_id)
            header = header_of(record)
            if record.status == "completed" or header.undone:
                raise RunEnded(run_id, status="rolled back" if header.undone else "completed", wanted="resumed")
            if record.status not in ("failed", "cancelled", "blocked"):
                break
            note = Called(accept_changes, agent)
            header = replace(header, problem=None, cancel=None, accept=accept_changes, agent=agent or header.agent)
            # One that was blocked still has its session; the others have to wait for their turn.
            status = "woken" if record.status == "blocked" else "queued"
            if await self._save(record, header, status, note):
                break
        await self._go_on(run_id)
        return self._handle(run_id)

    async def _go_on(self, run_id: str) -> None:
        record = await self._home.record(run_id)
        if record.status in ("woken", "queued") and header_of(record).agent in self._home.graphs:
            await self._take_up(record)

    async def cancel(self, run_id: str, *, mode: CancelMode = "after_turn") -> None:
        """Stop a run, keeping what it did: when its turn is over, or now. It can be resumed later."""
        if mode not in ("after_turn", "immediate"):
            raise InvalidInput(f"a run is cancelled 'after_turn' or 'immediate', not {mode!r}")
        await self._cancel(run_id, mode)

    async def _cancel(self, run_id: str, mode: CancelMode, *, undone: bool = False) -> None:
        while True:
            record = await self._home.record(run_id)
            if record.status in ENDED:
                if record.status == "cancelled" and not undone:
                    return
                raise RunEnded(run_id, status=record.status, wanted="cancelled")
            header = replace(header_of(record), undone=undone)
            if record.status in ("running", "woken"):
                saved = await self._save(record, replace(header, cancel=mode), record.status, CancelAsked(mode))
            else:
                ops = await withdrawals(self._home.backend, run_id)
                saved = await self._save(record, replace(header, problem=None), "cancelled", Rested("cancelled"), *ops)
            if saved:
                break
        if run_id in self._local:
            self._local[run_id].cancel(mode)
        elif record.status == "woken":
            await self._go_on(run_id)
        else:
            await self._next(record.session_id)

    async def _save(self, record: RunRecord, header: Header, status: str, note: Any, *ops: Op) -> bool:
        """Write the header and a note; false when somebody else changed the run meanwhile."""
        save = SaveRun(
            run_id=record.run_id,
            expected=record.revision,
            status=status,
            data=encoded(header),
            session_id=record.session_id,
        )
        try:
            entry = logged(JournalEntry(note))
            await self._home.backend.commit(save, Journal(run_id=record.run_id, entries=(entry,)), *ops)
        except RunMoved:
            return False
        self._home.feeds.written(record.run_id)
        return True

    async def fork(self, run_id: str, *, at: int | None = None, session_id: str | None = None) -> RunHandle:
        """A new run from the step ``at`` of another one: the number of its event. It begins at once.

        Its session is a fork of what the other run's session had at that step.
        """
        record = await forking.fork(self._home, await self._home.record(run_id), at=at, session_id=session_id)
        await self._take_up(record)
        return self._handle(record.run_id)


async def _check_keeps_runs(backend: Backend) -> None:
    try:
        await backend.run("any")
    except Unsupported as problem:
        raise Unsupported(f"{problem}: open the runtime on SQLite or an SQL database") from None
