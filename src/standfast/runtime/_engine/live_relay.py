"""Carry live events and notices of changes between the runtimes of one store.

A runtime with readers of a run that it does not drive announces to the others that it *watches* the run, and repeats
that while it has such readers. The runtimes that drive or change the run send what happens to the runtimes that watch
it, and to no others. Everything sent is a hint: a reader that gets nothing finds all entries by polling the store.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from standfast.base.errors import StandfastError
from standfast.base.log import get_logger
from standfast.base.time import Backoff
from standfast.runtime._engine.live_stream import (
    Batch,
    Changed,
    Hello,
    LiveStream,
    Runnable,
    StreamMessage,
    Unwatch,
    Watch,
    Watched,
    decode,
    decode_content,
    encode,
    encode_content,
)
from standfast.runtime._engine.run_cipher import RunCipher
from standfast.runtime._engine.subscriptions import RunSubscriptions
from standfast.store.backend import Backend
from standfast.store.links import Link, LinkUnavailable

WATCH_SECONDS = 30.0
"""How long a watch lasts unless it is renewed."""
RENEWAL_INTERVAL = 10.0
FLUSH_DELAY = 0.005
HINT_INTERVAL = 0.05
REQUEST_INTERVAL = 0.1
KEEP_ENDED_SECONDS = 10.0
_MAX_BATCH = 256
_MAX_RUNS = 500  # in one message
_log = get_logger(__name__)


class LiveRelay:
    """The relay of one runtime. Its task opens the link when there is something to send or to receive."""

    def __init__(self, name: str, subscriptions: RunSubscriptions, cipher: RunCipher | None) -> None:
        self._name, self._subscriptions, self._cipher = name, subscriptions, cipher
        self._link: Link | None = None
        self._needed = asyncio.Event()
        self._watchers: dict[str, dict[str, tuple[float, bool]]] = {}
        """By run and runtime: until when it watches the run, and whether it wants live events."""
        self._unsent: dict[str, tuple[LiveStream, list[StreamMessage]]] = {}
        self._ended: dict[str, tuple[LiveStream, float]] = {}
        self._flush_handle: asyncio.TimerHandle | None = None
        self._requested_at: dict[str, float] = {}
        """By run: when missing messages were last requested."""
        self.on_runnable: Callable[[], None] = lambda: None
        """Called when another runtime announces a run that waits."""
        self._hint_handle: asyncio.TimerHandle | None = None
        self._has_hint = False

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def open_soon(self) -> None:
        """Open the link: this runtime executes runs or reads some."""
        self._needed.set()

    async def run(self, backend: Backend) -> None:
        """Keep the link open until cancelled. Without one, readers poll the store."""
        await self._needed.wait()
        link = await self._open_link(backend)
        if link is None:
            return
        try:
            self._link = link
            self.note_loss(None)
            while True:
                await asyncio.sleep(RENEWAL_INTERVAL)
                self._forget_expired()
                self._send_watches(None)
        finally:
            self._flush()
            if self._hint_handle is not None:
                self._hint_handle.cancel()
            self._link = None
            await link.close()

    async def _open_link(self, backend: Backend) -> Link | None:
        backoff = Backoff(initial=1.0, maximum=RENEWAL_INTERVAL)
        while True:
            try:
                return await backend.open_link(self._name, self)
            except LinkUnavailable as problem:
                _log.info("live events of other processes are not received, and the store is polled: %s", problem)
                return None
            except Exception as problem:  # noqa: BLE001 - drivers raise many kinds; runs do not depend on the link
                _log.warning("the link to other processes cannot be opened yet: %s", problem)
            await asyncio.sleep(backoff.next_delay())

    # --- runs that this runtime watches ----------------------------------------------------------------

    def watch(self, run_id: str) -> None:
        self.open_soon()
        if self._link is not None:
            self._link.broadcast(encode(Watch([self._describe(run_id)])))

    def unwatch(self, run_id: str) -> None:
        if self._link is not None:
            self._link.broadcast(encode(Unwatch(run_id)))

    def _describe(self, run_id: str) -> Watched:
        stream = self._subscriptions.channels[run_id].stream
        place = (-1, 0) if stream is None else (stream.token, stream.next_number)
        return Watched(run_id, self._subscriptions.has_readers(run_id, live=True), *place)

    def _send_watches(self, to: str | None) -> None:
        """Send the runs that this runtime watches to one runtime, or to all."""
        if self._link is None:
            return
        channels = self._subscriptions.channels.items()
        runs = [run_id for run_id, channel in channels if channel.subscriptions and not channel.is_driven_here]
        for start in range(0, len(runs), _MAX_RUNS):
            data = encode(Watch([self._describe(run_id) for run_id in runs[start : start + _MAX_RUNS]]))
            if to is None:
                self._link.broadcast(data)
            else:
                self._link.send(to, data)

    # --- runs that others watch -----------------------------------------------------------------------

    def is_watched(self, run_id: str, *, live: bool) -> bool:
        watchers = self._watchers.get(run_id)
        if not watchers:
            return False
        now = time.monotonic()
        return any(until > now and (wants_live or not live) for until, wants_live in watchers.values())

    def forward(self, run_id: str, stream: LiveStream, message: StreamMessage | None) -> None:
        unsent = self._unsent.get(run_id)
        if unsent is not None and unsent[0] is not stream:
            self._flush()
            unsent = None
        if unsent is None:
            unsent = self._unsent[run_id] = stream, []
        if message is not None:
            unsent[1].append(message)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_later(FLUSH_DELAY, self._flush)

    def keep_ended(self, run_id: str, stream: LiveStream) -> None:
        self._ended[run_id] = stream, time.monotonic() + KEEP_ENDED_SECONDS

    def announce_change(self, run_id: str, *, stopped: bool) -> None:
        if self._link is not None and run_id in self._watchers:
            for watcher in self._list_watchers(run_id, live=False):
                self._link.send(watcher, encode(Changed(run_id, stopped)))

    def announce_runnable(self) -> None:
        """Send a hint; further hints within a short time are sent as one."""
        if self._link is None:
            return
        self._has_hint = self._hint_handle is not None
        if self._hint_handle is None:
            self._link.broadcast(encode(Runnable()))
            self._hint_handle = asyncio.get_running_loop().call_later(HINT_INTERVAL, self._end_hint)

    def _end_hint(self) -> None:
        self._hint_handle = None
        if self._has_hint:
            self.announce_runnable()

    def _list_watchers(self, run_id: str, *, live: bool) -> list[str]:
        now, watchers = time.monotonic(), self._watchers.get(run_id, {})
        return [name for name, (until, wants) in watchers.items() if until > now and wants >= live]

    def _flush(self) -> None:
        """Send the messages since the last time, encoded once for all watching runtimes."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        unsent, self._unsent = self._unsent, {}
        if self._link is None:
            return
        for run_id, (stream, messages) in unsent.items():
            live = self._list_watchers(run_id, live=True)
            if live:
                first = messages[0].number if messages else stream.next_number
                self._send_batches(live, run_id, stream, messages, first=first, start=not messages)
            if any(message.stopped for message in messages):
                for watcher in set(self._list_watchers(run_id, live=False)).difference(live):
                    self._link.send(watcher, encode(Changed(run_id, True)))

    def _send_batches(
        self,
        to: Sequence[str],
        run_id: str,
        stream: LiveStream,
        messages: Sequence[StreamMessage],
        *,
        first: int,
        start: bool,
        missed: int = 0,
    ) -> None:
        if self._link is None:
            return
        for offset in range(0, len(messages) or 1, _MAX_BATCH):
            number = first + offset
            content = encode_content(messages[offset : offset + _MAX_BATCH])
            if self._cipher is not None:
                content = self._cipher.encrypt(content, run_id, _locate(stream.token, number))
            batch = encode(Batch(run_id, stream.token, number, start and not offset, missed, content))
            for name in to:
                self._link.send(name, batch)

    def _replay(self, to: str, wanted: Watched) -> None:
        """Send the messages that the watcher lacks. If it lacks none, send the number of the driver's next message."""
        stream = self._find_stream(wanted.run_id)
        if stream is None or not wanted.live:
            return
        self._flush()
        if wanted.token > stream.token:
            return
        if wanted.token == stream.token:
            if wanted.next_number >= stream.next_number:
                return
            messages, missed = stream.list_from(wanted.next_number), 0
        else:
            messages, missed = stream.list_current(), stream.missed
        first = messages[0].number if messages else stream.next_number
        self._send_batches([to], wanted.run_id, stream, messages, first=first, start=True, missed=missed)

    def _find_stream(self, run_id: str) -> LiveStream | None:
        channel = self._subscriptions.channels.get(run_id)
        if channel is not None and channel.is_driven_here:
            return channel.stream
        return self._ended[run_id][0] if run_id in self._ended else None

    def _forget_expired(self) -> None:
        now = time.monotonic()
        for run_id, watchers in list(self._watchers.items()):
            for name in [name for name, (until, _) in watchers.items() if until <= now]:
                del watchers[name]
            if not watchers:
                del self._watchers[run_id]
        self._ended = {run_id: kept for run_id, kept in self._ended.items() if kept[1] > now}

    # --- the link -------------------------------------------------------------------------------

    def receive(self, sender: str, data: bytes) -> None:
        try:
            message = decode(data)
            match message:
                case Hello():
                    self._send_watches(sender)
                case Watch():
                    for wanted in message.runs:
                        self._add_watcher(sender, wanted)
                case Unwatch():
                    self._watchers.get(message.run_id, {}).pop(sender, None)
                case Changed():
                    self._subscriptions.notify_changed(message.run_id, stopped=message.stopped)
                case Runnable():
                    self.on_runnable()
                case Batch():
                    self._receive_batch(sender, message)
        except (msgspec.MsgspecError, StandfastError) as problem:
            _log.debug("a message of %s was ignored: %s", sender, problem)

    def _add_watcher(self, sender: str, wanted: Watched) -> None:
        watchers = self._watchers.setdefault(wanted.run_id, {})
        watchers[sender] = time.monotonic() + WATCH_SECONDS, wanted.live
        self._replay(sender, wanted)

    def _receive_batch(self, sender: str, batch: Batch) -> None:
        run_id, content = batch.run_id, batch.content
        if run_id not in self._subscriptions.channels:
            return
        if self._cipher is not None:
            content = self._cipher.decrypt(content, run_id, _locate(batch.token, batch.first))
        messages = decode_content(run_id, batch.token, batch.first, content)
        if batch.missed:
            self._subscriptions.note_missed(run_id, batch.missed)
        receive = self._subscriptions.receive
        if receive(run_id, sender, batch.token, batch.first, messages, start=batch.start):
            self._request_missing(run_id, sender, batch.token)
        else:
            self._requested_at.pop(run_id, None)

    def _request_missing(self, run_id: str, sender: str, token: int) -> None:
        now = time.monotonic()
        if self._link is None or now < self._requested_at.get(run_id, 0.0) + REQUEST_INTERVAL:
            return
        self._requested_at[run_id], wanted = now, self._describe(run_id)
        if wanted.token != token:
            wanted = msgspec.structs.replace(wanted, token=token, next_number=1)
        self._link.send(sender, encode(Watch([wanted])))

    def note_loss(self, sender: str | None) -> None:
        """After messages were lost, request what was missed, and let the others do the same."""
        if sender is not None:
            for watching in self._watchers.values():
                watching.pop(sender, None)
            self._subscriptions.note_end_of_runtime(sender)
        elif self._link is not None:
            self._link.broadcast(encode(Hello()))
            self._send_watches(None)
            for run_id, channel in self._subscriptions.channels.items():
                if channel.is_driven_here and channel.stream is not None and self.is_watched(run_id, live=True):
                    place, watchers = channel.stream.next_number, self._list_watchers(run_id, live=True)
                    self._send_batches(watchers, run_id, channel.stream, (), first=place, start=False)


def _locate(token: int, first: int) -> tuple[str, int, int]:
    return "live events", token, first
