"""A handle on a durable run: follow it, wait for it, cancel it."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from standfast.base.errors import InvalidInput
from standfast.base.time import Backoff
from standfast.base.usage import Usage
from standfast.runs.core.conversion import from_usage_record
from standfast.runs.result import parse_output
from standfast.runtime._engine.approvals import decode_approval
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.event_reader import follow_events
from standfast.runtime._engine.records import ENDED_STATUSES, PUBLIC_STATUS, STOPPED_STATUSES, RunHeader, decode_header
from standfast.runtime._engine.run_cipher import is_locked, require_unlocked
from standfast.runtime.types import Approval, CancelMode, Event, RunInfo, RunOutcome
from standfast.store.records import RunRecord

if TYPE_CHECKING:
    from standfast.runtime.runtime import Runtime


Until: TypeAlias = Literal["pause", "end"]


class RunHandle:
    """A durable run, in whichever process it is executed. Dropping the handle does not affect the run."""

    def __init__(self, runtime: "Runtime", ctx: RuntimeContext, run_id: str) -> None:
        self._runtime, self._ctx, self.run_id = runtime, ctx, run_id

    @property
    def id(self) -> str:
        """The id of the run, as ``run_id``."""
        return self.run_id

    @property
    def local(self) -> bool:
        """Whether this runtime executes the run at the moment."""
        return self._runtime.is_executing(self.run_id)

    async def info(self) -> RunInfo:
        """Return the run as it is listed."""
        return make_run_info(await self._ctx.get_run(self.run_id))

    async def events(
        self, after: int = 0, *, until: Until = "pause", position: str | None = None
    ) -> AsyncIterator[Event]:
        """Yield every stored event with a ``seq`` above ``after``, then new ones, until the run ends or waits.

        With ``until="end"`` the iteration continues through pauses, no matter which process decides, until the run is
        completed, failed or cancelled. Leaving early does not affect the run; pass the last ``seq`` to continue later.
        A response that is being streamed then begins again, after the live event at ``position`` if that is passed too.
        """
        async with aclosing(self.event_batches(after, until=until, position=position)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for event in batch:
                    yield event

    async def event_batches(
        self, after: int = 0, *, until: Until = "pause", position: str | None = None
    ) -> AsyncIterator[list[Event]]:
        """Yield the events of :meth:`events` in lists: those that are there at the same time."""
        if until not in get_args(Until):
            raise InvalidInput(f"until must be 'pause' or 'end', not {until!r}")
        stop = STOPPED_STATUSES if until == "pause" else ENDED_STATUSES
        followed = follow_events(self._ctx, self.run_id, after=after, stop=stop, position=position)
        async with aclosing(followed) as batches:  # type: ignore[type-var]
            async for batch in batches:
                yield batch

    async def wait(self) -> RunOutcome:
        """Wait until the run has ended or waits for a person, and return its outcome."""
        backoff = Backoff(maximum=self._ctx.poll_interval)
        with self._ctx.subscriptions.subscribe(self.run_id, until_stopped=True) as subscription:
            while True:
                record = await self._ctx.get_run(self.run_id)
                require_unlocked(record)
                if record.status in STOPPED_STATUSES:
                    return await load_outcome(self._ctx, record)
                linked = self._ctx.subscriptions.is_linked
                await subscription.wait(timeout=self._ctx.poll_interval if linked else backoff.next_delay())
                if subscription.pending:
                    subscription.pending.clear()
                    backoff.reset()

    async def cancel(self, mode: CancelMode = "after_turn") -> None:
        """Cancel the run, after its turn or now; see :meth:`Runtime.cancel`."""
        await self._runtime.cancel(self.run_id, mode=mode)

    async def state(self) -> Any:
        """Return the run as a portable :class:`~standfast.RunState`."""
        return await self._runtime.state(self.run_id)


def make_run_info(record: RunRecord) -> RunInfo:
    header = None if is_locked(record) else decode_header(record)
    return RunInfo(
        run_id=record.run_id,
        agent=header.agent if header else "",
        session_id=record.session_id,
        status=PUBLIC_STATUS[record.status],
        reason=header.problem if header else None,
        key=header.key if header else None,
        parent=header.parent if header else record.parent,
        steps=record.journal_length,
        created_at=record.created_at,
        updated_at=record.updated_at,
        locked=header is None,
    )


async def load_outcome(ctx: RuntimeContext, record: RunRecord) -> RunOutcome:
    header = decode_header(record)
    approvals = await list_pending_approvals(ctx, record.run_id) if record.status == "waiting" else []
    return RunOutcome(
        run_id=record.run_id,
        status=PUBLIC_STATUS[record.status],
        final_output=_parse_final_output(ctx, header),
        approvals=tuple(approvals),
        error=header.problem,
        usage=Usage() if header.usage is None else from_usage_record(header.usage),
    )


async def list_pending_approvals(ctx: RuntimeContext, run_id: str) -> list[Approval]:
    records = await ctx.backend.list_approvals(status="pending", run_id=run_id, session_id=None, limit=1000, after="")
    return [decode_approval(record) for record in records]


def _parse_final_output(ctx: RuntimeContext, header: RunHeader) -> Any:
    """Return the final output, parsed with the output type if this runtime has the agent, else as text."""
    answer, graph = header.answer, ctx.graphs.get(header.agent)
    if answer is None:
        return None
    if answer.text is None:
        return answer.value
    agent = None if graph is None or header.answered_by is None else graph.find(header.answered_by)
    return answer.text if agent is None else parse_output(agent, answer.text)
