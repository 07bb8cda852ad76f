"""One run, driven in this process under its leases until it rests."""

import asyncio
import logging
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

from holdfast.agents.approvals import Approvals
from holdfast.agents.context import RunContextWrapper
from holdfast.base.errors import ApprovalMoved, HistoryMoved, HoldfastError, RunMoved, StoreUnavailable
from holdfast.runs.contexts import restored_context
from holdfast.runs.decide import decide, is_waiting
from holdfast.runs.driver import drive
from holdfast.runs.live import Live
from holdfast.runs.state import Answer
from holdfast.runs.steps import AskModel
from holdfast.runtime.context_changes import ContextChanges
from holdfast.runtime.filing import standing, withdrawals
from holdfast.runtime.fitting import missing_agent, orphans, refused, tool_missing
from holdfast.runtime.folding import Folding
from holdfast.runtime.home import Home
from holdfast.runtime.journal import Replayed, taken_in
from holdfast.runtime.keeping import JournalKeeper, Passed
from holdfast.runtime.leases import Hold
from holdfast.runtime.patience import Backoff
from holdfast.runtime.records import (
    ENDED,
    CancelMode,
    Header,
    JournalEntry,
    Outlived,
    Problem,
    Rested,
    encoded,
    header_of,
    logged,
)
from holdfast.runtime.replaying import replay
from holdfast.runtime.setbacks import keeps_ending
from holdfast.runtime.undoing import rewound
from holdfast.store.contract import Journal, RunRecord, SaveRun

SUSPENDED = Problem("suspended", "its runtime was closed; the next one opened with its agent continues it")

FAILURES = logging.getLogger("holdfast.failures")
"""Runs that failed by an error of the program's own code, with its traceback: the run itself keeps the message only."""

_log = logging.getLogger(__name__)


