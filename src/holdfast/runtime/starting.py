"""Asking for a run, at most once for each key, and what happens when its session is busy."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from holdfast.base.errors import RunMoved, StoreUnavailable
from holdfast.base.items import Item
from holdfast.runs.contexts import SavedContext
from holdfast.runtime import queueing
from holdfast.runtime.contract import OnBusy
from holdfast.runtime.driving import Driving
from holdfast.runtime.errors import RunEnded, RunKeyReused, SessionBusy
from holdfast.runtime.leases import take
from holdfast.runtime.records import Begun, Header, header_of, request_digest
from holdfast.runtime.steering import cancel
from holdfast.store.contract import Op, RunRecord


@dataclass(frozen=True)
class Request:
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
        return request_digest(self.agent, self.input, self.session_id, self.context, self.max_turns)

    @property
    def makes_room(self) -> bool:
        return self.on_busy in ("interrupt", "rollback")

    def ops(self, run_id: str) -> list[Op]:
        """What creates the run, to wait for its turn: the next one, if it makes room for itself."""
        header = Header(self.agent, self.digest, key=self.key)
        first = Begun(self.input, self.max_turns, self.context)
        status: Literal["next", "queued"] = "next" if self.makes_room else "queued"
        return queueing.created(run_id, header, first, session_id=self.session_id, status=status)

    def same(self, record: RunRecord) -> str:
        """The run that the key has started before, if it was asked for the same."""
        if header_of(record).request != self.digest:
            raise RunKeyReused(self.key or "", run_id=record.run_id)
        return record.run_id


async def start(driving: Driving, request: Request) -> str:
    """Create the run and let it begin if it can; gives its id."""
    backend = driving.home.backend
    run_id = queueing.run_id_of(request.key)
    if request.key is not None and (known := await backend.run(run_id)) is not None:
        return request.same(known)
    if request.on_busy == "reject" and request.session_id is not None:
        await _refuse_if_busy(driving, run_id, request.session_id)
    try:
        await backend.commit(*request.ops(run_id))
    except StoreUnavailable:
        if await backend.run(run_id) is None:
            raise
    except RunMoved:
        return request.same(await driving.home.record(run_id))
    driving.home.feeds.written(run_id)
    if request.makes_room and request.session_id is not None:
        await _make_room(driving, run_id, request.session_id, undone=request.on_busy == "rollback")
    await driving.take_up(await driving.home.record(run_id))
    return run_id


async def _make_room(driving: Driving, run_id: str, session_id: str, *, undone: bool) -> None:
    """Cancel the run that has the session. The new one is the next already, so nobody comes in between."""
    other = await queueing.holder(driving.home.backend, session_id)
    if other is not None and other.run_id != run_id:
        with suppress(RunEnded):
            await cancel(driving, other.run_id, "immediate", undone=undone)


async def _refuse_if_busy(driving: Driving, run_id: str, session_id: str) -> None:
    """Take the leases of a run that is about to be created: with them in hand nobody else can begin meanwhile."""
    home = driving.home
    hold = await take(home.backend, run_id, session_id, owner=home.owner, ttl=home.lease, ops=[])
    # In this order, as runs go from the line to the session: one that does so meanwhile is found in either place.
    waiting = await queueing.first_in_line(home.backend, session_id)
    busy = await queueing.holder(home.backend, session_id) or waiting
    if hold is None:
        raise SessionBusy(session_id, run_id=busy.run_id if busy else None)
    if busy is not None:
        await home.backend.commit(*hold.releases())
        raise SessionBusy(session_id, run_id=busy.run_id)
