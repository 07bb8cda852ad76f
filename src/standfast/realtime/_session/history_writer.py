"""The history writer: appends the items of a realtime session to a history session, in order.

An item is written once it is final. A message of the model is final when it can no longer be interrupted: it has
played, and the conversation has continued or some time has passed. A message of the user waits for its transcript.
Closing writes the remaining items as they are.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.history.session import Session, accepts_keys, use_run_context, with_run_context
from standfast.realtime._session.context import SessionContext, log
from standfast.realtime._session.history_entries import HistoryEntry
from standfast.realtime._session.item_conversion import from_session_items, make_output_item, to_session_items
from standfast.realtime._session.playback_clock import PlaybackClock
from standfast.realtime._session.responses import ResponseRegistry
from standfast.realtime._session.session_history import SessionHistory
from standfast.realtime.items import (
    AssistantMessageItem,
    InputAudio,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)

RETRY_DELAY = 1.0
_CANCEL_TIMEOUT = 0.05
"""Seconds that an append may take to react to its cancellation."""
TRANSCRIPT_TIMEOUT = 15.0
"""Seconds that a message of the user waits for its transcript before it is written without."""
UNANSWERED_OUTPUT = "The conversation ended before this call was answered."


class HistoryWriter:
    """Appends to a history session without blocking the conversation."""

    def __init__(
        self,
        ctx: SessionContext,
        session: Session,
        responses: ResponseRegistry,
        history: SessionHistory,
        clock: PlaybackClock,
    ) -> None:
        self._ctx, self._session, self._responses, self._clock = ctx, session, responses, clock
        self._conversation, self._write_requested = history.conversation, history.write_requested
        self._accepts_keys = accepts_keys(session)
        self._first_unwritten = self._seen_reorder_count = 0
        self._written_ids: set[str] = set()
        self._open_call_ids: set[str] = set()
        self._batch: list[Item] = []
        self._batch_key = ""
        self._transcript_deadlines: dict[str, float] = {}
        """When each message of the user is written even without its transcript."""
        self._append_task: asyncio.Task[None] | None = None
        self._last_reported_error: str | None = None
        """The failure that was reported last; it is not reported again before a write succeeds."""

    async def load(self) -> list[RealtimeItem]:
        """Read the items that the history session has; they are not written again."""
        with use_run_context(self._ctx.run_context):
            items = from_session_items(await with_run_context(self._session.get_items)())
        self._written_ids.update(item.item_id for item in items)
        return items

    async def run(self) -> None:
        while True:
            await self._wait_for_work()
            self._write_requested.clear()
            await self._write(closing=False)

    async def close(self) -> None:
        """Write the remaining items as they are, after the batch that ``run`` is writing. May be cancelled."""
        try:
            if self._append_task is not None:
                await asyncio.wait({self._append_task})
            await self._write(closing=True)
        except asyncio.CancelledError:
            if self._append_task is not None:
                self._append_task.cancel()
                await asyncio.wait({self._append_task}, timeout=_CANCEL_TIMEOUT)
            raise

    @property
    def still_running(self) -> tuple[str, ...]:
        """``("history",)`` while an append is still running, else empty."""
        return () if self._append_task is None or self._append_task.done() else ("history",)

    @property
    def unwritten_count(self) -> int:
        return len(self._batch) + sum(len(items) for items in self._collect_final_items(closing=True, consume=False))

    async def _wait_for_work(self) -> None:
        now = self._ctx.now()
        due = [at - now for at in self._transcript_deadlines.values() if at > now]
        if (delay := self._clock.next_check_delay) is not None:
            due.append(delay)
        try:
            async with asyncio.timeout(RETRY_DELAY if self._batch else min(due, default=None)):
                await self._write_requested.wait()
        except TimeoutError:
            return

    async def _write(self, *, closing: bool) -> None:
        while True:
            if not self._batch:
                self._batch = [
                    item for items in self._collect_final_items(closing=closing, consume=True) for item in items
                ]
                self._batch_key = new_id("said")
            if not self._batch:
                return
            # In a task of its own: if ``run`` is cancelled here, ``close`` waits for it.
            self._append_task = append = asyncio.create_task(self._append(), name="append to the history")
            await asyncio.wait({append})
            if self._batch:
                return

    async def _append(self) -> None:
        keyed: dict[str, Any] = {"key": self._batch_key} if self._accepts_keys else {}
        try:
            with use_run_context(self._ctx.run_context):
                await with_run_context(self._session.add_items)(self._batch, **keyed)
            self._batch, self._last_reported_error = [], None
        except Exception as error:  # noqa: BLE001 - reported; the batch is retried
            log.warning("the history could not be written: %r", error)
            if self._last_reported_error != (description := repr(error)):
                self._last_reported_error = description
                self._ctx.emit_error(error)

    def _collect_final_items(self, *, closing: bool, consume: bool) -> Iterator[list[Item]]:
        """Yield the items to write now, in order. Items after one that is not final wait for it."""
        conversation = self._conversation
        if self._seen_reorder_count != conversation.reorder_count:
            self._first_unwritten, self._seen_reorder_count = 0, conversation.reorder_count
        entries = list(conversation.iter_entries(self._first_unwritten))
        for name, entry in entries:
            if name not in self._written_ids and isinstance(entry.item, UserMessageItem):
                self._transcript_deadlines.setdefault(name, self._ctx.now() + TRANSCRIPT_TIMEOUT)
        blocked = False
        for index, (name, entry) in enumerate(entries):
            if name not in self._written_ids and not blocked:
                if not closing and not self._is_final(entry, later=[other for _, other in entries[index + 1 :]]):
                    blocked = True
                    continue
                yield from self._convert_entry(name, entry, consume=consume)
            yield from self._convert_output(name, entry, closing=closing, consume=consume)
        if consume:
            while self._first_unwritten < len(conversation) and self._is_written(self._first_unwritten):
                self._first_unwritten += 1

    def _convert_entry(self, item_id: str, entry: HistoryEntry, *, consume: bool) -> Iterator[list[Item]]:
        item = entry.to_item()
        if consume:
            self._written_ids.add(item_id)
            self._transcript_deadlines.pop(item_id, None)
            if isinstance(item, RealtimeToolCallItem):
                self._open_call_ids.add(item_id)
        yield to_session_items(item)

    def _convert_output(
        self, item_id: str, entry: HistoryEntry, *, closing: bool, consume: bool
    ) -> Iterator[list[Item]]:
        item = entry.to_item()
        if item_id not in self._open_call_ids or not isinstance(item, RealtimeToolCallItem):
            return
        if item.output is None and not closing:
            return
        if consume:
            self._open_call_ids.discard(item_id)
        yield [make_output_item(item.call_id or "", item.output if item.output is not None else UNANSWERED_OUTPUT)]

    def _is_written(self, index: int) -> bool:
        name, _ = next(self._conversation.iter_entries(index))
        return name in self._written_ids and name not in self._open_call_ids

    def _is_final(self, entry: HistoryEntry, later: list[HistoryEntry]) -> bool:
        item = entry.item
        if isinstance(item, UserMessageItem):
            transcribed = all(part.transcript is not None for part in item.content if isinstance(part, InputAudio))
            return (
                transcribed
                or entry.transcript_unavailable
                or self._transcript_deadlines[item.item_id] <= self._ctx.now()
            )
        if not isinstance(item, AssistantMessageItem):
            return True
        if not entry.ended:
            return False
        spoken = [part for part in entry.parts.values() if part.spoken]
        response = self._responses.find_by_audio(item.item_id, entry.response_id)
        if spoken and response is not None and not self._clock.has_played_out(response):
            return False
        if all(part.heard_text is not None for part in spoken):
            return True
        end, later_ids = self._conversation.get_audio_end(item.item_id), {other.item.item_id for other in later}
        if response is not None and self._clock.is_still_playing(response, item.item_id, end, later_item_ids=later_ids):
            return False
        continued = any(other.response_id != entry.response_id for other in later)
        return continued or (response is not None and self._clock.is_final(response))
