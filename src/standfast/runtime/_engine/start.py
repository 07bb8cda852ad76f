"""Asking for a run, at most once for each key, and what happens when its session is busy."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from standfast.base.errors import RunMoved, StoreUnavailable
from standfast.base.items import Item
from standfast.runs.core.context import SavedContext
from standfast.runtime._engine import scheduler as queueing
from standfast.runtime._engine.control import cancel_run
from standfast.runtime._engine.leases import acquire_leases
from standfast.runtime._engine.records import RunHeader, RunQueued, compute_request_digest, decode_header
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime.errors import RunEnded, RunKeyReused, SessionBusy
from standfast.runtime.types import OnBusy
from standfast.store.contract import Op, RunRecord


@dataclass(frozen=True)
class StartRequest:
    """What a run is asked for."""

    agent: str
    input: str | list[Item]
    session_id: str | None
    context: SavedContext | None
    max_turns: int | None
    key: str | None
    on_busy: OnBusy

    @property
    def digest(self) -> str:
        return compute_request_digest(self.agent, self.input, self.session_id, self.context, self.max_turns)

    @property
    def preempts(self) -> bool:
        return self.on_busy in ("interrupt", "rollback")

    def build_ops(self, run_id: str) -> list[Op]:
        """What creates the run, to wait for its turn: the next one, if it makes room for itself."""
        header = RunHeader(self.agent, self.digest, key=self.key)
        first = RunQueued(self.input, self.max_turns, self.context)
        status: Literal["next", "queued"] = "next" if self.preempts else "queued"
        return queueing.build_create_ops(run_id, header, first, session_id=self.session_id, status=status)

    def check_same_request(self, record: RunRecord) -> str:
        """The run that the key has started before, if it was asked for the same."""
        if decode_header(record).request != self.digest:
            raise RunKeyReused(self.key or "", run_id=record.run_id)
        return record.run_id


async def start_run(scheduler: Scheduler, request: StartRequest) -> str:
    """Create the run and let it begin if it can; gives its id."""
    backend = scheduler.ctx.backend
    run_id = queueing.make_run_id(request.key)
    if request.key is not None and (known := await backend.get_run(run_id)) is not None:
        return request.check_same_request(known)
    if request.on_busy == "reject" and request.session_id is not None:
        await _reject_if_busy(scheduler, run_id, request.session_id)
    try:
        await backend.commit(*request.build_ops(run_id))
    except StoreUnavailable:
        if await backend.get_run(run_id) is None:
            raise
    except RunMoved:
        return request.check_same_request(await scheduler.ctx.get_run(run_id))
    scheduler.ctx.subscriptions.notify_written(run_id)
    if request.preempts and request.session_id is not None:
        await _cancel_session_holder(scheduler, run_id, request.session_id, rollback=request.on_busy == "rollback")
    await scheduler.claim(await scheduler.ctx.get_run(run_id))
    return run_id


async def _cancel_session_holder(scheduler: Scheduler, run_id: str, session_id: str, *, rollback: bool) -> None:
    """Cancel the run that has the session. The new one is the next already, so nobody comes in between."""
    other = await queueing.find_session_holder(scheduler.ctx.backend, session_id)
    if other is not None and other.run_id != run_id:
        with suppress(RunEnded):
            await cancel_run(scheduler, other.run_id, "immediate", rollback=rollback)


async def _reject_if_busy(scheduler: Scheduler, run_id: str, session_id: str) -> None:
    """Take the leases of a run that is about to be created: with them in hand nobody else can begin meanwhile."""
    home = scheduler.ctx
    hold = await acquire_leases(home.backend, run_id, session_id, owner=home.owner, ttl=home.lease_ttl, ops=[])
    # In this order, as runs go from the line to the session: one that does so meanwhile is found in either place.
    waiting = await queueing.find_next_queued(home.backend, session_id)
    busy = await queueing.find_session_holder(home.backend, session_id) or waiting
    if hold is None:
        raise SessionBusy(session_id, run_id=busy.run_id if busy else None)
    if busy is not None:
        await home.backend.commit(*hold.build_release_ops())
        raise SessionBusy(session_id, run_id=busy.run_id)
