"""Reading along with a run, from any process: its journal, and between its entries what a model is saying."""

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator

from holdfast.runtime.contract import Event
from holdfast.runtime.events import make_event
from holdfast.runtime.feeds import EntryMark, RunSubscription
from holdfast.runtime.home import RuntimeContext
from holdfast.runtime.patience import Backoff
from holdfast.runtime.records import JournalEntry, decode_row
from holdfast.store.contract import LogEntry


async def follow_events(ctx: RuntimeContext, run_id: str, *, after: int, stop: Collection[str]) -> AsyncIterator[Event]:
    """Every event behind ``after``, then what happens, until the run has one of these statuses to ``stop`` at.

    What a model was saying comes before the entry that has all of it, and behind the entries before that.
    """
    with ctx.subscriptions.subscribe(run_id) as follower:
        reading = EventReader(ctx, run_id, after, stop)
        backoff = Backoff(maximum=ctx.poll_interval)
        while True:
            over = await reading.fetch()
            # What was said before an entry was written is here by now, so entries that nobody has announced are
            # next once this is empty.
            while follower.pending or reading.pending_rows:
                for event in await reading.read_next(follower):
                    yield event
                backoff.reset()
            if over:
                return
            await follower.wait(timeout=backoff.next_delay())


class EventReader:
    """How far a reader is, and the rows that it has fetched but not shown."""

    def __init__(self, ctx: RuntimeContext, run_id: str, after: int, stop: Collection[str]) -> None:
        self._ctx, self._run_id, self._fetched, self._stop = ctx, run_id, after, stop
        self._last_mark: EntryMark = (0, 0)
        self.pending_rows: deque[tuple[LogEntry, JournalEntry]] = deque()

    async def fetch(self) -> bool:
        """Get what is new in the journal; true when there is nothing and the run has stopped."""
        # The header first: what it counts is then in the journal for sure.
        record = await self._ctx.get_run(self._run_id)
        if record.journal_length <= self._fetched:
            return record.status in self._stop
        for row in await self._ctx.backend.read_journal(self._run_id, after=self._fetched):
            self._fetched = row.seq
            self.pending_rows.append((row, decode_row(row)))
        return False

    async def read_next(self, subscription: RunSubscription) -> Iterator[Event]:
        """What comes next: something live, or the rows before it."""
        if not subscription.pending:
            return self._drain_to(None)
        news = subscription.pending.popleft()
        if isinstance(news, Event):
            return iter((news,))
        return iter(()) if news.upto is None else await self._read_announced(news.upto)

    async def _read_announced(self, mark: EntryMark) -> Iterator[Event]:
        if mark <= self._last_mark:
            return iter(())
        if not self._has_mark(mark):
            await self.fetch()
        return self._drain_to(mark) if self._has_mark(mark) else iter(())

    def _has_mark(self, mark: EntryMark) -> bool:
        return any(entry.mark == mark for _, entry in self.pending_rows)

    def _drain_to(self, mark: EntryMark | None) -> Iterator[Event]:
        """The fetched rows up to the one with this mark, or all of them."""
        while self.pending_rows:
            row, entry = self.pending_rows.popleft()
            self._last_mark = max(self._last_mark, entry.mark or self._last_mark)
            yield make_event(self._run_id, row, entry)
            if mark is not None and entry.mark == mark:
                return
