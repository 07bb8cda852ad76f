"""Follow the events of a run from any process: the entries of its journal, and between them its live events.

Entries are read once for all readers in a process. If another process drives the run, an entry that it wrote is held
back until its notice has arrived, because live events that precede the entry arrive before the notice.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator

import msgspec

from standfast.base.errors import InvalidInput
from standfast.base.time import Backoff
from standfast.runs.core.steps import Finished, ModelAnswered
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.events import make_event
from standfast.runtime._engine.live_stream import EntryMark, StreamMessage, parse_position
from standfast.runtime._engine.records import RunStopped, decode_row
from standfast.runtime._engine.run_cipher import require_unlocked
from standfast.runtime._engine.subscriptions import RunSubscription
from standfast.runtime._engine.written_entries import WrittenEntries
from standfast.runtime.types import Event
from standfast.store.records import LogEntry

HOLD_SECONDS = 1.0
"""How long an entry is held back for the notice of its driver. One that sends none in time is not waited for again."""
MAX_SHARED = 1024
MAX_BATCH = 64
"""Events that are yielded together at most, or one message more."""


class StoredEvent(msgspec.Struct, frozen=True):
    """An entry as an event, with its mark. After one that ``settles`` it, nothing of a response is live.

    One that ``completes`` a response comes after the live events of that response.
    """

    event: Event
    mark: EntryMark | None
    settles: bool
    completes: bool


def load_event(run_id: str, row: LogEntry) -> StoredEvent:
    entry = decode_row(row)
    completes = not entry.route and isinstance(entry.content, ModelAnswered)
    settles = completes or (not entry.route and isinstance(entry.content, Finished | RunStopped))
    return StoredEvent(make_event(run_id, row, entry), entry.mark, settles, completes)


class SharedJournal:
    """The newest entries of a run and its status, read once for all readers in this process."""

    def __init__(self, ctx: RuntimeContext, run_id: str) -> None:
        self._ctx, self._run_id = ctx, run_id
        self._events: deque[StoredEvent] = deque(maxlen=MAX_SHARED)
        self._lock = asyncio.Lock()
        self._as_of = -math.inf
        self._length = -1
        self.status, self.counted = "", 0
        """The status of the run, and the number of entries it had then."""

    async def refresh(self, *, since: float, written: WrittenEntries | None = None) -> None:
        """Read what is new, unless that was begun after ``since``, on the clock of the event loop.

        It is taken from ``written`` if that has it.
        """
        if self._as_of > since or self._take(written):
            return
        async with self._lock:
            if self._as_of > since:
                return
            began = asyncio.get_running_loop().time()
            # The record is read first, so that every entry it counts is in the journal by then.
            record = await self._ctx.get_run(self._run_id)
            require_unlocked(record)
            if self._length < 0:
                self._length = record.journal_length
            elif record.journal_length > self._length:
                for row in await self._ctx.backend.read_journal(self._run_id, after=self._length):
                    self._events.append(load_event(self._run_id, row))
                    self._length = row.seq
            self.status, self.counted, self._as_of = record.status, record.journal_length, began

    def _take(self, written: WrittenEntries | None) -> bool:
        """Take what this process has written; return whether that is everything."""
        if written is None or self._lock.locked() or not written.covers(max(self._length, 0)):
            return False
        for row in written.rows:
            if row.seq > self._length:
                self._events.append(load_event(self._run_id, row))
        self.status, self.counted, self._length = written.status, written.length, written.length
        return True

    async def read_after(self, seq: int) -> list[StoredEvent]:
        """Return the entries after this one that have been read, or older ones from the store."""
        if seq >= max(self._length, self.counted):
            return []
        first = self._events[0].event.seq if self._events else None
        if first is not None and first <= seq + 1:
            return [one for one in self._events if one.event.seq is not None and one.event.seq > seq]
        rows = await self._ctx.backend.read_journal(self._run_id, after=seq)
        return [load_event(self._run_id, row) for row in rows]


async def follow_events(
    ctx: RuntimeContext, run_id: str, *, after: int, stop: Collection[str], position: str | None = None
) -> AsyncIterator[list[Event]]:
    """Yield every event with a ``seq`` above ``after``, then new ones, until the run has one of the ``stop`` statuses.

    Live events of a model response come before the event of the complete response, and after all earlier ones. Those up
    to ``position`` are left out. Events that are there at the same time are yielded together: words
    that have piled up, or entries that were read at once.
    """
    try:
        after_position = parse_position(position)
    except ValueError:
        raise InvalidInput(f"position must be that of a live event, not {position!r}") from None
    with ctx.subscriptions.subscribe(run_id) as subscription:
        reader = EventReader(ctx, run_id, subscription, after=after, after_position=after_position)
        backoff = Backoff(maximum=ctx.poll_interval)
        await reader.fetch(since=asyncio.get_running_loop().time(), is_current=True)
        reader.note_history()
        while True:
            while subscription.pending or reader.has_next():
                batch = list(await reader.read_next())
                while len(batch) < MAX_BATCH and reader.has_pending_live_event():
                    batch.extend(await reader.read_next())
                if batch:
                    yield batch
                backoff.reset()
            if reader.is_at_end(stop):
                return
            delay = ctx.poll_interval if ctx.subscriptions.is_linked else backoff.next_delay()
            if not await subscription.wait(timeout=reader.limit_wait(delay)) and not reader.is_holding:
                await reader.fetch(since=asyncio.get_running_loop().time() - delay / 2)


class EventReader:
    """The position of a reader, and the entries that it has fetched but not yielded."""

    def __init__(
        self, ctx: RuntimeContext, run_id: str, subscription: RunSubscription, *, after: int, after_position: EntryMark
    ) -> None:
        self._ctx, self._run_id, self._subscription = ctx, run_id, subscription
        channel = ctx.subscriptions.channels[run_id]
        if channel.journal is None:
            channel.journal = SharedJournal(ctx, run_id)
        self._journal: SharedJournal = channel.journal
        self._after_position, self._seq, self._fetched = after_position, after, after
        self._history = 0
        self._last_mark: EntryMark = (0, 0)
        self._noticed: EntryMark = (0, 0)
        self._settled: EntryMark = (0, 0)
        self._rows: deque[StoredEvent] = deque()
        self._held_until: float | None = None
        self._is_within_response = False
        """Whether live events were yielded since the last complete response."""

    async def fetch(self, *, since: float, is_current: bool = False) -> None:
        """Fetch what is new ``since`` then; ``is_current`` if all of it was written or announced here."""
        written = self._ctx.subscriptions.channels[self._run_id].written if is_current else None
        await self._journal.refresh(since=since, written=written)
        found = await self._journal.read_after(self._fetched)
        if found:
            self._rows.extend(found)
            self._fetched = found[-1].event.seq or self._fetched

    def note_history(self) -> None:
        """Record that the entries fetched so far are older than the subscription: no live events precede them."""
        self._history = self._fetched

    def is_at_end(self, stop: Collection[str]) -> bool:
        """Return whether the run has stopped and everything was yielded."""
        return not self._rows and self._journal.status in stop and self._seq >= self._journal.counted

    async def read_next(self) -> Iterator[Event]:
        """Return the next events: those of one message and the entries before it, or the entries that were fetched."""
        if not self._subscription.pending:
            return self._drain(None)
        missed, self._subscription.missed = self._subscription.missed, 0
        message = self._subscription.pending.popleft()
        self._noticed = max(self._noticed, message.mark)
        if message.event is None:
            return await self._read_notice(message)
        if self._is_stale(message):
            return iter(())
        events = list(await self._read_up_to(message))
        if missed:
            gap = Event(None, self._run_id, "model.gap", {"missed": missed}, message.event.at, live=True)
            events.append(gap)
        self._is_within_response = True
        return iter((*events, message.event))

    def has_pending_live_event(self) -> bool:
        """Return whether the next message is a live event, which can be read without waiting for the store."""
        pending = self._subscription.pending
        return bool(pending) and pending[0].event is not None

    def _is_stale(self, message: StreamMessage) -> bool:
        """Return whether the complete response, or this message, was already yielded."""
        return message.mark < self._settled or (message.mark[0], message.number) <= self._after_position

    async def _read_notice(self, message: StreamMessage) -> Iterator[Event]:
        if message.number == 0 or message.mark <= self._last_mark:
            await self.fetch(since=message.at, is_current=True)
            return iter(())
        return await self._read_up_to(message)

    async def _read_up_to(self, message: StreamMessage) -> Iterator[Event]:
        """Return the entries up to the last one that the driver had written by then, or had read before."""
        mark, base = message.mark, message.base
        if mark[1] and mark > self._last_mark:
            if not self._has_mark(mark):
                await self.fetch(since=message.at, is_current=True)
            return self._drain(mark) if self._has_mark(mark) else iter(())
        if base > self._seq:
            if base > self._fetched:
                await self.fetch(since=message.at, is_current=True)
            return self._drain_to_seq(base)
        return iter(())

    def _has_mark(self, mark: EntryMark) -> bool:
        return any(row.mark == mark for row in self._rows)

    def _drain(self, mark: EntryMark | None) -> Iterator[Event]:
        """Yield the fetched entries up to the one with this mark, or all that are not held back."""
        while self._rows:
            if mark is None and self._is_held(self._rows[0]):
                return
            row = self._rows[0]
            yield from self._take()
            if mark is not None and row.mark == mark:
                return

    def _drain_to_seq(self, seq: int) -> Iterator[Event]:
        while self._rows and (self._rows[0].event.seq or 0) <= seq:
            yield from self._take()

    def _take(self) -> Iterator[Event]:
        """Yield the next entry, after a gap if live events of its response may be missing."""
        row = self._rows.popleft()
        if row.completes and self._awaits_notice(row):
            yield Event(None, self._run_id, "model.gap", {"missed": None}, row.event.at, live=True)
        if row.completes:
            self._is_within_response = False
        self._seq, self._held_until = row.event.seq or self._seq, None
        if row.mark is not None:
            self._last_mark = max(self._last_mark, row.mark)
            if row.settles:
                self._settled = max(self._settled, row.mark)
        yield row.event

    def _awaits_notice(self, row: StoredEvent) -> bool:
        """Return whether another process wrote the entry and no message that it sent afterwards has arrived."""
        is_history = (row.event.seq or 0) <= self._history and not self._is_within_response
        if row.mark is None or is_history:
            return False
        arrived = self._noticed[0] == row.mark[0] and self._noticed >= row.mark
        return not arrived and self._ctx.subscriptions.is_linked_driver(self._run_id, row.mark[0])

    # --- entries that are held back -------------------------------------------------------------

    @property
    def is_holding(self) -> bool:
        return self._held_until is not None

    def has_next(self) -> bool:
        """Return whether an entry was fetched that need not be held back."""
        return bool(self._rows) and not self._is_held(self._rows[0])

    def _is_held(self, row: StoredEvent) -> bool:
        subscriptions = self._ctx.subscriptions
        if (
            row.mark is None
            or (row.event.seq or 0) <= self._history
            or not subscriptions.expects_notice(self._run_id, row.mark)
        ):
            return False
        now = asyncio.get_running_loop().time()
        if self._held_until is None:
            self._held_until = now + HOLD_SECONDS
            subscriptions.request_again(self._run_id)
        if now < self._held_until:
            return True
        subscriptions.mark_silent(self._run_id, row.mark[0])
        return False

    def limit_wait(self, delay: float) -> float:
        """Return the seconds to wait at most: ``delay``, or less if an entry is held back."""
        if self._held_until is None:
            return delay
        return max(0.0, min(delay, self._held_until - asyncio.get_running_loop().time()))