class Execution:
    """A run while this process owns it. It always comes to rest, or passes on to another runtime."""

    def __init__(self, home: Home, record: RunRecord, hold: Hold) -> None:
        self.home, self.record, self.hold = home, record, hold
        self.header: Header = header_of(record)
        self._marks = count(1)
        self.live: Live | None = None
        self.keeper = self._fresh_keeper()
        self.task: asyncio.Task[None] | None = None
        self.cancelling: CancelMode | None = self.header.cancel
        self.closing = self._resting = False

    async def run(self) -> None:
        """Drive it until it rests. Raises nothing that the run could cause."""
        self.task = asyncio.current_task()
        self.hold.on_loss = self._stop
        self.home.renewing.holds.add(self.hold)
        backoff = Backoff()
        try:
            while not await self._went() and not self.home.closing:
                await backoff.pause()
        except Passed:
            await self._outlive()
            self.home.feeds.live(self.record.run_id, "run.passed_on", {"reason": "another runtime owns it now"})
        finally:
            self.home.renewing.holds.discard(self.hold)
            self.home.feeds.written(self.record.run_id, rests=True)

    async def _outlive(self) -> None:
        """Say that this process is there, although it lost the run: no run is given up because it was slow."""
        run_id, backend = self.record.run_id, self.home.backend
        note = logged(JournalEntry(Outlived(self.home.owner)))
        try:
            found = await backend.run(run_id)
            if found is not None and found.status not in ENDED:
                await backend.commit(Journal(run_id=run_id, entries=(note,)))
        except HoldfastError as problem:
            _log.warning("run %s: that it passed on could not be written down: %s", self.record.run_id, problem)

    async def _went(self) -> bool:
        """Drive the run once; false when it has to be loaded again and driven further."""
        try:
            return await self._driven()
        except Passed:
            raise
        except asyncio.CancelledError:
            if self.hold.lost:
                raise Passed from None
            if self.cancelling is None:
                return await self._rest("woken", problem=SUSPENDED)
            return await self._rest("cancelled")
        except StoreUnavailable as problem:
            _log.warning("run %s: %s", self.record.run_id, problem)
            return False
        except Exception as error:  # noqa: BLE001 - it becomes the run's own
            if self.hold.lost:
                raise Passed from None
            if not isinstance(error, HoldfastError) or error.__cause__ is not None:  # its message does not say where
                FAILURES.error("run %s of agent %r failed", self.record.run_id, self.header.agent, exc_info=error)
            return await self._rest("failed", problem=problem_of(error))

    async def _driven(self) -> bool:
        graph = self.home.graphs.get(self.header.agent)
        self.keeper, self.live = self._fresh_keeper(), None
        replayed = await replay(self.home.backend, self.record)
        self.keeper.folding = Folding(self.home.backend, self.record, replayed)
        self.keeper.asked, self.keeper.trace = replayed.asked, replayed.state.trace
        if self.cancelling == "immediate":
            return await self._rest("cancelled")
        if graph is None:
            return await self._rest("blocked", problem=unknown_agent(self.header.agent))
        if replayed.setbacks.too_many:
            if self.cancelling is not None:
                return await self._rest("cancelled")
            return await self._rest("blocked", problem=keeps_ending(replayed.state, graph, replayed.setbacks))
        live = self.live = await self._lively(replayed, graph)
        if (problem := await self._misfit(live)) is not None:
            return await self._rest("blocked", problem=problem)
        live.keeper = self.keeper
        self.keeper.context_changes = ContextChanges(self.record.run_id, live.context.context, saved=replayed.context)
        live.stopping, live.halting = self.cancelling is not None, self.closing
        if self.home.feeds.listened_to(self.record.run_id):
            live.emit = partial(self.home.feeds.passed_on, self.record.run_id)
        await drive(live)
        if live.state.ended:
            return await self._rest("completed")
        if is_waiting(live.state):
            return await self._rest("waiting")
        if self.cancelling is not None and not live.halting:
            return await self._rest("cancelled")
        return await self._rest("woken", problem=SUSPENDED)

    def _fresh_keeper(self) -> JournalKeeper:
        return JournalKeeper(self.home, self.record, self.hold, marks=self._marks)

    async def _lively(self, replayed: Replayed, graph: Any) -> Live:
        state, session_id = replayed.state, self.record.session_id
        always = await standing(self.home.backend, session_id)
        context: RunContextWrapper[Any] = RunContextWrapper(
            restored_context(replayed.context, deserializer=None, strict=True),
            usage=replayed.usage,
            approvals=Approvals([*always, *state.approvals]),
            tool_input=state.tool_input,
        )
        session = None if session_id is None else self.home.session(session_id)
        live = Live(state, graph=graph, context=context, config=self.home.config, session=session)
        live.standing = tuple(always)
        return live

    async def _misfit(self, run: Live) -> Problem | None:
        """Why the run cannot go on with this code, unless that was accepted."""
        if (problem := missing_agent(run)) is not None:
            return problem
        orphaned = await orphans(run)
        if not orphaned:
            return None
        if not self.header.accept:
            return tool_missing(orphaned)
        for route, call, _ in orphaned:
            outcome = refused(call)
            self.keeper.write_down(outcome, route=route)
            run.state = taken_in(run.state, route, outcome)
        return None

    # --- coming to rest -----------------------------------------------------------------------------

    async def _rest(self, status: str, *, problem: Problem | None = None) -> bool:
        """Write the end, or the pause, and give the leases back; false when there is more to do first."""
        keeper, state = self.keeper, self.live.state if self.live is not None else None
        answer = state.answer if state is not None and status == "completed" else None
        if status == "waiting" and self.live is not None:
            keeper.ask(self.live.state, self.live)
        keeper.note(Rested(status, problem, answer))
        self._resting = True
        while True:
            ops = await withdrawals(self.home.backend, self.record.run_id) if status in ENDED and keeper.asked else []
            if status == "cancelled" and self.header.undone:
                keeper.add_nothing()
                ops += await rewound(self.home, self.record.session_id, self.header.base)
            try:
                # Questions before the run, as in every commit: two that lock them in turn would wait for each other.
                await keeper.flush(*ops, self._saved(status, problem, answer), release=True)
                return True
            except (ApprovalMoved, HistoryMoved):
                continue
            except StoreUnavailable:
                raise
            except RunMoved:
                await self.refresh()
                if status == "waiting" or (status == "blocked" and self.header.accept):
                    keeper.unnote()
                    await keeper.flush()
                    self._resting = False
                    return False
            except HoldfastError as refusal:
                # The store does not take what the run did, for example into a session that is encrypted.
                keeper.forget()
                status, problem, answer = "failed", problem_of(refusal), None
                keeper.note(Rested(status, problem))

    def _saved(self, status: str, problem: Problem | None, answer: Answer | None) -> SaveRun:
        by = self.live.state.agent if self.live is not None and answer is not None else None
        header = replace(self.header, problem=problem, answer=answer, answered_by=by, accept=False)
        if status != "woken":
            header = replace(header, cancel=None, undone=header.undone and status == "cancelled")
        return SaveRun(
            run_id=self.record.run_id,
            expected=self.record.revision,
            status=status,
            data=encoded(header),
            session_id=self.record.session_id,
        )

    async def refresh(self) -> None:
        """See what others wrote about the run: decisions, and the wish to cancel it."""
        self.record = await self.home.record(self.record.run_id)
        self.header = header_of(self.record)
        if self.header.cancel is not None and self.header.cancel != self.cancelling:
            self.cancel(self.header.cancel)

    def cancel(self, mode: CancelMode) -> None:
        """Stop the run: when its turn is over, or now."""
        self.cancelling = mode
        if self.live is not None:
            self.live.stopping = True
        if mode == "immediate":
            self._stop()

    def close(self) -> None:
        """Hand the run back after what is under way. Asking a model can be done again elsewhere, so that stops now."""
        self.closing = True
        if self.live is None:
            return
        self.live.halting = True
        if isinstance(decide(self.live.state), AskModel):
            self._stop()

    def _stop(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task() and not self._resting:
            self.task.cancel()


def problem_of(error: BaseException) -> Problem:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return Problem(getattr(error, "code", "error"), str(error) or type(error).__name__, kind)


def unknown_agent(name: str) -> Problem:
    return Problem(
        "agent-unknown",
        f"no open runtime has an agent named {name!r}: open one that does, resume the run with agent= to give it "
        "another, or cancel it",
    )
