"""Reading along with a run, from any process: its journal, and between its entries what a model is saying."""

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator

from holdfast.runtime.contract import Event
from holdfast.runtime.events import event_of
from holdfast.runtime.feeds import Follower, Mark
from holdfast.runtime.home import Home
from holdfast.runtime.patience import Backoff
from holdfast.runtime.records import JournalEntry, entry_of
from holdfast.store.contract import Logged


async def follow(home: Home, run_id: str, *, after: int, stop: Collection[str]) -> AsyncIterator[Event]:
    """Every event behind ``after``, then what happens, until the run has one of these statuses to ``stop`` at.

    What a model was saying comes before the entry that has all of it, and behind the entries before that.
    """
    with home.feeds.following(run_id) as follower:
        reading = Reading(home, run_id, after, stop)
        backoff = Backoff(most=home.poll)
        while True:
            over = await reading.fetch()
            # What was said before an entry was written is here by now, so entries that nobody has announced are
            # next once this is empty.
            while follower.waiting or reading.rows:
                for event in await reading.next(follower):
                    yield event
                backoff.reset()
            if over:
                return
            await follower.stirred(within=backoff.grown())


class Reading:
    """How far a reader is, and the rows that it has fetched but not shown."""

    def __init__(self, home: Home, run_id: str, after: int, stop: Collection[str]) -> None:
        self._home, self._run_id, self._fetched, self._stop = home, run_id, after, stop
        self._shown: Mark = (0, 0)
        self.rows: deque[tuple[Logged, JournalEntry]] = deque()

    async def fetch(self) -> bool:
        """Get what is new in the journal; true when there is nothing and the run has stopped."""
        # The header first: what it counts is then in the journal for sure.
        record = await self._home.record(self._run_id)
        if record.journal_length <= self._fetched:
            return record.status in self._stop
        for row in await self._home.backend.journal(self._run_id, after=self._fetched):
            self._fetched = row.seq
            self.rows.append((row, entry_of(row)))
        return False

    async def next(self, follower: Follower) -> Iterator[Event]:
        """What comes next: something live, or the rows before it."""
        if not follower.waiting:
            return self._upto(None)
        news = follower.waiting.popleft()
        if isinstance(news, Event):
            return iter((news,))
        return iter(()) if news.upto is None else await self._announced(news.upto)

    async def _announced(self, mark: Mark) -> Iterator[Event]:
        if mark <= self._shown:
            return iter(())
        if not self._has(mark):
            await self.fetch()
        return self._upto(mark) if self._has(mark) else iter(())

    def _has(self, mark: Mark) -> bool:
        return any(entry.mark == mark for _, entry in self.rows)

    def _upto(self, mark: Mark | None) -> Iterator[Event]:
        """The fetched rows up to the one with this mark, or all of them."""
        while self.rows:
            row, entry = self.rows.popleft()
            self._shown = max(self._shown, entry.mark or self._shown)
            yield event_of(self._run_id, row, entry)
            if mark is not None and entry.mark == mark:
                return
