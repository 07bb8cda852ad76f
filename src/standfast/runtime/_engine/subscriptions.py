"""Subscriptions to the events of runs in this process: of runs that it drives, and of runs that others drive."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from standfast.models.interface import as_item
from standfast.runs.items import RawResponsesStreamEvent, StreamEvent
from standfast.runtime._engine.live_stream import EntryMark, LiveStream, StreamMessage, make_live_event
from standfast.runtime._engine.written_entries import WrittenEntries

MAX_PENDING = 4096
"""How many messages a slow reader may be behind before it misses some. A run never waits for a reader."""

WATCH_DELAY = 0.05

APPROVALS = "*approvals"
"""In place of a run id: the approvals of all runs."""


class Relay(Protocol):
    """What carries messages to and from other processes."""

    @property
    def is_open(self) -> bool: ...

    def watch(self, run_id: str) -> None:
        """Request the messages about the run from all processes, from now on or again."""
        ...

    def unwatch(self, run_id: str) -> None: ...

    def is_watched(self, run_id: str, *, live: bool) -> bool:
        """Return whether another process reads the run, with its live events if ``live``."""
        ...

    def forward(self, run_id: str, stream: LiveStream, message: StreamMessage | None) -> None:
        """Send a message of a run that is driven here to its watchers; ``None`` announces only that it is driven."""
        ...

    def keep_ended(self, run_id: str, stream: LiveStream) -> None:
        """Keep the messages for a while, for readers that have missed the end."""
        ...

    def announce_change(self, run_id: str, *, stopped: bool) -> None:
        """Notify the watchers of a run that this process has changed it, without driving it."""
        ...

    def announce_runnable(self) -> None:
        """Tell all other runtimes that a run waits to be executed."""
        ...


class RunSubscription:
    """One reader: messages in order, of which the oldest are dropped, and counted, if there are too many.

    With ``until_stopped`` it is notified only when the run ends or waits.
    """

    def __init__(self, *, until_stopped: bool) -> None:
        self.until_stopped = until_stopped
        self.pending: deque[StreamMessage] = deque()
        self.missed = 0
        self._changed = asyncio.Event()

    def put(self, message: StreamMessage) -> None:
        if len(self.pending) >= MAX_PENDING:
            self.missed += self.pending.popleft().event is not None
        self.pending.append(message)
        self._changed.set()

    async def wait(self, *, timeout: float) -> bool:
        """Wait until something is pending, at most ``timeout`` seconds; return whether it is."""
        if not self.pending:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return bool(self.pending)
        return True


class RunChannel:
    """The readers of one run, and the messages of its current driver."""

    def __init__(self) -> None:
        self.subscriptions: set[RunSubscription] = set()
        self.stream: LiveStream | None = None
        self.is_driven_here = False
        self.is_watching = False
        """Whether this process watches the run in other processes."""
        self.silent_token = -1
        """The token of the latest driver whose notice did not arrive in time."""
        self.journal: Any = None
        """The newest entries, which the readers share; see ``event_reader.py``."""
        self.written: WrittenEntries | None = None
        """What this process has written, if it drives the run or was the last that did."""


class RunSubscriptions:
    """The subscriptions to all runs. Without a ``relay``, to those driven in this process."""

    def __init__(self) -> None:
        self.channels: dict[str, RunChannel] = {}
        self.relay: Relay | None = None

    # --- reading --------------------------------------------------------------------------------

    @contextmanager
    def subscribe(self, run_id: str, *, until_stopped: bool = False) -> Iterator[RunSubscription]:
        """Add a reader, who first gets the response that is being streamed from its beginning."""
        subscription = RunSubscription(until_stopped=until_stopped)
        channel = self.channels.setdefault(run_id, RunChannel())
        is_first = not any(one.until_stopped <= until_stopped for one in channel.subscriptions)
        channel.subscriptions.add(subscription)
        if channel.stream is not None and not until_stopped:
            if channel.stream.missed:
                subscription.missed = channel.stream.missed
            for message in channel.stream.list_current():
                subscription.put(message)
        if is_first and not channel.is_driven_here:
            self._watch(run_id, channel)
        try:
            yield subscription
        finally:
            channel.subscriptions.discard(subscription)
            if not channel.subscriptions:
                channel.journal = None
                if self.relay is not None and channel.is_watching:
                    channel.is_watching = False
                    self.relay.unwatch(run_id)
                self._drop_unused(run_id, channel)

    def _watch(self, run_id: str, channel: RunChannel) -> None:
        if self.relay is not None:
            channel.is_watching = True
            self.relay.watch(run_id)

    def has_readers(self, run_id: str, *, live: bool) -> bool:
        """Return whether this process has a reader of the run, of its live events if ``live``."""
        channel = self.channels.get(run_id)
        return channel is not None and any(not (live and one.until_stopped) for one in channel.subscriptions)

    def has_live_subscribers(self, run_id: str) -> bool:
        """Return whether there is a reader of the live events of the run, in any process."""
        return self.has_readers(run_id, live=True) or self._is_watched(run_id, live=True)

    def expects_notice(self, run_id: str, mark: EntryMark) -> bool:
        """Return whether another process is about to announce the entry with this mark: live events may come first."""
        channel = self.channels.get(run_id)
        if channel is None or channel.is_driven_here or not self.is_linked or mark[0] <= channel.silent_token:
            return False
        return channel.stream is None or mark > channel.stream.mark

    def is_linked_driver(self, run_id: str, token: int) -> bool:
        """Return whether the driver with this token sends its live events from another process."""
        channel = self.channels.get(run_id)
        is_here = channel is not None and channel.is_driven_here and channel.stream and channel.stream.token == token
        return self.is_linked and not is_here

    @property
    def is_linked(self) -> bool:
        """Whether other processes announce their changes, so that the store need not be polled often."""
        return self.relay is not None and self.relay.is_open

    def request_again(self, run_id: str) -> None:
        """Request the messages about the run again, because some seem to be missing."""
        if run_id in self.channels:
            self._watch(run_id, self.channels[run_id])

    def mark_silent(self, run_id: str, token: int) -> None:
        """Expect nothing more from the driver with this token, until a message of it arrives."""
        channel = self.channels.get(run_id)
        if channel is not None:
            channel.silent_token = max(channel.silent_token, token)

    def _is_watched(self, run_id: str, *, live: bool) -> bool:
        return self.relay is not None and self.relay.is_watched(run_id, live=live)

    def _drop_unused(self, run_id: str, channel: RunChannel) -> None:
        if not channel.subscriptions and not channel.is_driven_here:
            self.channels.pop(run_id, None)

    # --- runs that are driven here --------------------------------------------------------------

    def begin_driving(self, run_id: str, token: int, written: WrittenEntries) -> None:
        """Note that this runtime drives the run from now on, and will add to ``written`` before each notice."""
        channel = self.channels.setdefault(run_id, RunChannel())
        channel.written = written
        channel.is_driven_here, channel.stream = True, LiveStream(token)
        if self._is_watched(run_id, live=False):
            assert self.relay is not None  # noqa: S101
            self.relay.forward(run_id, channel.stream, None)

    def note_loaded(self, run_id: str, length: int) -> None:
        """Note that the driver has read so many entries of the journal: its messages come after them."""
        channel = self.channels.get(run_id)
        if channel is not None and channel.stream is not None:
            channel.stream.base = length

    def end_driving(self, run_id: str) -> None:
        """Note that this runtime no longer drives the run: it has ended, waits, or was taken over."""
        self.notify_written(run_id, stopped=True, settled=True)
        channel = self.channels.get(run_id)
        if channel is not None:
            if channel.stream is not None and self._is_watched(run_id, live=True):
                assert self.relay is not None  # noqa: S101
                self.relay.keep_ended(run_id, channel.stream)
            channel.is_driven_here, channel.stream = False, None
            if channel.subscriptions:
                asyncio.get_running_loop().call_later(WATCH_DELAY, self._watch_after_driving, run_id)
            self._drop_unused(run_id, channel)

    def _watch_after_driving(self, run_id: str) -> None:
        """Watch a run that was driven here if it still has readers; most of them leave when it stops."""
        channel = self.channels.get(run_id)
        if channel is not None and channel.subscriptions and not channel.is_driven_here:
            self._watch(run_id, channel)
            self.notify_changed(run_id, stopped=True)

    def notify_written(
        self, run_id: str, *, upto: EntryMark | None = None, stopped: bool = False, settled: bool = False
    ) -> None:
        """Notify readers everywhere of new journal entries; ``stopped`` when the run has ended or waits.

        Without ``upto`` or ``settled``, they were not written by the driver of the run.
        """
        channel = self.channels.get(run_id)
        if channel is not None and channel.written is not None and upto is None and not settled:
            channel.written.forget()
        if channel is None or channel.stream is None or not channel.is_driven_here:
            self.notify_changed(run_id, stopped=stopped)
            if self.relay is not None:
                self.relay.announce_change(run_id, stopped=stopped)
            return
        stream = channel.stream
        mark = stream.mark if upto is None else upto
        self._emit(
            run_id, channel, StreamMessage(stream.next_number, mark, stream.base, None, settled, stopped, _now())
        )

    def announce_runnable(self) -> None:
        """Tell all other runtimes that a run waits to be executed."""
        if self.relay is not None:
            self.relay.announce_runnable()

    def publish_live(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        """Publish a live event of a run that is driven here."""
        channel = self.channels.get(run_id)
        if channel is None or channel.stream is None:
            return
        stream = channel.stream
        event = make_live_event(run_id, stream.token, stream.next_number, kind, data, time.time())
        self._emit(run_id, channel, StreamMessage(stream.next_number, stream.mark, stream.base, event, at=_now()))

    async def publish_model_event(self, run_id: str, event: StreamEvent) -> None:
        """Publish an event of the model to the live subscriptions."""
        if isinstance(event, RawResponsesStreamEvent):
            self.publish_live(run_id, "model.delta", as_item(event.data))

    def _emit(self, run_id: str, channel: RunChannel, message: StreamMessage) -> None:
        assert channel.stream is not None  # noqa: S101
        watched = self._is_watched(run_id, live=False)
        channel.stream.add(message, keep_settled=watched and self._is_watched(run_id, live=True))
        _publish(channel, message)
        if watched:
            assert self.relay is not None  # noqa: S101
            self.relay.forward(run_id, channel.stream, message)

    # --- messages of other processes ---------------------------------------------------------------

    def notify_changed(self, run_id: str, *, stopped: bool) -> None:
        """Notify the readers in this process that the run was changed elsewhere."""
        channel = self.channels.get(run_id)
        if channel is not None and channel.written is not None:
            channel.written.forget()
        if channel is not None and channel.subscriptions:
            mark = (0, 0) if channel.stream is None else channel.stream.mark
            _publish(channel, StreamMessage(0, mark, stopped=stopped, at=_now()))

    def receive(
        self, run_id: str, sender: str, token: int, first: int, messages: Sequence[StreamMessage], *, start: bool
    ) -> bool:
        """Take messages of a driver elsewhere, numbered from ``first``; return whether some before them are missing.

        With ``start`` these are the first that it still has; earlier ones are lost.
        """
        channel = self.channels.get(run_id)
        if channel is None or channel.is_driven_here or not channel.subscriptions:
            return False
        stream = channel.stream
        if stream is not None and token < stream.token:
            return False
        if stream is None or token > stream.token:
            if first > 1 and not start:
                return True
            stream = channel.stream = LiveStream(token, source=sender, next_number=first)
        elif first > stream.next_number:
            if not start:
                return True
            self.note_missed(run_id, first - stream.next_number)
            stream.next_number = first
        stream.source = sender
        channel.silent_token = -1
        for message in messages[stream.next_number - first :]:
            stream.add(message, keep_settled=False)
            _publish(channel, message)
        return False

    def note_missed(self, run_id: str, count: int) -> None:
        """Note that live events were lost on the way to this process."""
        for subscription in self.channels[run_id].subscriptions:
            subscription.missed += count

    def note_end_of_runtime(self, source: str) -> None:
        """Expect nothing more from a runtime that has ended, and find the new drivers of its runs."""
        for run_id, channel in list(self.channels.items()):
            stream = channel.stream
            if stream is not None and stream.source == source:
                channel.silent_token = stream.token
                self._watch(run_id, channel)


def _publish(channel: RunChannel, message: StreamMessage) -> None:
    for subscription in channel.subscriptions:
        if message.stopped or not subscription.until_stopped:
            subscription.put(message)


def _now() -> float:
    return asyncio.get_running_loop().time()
