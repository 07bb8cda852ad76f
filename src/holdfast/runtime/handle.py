"""One run, for programs: follow it, wait for it, stop it."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from holdfast.base.errors import InvalidInput
from holdfast.runs.finishing import read_output
from holdfast.runtime.contract import Approval, Event, RunInfo, RunOutcome
from holdfast.runtime.filing import approval_of
from holdfast.runtime.following import follow
from holdfast.runtime.home import Home
from holdfast.runtime.patience import Backoff
from holdfast.runtime.records import ENDED, RESTING, SHOWN, CancelMode, Header, header_of
from holdfast.store.contract import RunRecord

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime


Until: TypeAlias = Literal["rest", "end"]


class RunHandle:
    """A durable run, wherever it is driven. Losing a handle does nothing to its run."""

    def __init__(self, runtime: "Runtime", home: Home, run_id: str) -> None:
        self._runtime, self._home, self.run_id = runtime, home, run_id

    @property
    def id(self) -> str:
        return self.run_id

    @property
    def local(self) -> bool:
        """Whether this runtime drives the run at present."""
        return self._runtime.drives(self.run_id)

    async def info(self) -> RunInfo:
        return info_of(await self._home.record(self.run_id))

    async def events(self, after: int = 0, *, until: Until = "rest") -> AsyncIterator[Event]:
        """Every event behind ``after``, then what happens, until the run ends or waits.

        With ``until="end"`` it stays through pauses, whoever decides and wherever, until the run is completed, failed
        or cancelled. Leaving early disturbs nothing; go on later behind the last ``seq`` that was seen.
        """
        if until not in get_args(Until):
            raise InvalidInput(f"events last until 'rest' or until 'end', not {until!r}")
        stop = RESTING if until == "rest" else ENDED
        async with aclosing(follow(self._home, self.run_id, after=after, stop=stop)) as found:  # type: ignore[type-var]
            async for event in found:
                yield event

    async def wait(self) -> RunOutcome:
        """What the run came to, or what it waits for."""
        backoff = Backoff(most=self._home.poll)
        with self._home.feeds.following(self.run_id, until_rest=True) as follower:
            while True:
                record = await self._home.record(self.run_id)
                if record.status in RESTING:
                    return await outcome_of(self._home, record)
                await follower.stirred(within=backoff.grown())
                if follower.waiting:
                    follower.waiting.clear()
                    backoff.reset()

    async def cancel(self, mode: CancelMode = "after_turn") -> None:
        await self._runtime.cancel(self.run_id, mode=mode)

    async def state(self) -> Any:
        """The run as a portable :class:`~holdfast.RunState`."""
        return await self._runtime.state(self.run_id)


def info_of(record: RunRecord) -> RunInfo:
    header = header_of(record)
    return RunInfo(
        run_id=record.run_id,
        agent=header.agent,
        session_id=record.session_id,
        status=SHOWN[record.status],
        reason=header.problem,
        key=header.key,
        parent=header.parent,
        steps=record.journal_length,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


async def outcome_of(home: Home, record: RunRecord) -> RunOutcome:
    header = header_of(record)
    approvals = await pending(home, record.run_id) if record.status == "waiting" else []
    return RunOutcome(
        run_id=record.run_id,
        status=SHOWN[record.status],
        final_output=_output(home, header),
        approvals=tuple(approvals),
        error=header.problem,
    )


async def pending(home: Home, run_id: str) -> list[Approval]:
    found = await home.backend.approvals(status="pending", run_id=run_id, session_id=None, limit=1000, after="")
    return [approval_of(record) for record in found]


def _output(home: Home, header: Header) -> Any:
    """The final output: as its agent's output type where that agent is known here, else as JSON."""
    answer, graph = header.answer, home.graphs.get(header.agent)
    if answer is None:
        return None
    if answer.text is None:
        return answer.value
    agent = None if graph is None or header.answered_by is None else graph.find(header.answered_by)
    return answer.text if agent is None else read_output(agent, answer.text)
