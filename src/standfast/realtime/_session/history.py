"""The conversation history of a session: events in, items out. Sans I/O.

Items are ordered by ``previous_item_id``, even if the previous item arrives later. Generated text and heard text are
kept apart; the items show the text that was heard. A delta takes constant time, regardless of the length of the
conversation.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from standfast.base.collections import BoundedDict
from standfast.realtime._session.history_entries import HistoryEntry, HistoryPart
from standfast.realtime._session.playback_clock import PlaybackClock
from standfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputText,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)
from standfast.realtime.model_events import RealtimeModelToolCallEvent

MAX_DELETED_IDS = 64
"""How many ids of deleted items are kept, because events about them may still arrive."""


class ConversationHistory:
    """The items of one session in order. ``revision`` increases with every change."""

    def __init__(self, clock: PlaybackClock) -> None:
        self._clock = clock
        self.revision = 0
        self.reorder_count = 0
        """How often an item was inserted before the end, moved or deleted."""
        self.unknown_to_server: set[str] = set()
        """Items that the current connection does not have: items that it adds come after them."""
        self._entries: dict[str, HistoryEntry] = {}
        self._order: list[str] = []
        self._orphans: dict[str, list[str]] = {}
        self._call_item_ids: dict[str, str] = {}
        self._open_message_ids: dict[str | None, list[str]] = {}
        self._output_anchors: dict[str, str] = {}
        self._pending_resends: Counter[str] = Counter()
        self._deleted_ids: BoundedDict[str, None] = BoundedDict(MAX_DELETED_IDS)
        self._cached_items: tuple[int, list[RealtimeItem]] = (0, [])

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def iter_entries(self, start: int = 0) -> Iterator[tuple[str, HistoryEntry]]:
        """Iterate over the entries in order, from index ``start``."""
        for index in range(start, len(self._order)):
            yield self._order[index], self._entries[self._order[index]]

    def get_items(self) -> list[RealtimeItem]:
        """Return the current items in a new list. The items themselves are never changed."""
        if self._cached_items[0] != self.revision:
            self._cached_items = (self.revision, [self._entries[item_id].to_item() for item_id in self._order])
        return list(self._cached_items[1])

    def get_item(self, item_id: str) -> RealtimeItem:
        return self._entries[item_id].to_item()

    def upsert_item(self, item: RealtimeItem, *, response_id: str | None = None) -> bool:
        """Add or update an item. Returns True if it is new.

        An update by a response does not restore an item that was deleted; a new item with the same id does.
        """
        if response_id is not None and item.item_id in self._deleted_ids:
            return False
        self._deleted_ids.pop(item.item_id, None)
        existing = self._find(item)
        output = getattr(item, "output_item_id", None)
        if output is not None and self._order:
            # On the wire the output is an item of its own, added at the end.
            self._output_anchors.setdefault(output, self._order[-1])
        self.unknown_to_server.discard(item.item_id)
        if existing is not None:
            item_id, entry = existing
            before = entry.to_item()
            self._assign_response(item_id, entry, response_id)
            entry.merge(item if item.item_id == item_id else item.model_copy(update={"item_id": item_id}))
            entry.cached_item = None
            if not _has_same_content(before, entry.to_item()):
                self._mark_changed(entry)
            if item.previous_item_id is not None and entry.previous_id is None:
                self._move(item_id, item.previous_item_id)
            return False
        self._add(HistoryEntry(item, previous_id=item.previous_item_id, response_id=response_id))
        return True

    def append_delta(
        self, item_id: str, delta: str, response_id: str | None, *, content_index: int = 0, spoken: bool
    ) -> bool:
        """Append a delta to a message of the model. Returns True if that created the item."""
        if item_id in self._deleted_ids:
            return False
        entry = self._entries.get(item_id)
        new = entry is None
        if entry is None:
            content = AssistantAudio() if spoken else AssistantText()
            item = AssistantMessageItem(item_id=item_id, status="in_progress", content=[content])
            entry = self._add(HistoryEntry(item, response_id=response_id))
        elif entry.response_id is None:
            self._assign_response(item_id, entry, response_id)
        part = entry.parts.get(content_index) or entry.ensure_part(content_index, spoken=spoken)
        if part.final_text is None:
            part.deltas.append(delta)
            self.revision += 1
            entry.cached_item = None
        return new

    def set_text(self, item_id: str, text: str, *, content_index: int = 0) -> None:
        """Set the complete text of a part."""
        entry = self._entries.get(item_id)
        if entry is not None and isinstance(entry.item, AssistantMessageItem):
            entry.ensure_part(content_index, spoken=True).final_text = text
            self._mark_changed(entry)

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> float | None:
        """Record that no more than this was heard of a part.

        Returns how many more milliseconds than before were not heard; ``None`` if nothing has changed.
        """
        entry = self._entries.get(item_id)
        if entry is None or not isinstance(entry.item, AssistantMessageItem):
            return None
        part: HistoryPart = entry.ensure_part(content_index, spoken=True)
        if part.heard_ms is not None and part.heard_ms <= heard_ms:
            return None
        received_ms = self._clock.get_received_ms(item_id, content_index)
        before = received_ms if part.heard_ms is None else part.heard_ms
        part.truncate(heard_ms, received_ms)
        self._mark_changed(entry)
        return max(before - heard_ms, 0.0)

    def get_audio_end(self, item_id: str) -> tuple[int, float]:
        """Return the index of the last spoken part of an item, and how many milliseconds of it were received."""
        index = max(self.get_spoken_parts(item_id), default=0)
        return index, self._clock.get_received_ms(item_id, index)

    def find_parts_without_audio(self, response_id: str | None) -> list[tuple[str, int]]:
        """Return the spoken parts of an open response that have text and no audio."""
        return [
            (item_id, index)
            for item_id in self.get_open_messages(response_id)
            for index in self.get_spoken_parts(item_id)
            if not self._clock.has_received(item_id, index)
        ]

    def get_spoken_parts(self, item_id: str) -> list[int]:
        """Return the indexes of the spoken parts of an item."""
        entry = self._entries.get(item_id)
        return [] if entry is None else [index for index, part in entry.parts.items() if part.spoken]

    def set_transcript(self, item_id: str, transcript: str) -> bool:
        """Set the transcript of a message of the user. Returns True if that created the item."""
        if item_id in self._deleted_ids:
            return False
        entry = self._entries.get(item_id)
        if entry is None:
            part = InputText(text=transcript)
            self._add(HistoryEntry(UserMessageItem(item_id=item_id, content=[part])))
            return True
        if not isinstance(entry.item, UserMessageItem):
            return False
        content = [
            part.model_copy(update={"transcript": transcript}) if isinstance(part, InputAudio) else part
            for part in entry.item.content
        ] or [InputAudio(transcript=transcript)]
        entry.item = entry.item.model_copy(update={"content": content, "status": "completed"})
        self._mark_changed(entry)
        return False

    def mark_transcript_unavailable(self, item_id: str) -> None:
        """Record that a message of the user will have no transcript."""
        if item_id in self._entries:
            self._entries[item_id].transcript_unavailable = True

    def mark_all_transcripts_unavailable(self) -> None:
        """Record that no message so far will get its transcript: the connection that transcribes it is lost."""
        for entry in self._entries.values():
            entry.transcript_unavailable = entry.transcript_unavailable or isinstance(entry.item, UserMessageItem)

    def add_tool_call(self, call: RealtimeModelToolCallEvent) -> bool:
        """Add a tool call. Returns True if that created an item."""
        item = RealtimeToolCallItem(
            item_id=call.id or call.call_id,
            previous_item_id=call.previous_item_id,
            call_id=call.call_id,
            status="in_progress",
            arguments=call.arguments,
            name=call.name,
        )
        return self.upsert_item(item, response_id=call.response_id)

    def set_tool_output(self, call_id: str, output: str) -> None:
        """Set the output of a tool call."""
        entry = self._entries.get(self._call_item_ids.get(call_id, ""))
        if entry is not None and isinstance(entry.item, RealtimeToolCallItem):
            entry.item = entry.item.model_copy(update={"output": output, "status": "completed"})
            self._mark_changed(entry)

    def get_open_messages(self, response_id: str | None) -> list[str]:
        """Return the ids of the messages of a response that has not ended."""
        groups = (self._open_message_ids.get(key, ()) for key in dict.fromkeys((response_id, None)))
        return [item_id for group in groups for item_id in group if item_id in self._entries]

    def end_response(self, response_id: str | None, *, complete: bool) -> list[str]:
        """End the messages of a response. Returns their ids."""
        item_ids = self.get_open_messages(response_id)
        self._open_message_ids.pop(response_id, None)
        self._open_message_ids.pop(None, None)
        for item_id in item_ids:
            entry = self._entries[item_id]
            entry.ended = True
            if isinstance(entry.item, AssistantMessageItem) and entry.item.status in (None, "in_progress"):
                status = "completed" if complete else "incomplete"
                entry.item = entry.item.model_copy(update={"status": status})
            self._mark_changed(entry)
        return item_ids

    def begin_replay(self, items: Iterable[RealtimeItem], *, unknown_to_server: set[str]) -> None:
        """Record that a new connection is sent these items, each output right after its call."""
        self.unknown_to_server = unknown_to_server
        self._pending_resends.clear()
        for item in items:
            if (output := getattr(item, "output_item_id", None)) is not None:
                self._output_anchors[output] = item.item_id

    def get_last_wire_id(self, item: RealtimeItem) -> str:
        """Return the id that the next item follows on the wire: that of a call's output, if it is next to the call."""
        output = getattr(item, "output_item_id", None)
        return output if output is not None and self._output_anchors.get(output) == item.item_id else item.item_id

    def expect_resend(self, item_id: str) -> None:
        """Announce that an item is deleted at the server and sent again, so that :meth:`delete` keeps it."""
        self._pending_resends[item_id] += 1

    def delete(self, item_id: str) -> bool:
        """Delete an item. Returns True if there was one."""
        if self._pending_resends[item_id]:
            self._pending_resends[item_id] -= 1
            self.unknown_to_server.add(item_id)
            return False
        entry = self._entries.pop(item_id, None)
        if entry is None:
            return False
        self._order.remove(item_id)
        self._deleted_ids[item_id] = None
        self.reorder_count += 1
        if isinstance(entry.item, RealtimeToolCallItem) and entry.item.call_id is not None:
            self._call_item_ids.pop(entry.item.call_id, None)
        self._clock.forget(item_id, entry.parts)
        self.revision += 1
        return True

    def _find(self, item: RealtimeItem) -> tuple[str, HistoryEntry] | None:
        item_id = item.item_id
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            item_id = self._call_item_ids.get(item.call_id, item_id)
        entry = self._entries.get(item_id)
        return None if entry is None else (item_id, entry)

    def _add(self, entry: HistoryEntry) -> HistoryEntry:
        item = entry.item
        self._entries[item.item_id] = entry
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            self._call_item_ids[item.call_id] = item.item_id
        elif isinstance(item, AssistantMessageItem):
            if entry.response_id is None and item.status == "completed":
                entry.ended = True  # It belongs to no response of this session.
            else:
                self._open_message_ids.setdefault(entry.response_id, []).append(item.item_id)
        if entry.previous_id is not None:
            entry.previous_id = self._output_anchors.get(entry.previous_id, entry.previous_id)
        self._place(item.item_id, entry.previous_id)
        entry.load_content()
        self._mark_changed(entry)
        return entry

    def _assign_response(self, item_id: str, entry: HistoryEntry, response_id: str | None) -> None:
        """Assign a message to its response, which may be reported after the message itself."""
        unclaimed = self._open_message_ids.get(None, [])
        if response_id is not None and entry.response_id is None and item_id in unclaimed:
            unclaimed.remove(item_id)
            entry.response_id = response_id
            self._open_message_ids.setdefault(response_id, []).append(item_id)

    def _mark_changed(self, entry: HistoryEntry) -> None:
        self.revision += 1
        entry.cached_item = None

    def _place(self, item_id: str, previous_id: str | None) -> None:
        order = self._order
        if previous_id is None or (order and order[-1] == previous_id):
            order.append(item_id)
        elif previous_id in self._entries:
            self.reorder_count += 1
            order.insert(self._find_position_after(previous_id), item_id)
        else:
            order.append(item_id)
            self._orphans.setdefault(previous_id, []).append(item_id)
        for orphan in self._orphans.pop(item_id, ()):
            self._move(orphan, item_id)

    def _move(self, item_id: str, previous_id: str) -> None:
        """Move an item after ``previous_id``, together with the items that follow it by their ``previous_item_id``."""
        entry, previous_id = self._entries.get(item_id), self._output_anchors.get(previous_id, previous_id)
        if entry is None or item_id == previous_id:
            return
        entry.previous_id = previous_id
        if previous_id not in self._entries:
            self._orphans.setdefault(previous_id, []).append(item_id)
            return
        order = self._order
        start = order.index(item_id)
        if start == self._find_position_after(previous_id):
            return
        end = start + 1
        while end < len(order) and self._entries[order[end]].previous_id == order[end - 1]:
            end += 1
        block = order[start:end]
        if previous_id in block:
            return
        del order[start:end]
        position = self._find_position_after(previous_id)
        order[position:position] = block
        self.revision += 1
        self.reorder_count += 1

    def _find_position_after(self, previous_id: str) -> int:
        position = self._order.index(previous_id) + 1
        while position < len(self._order) and self._order[position] in self.unknown_to_server:
            position += 1
        return position


def _has_same_content(before: RealtimeItem, after: RealtimeItem) -> bool:
    """Compare two versions of an item without ``previous_item_id``: the history keeps the order itself."""
    return {**vars(before), "previous_item_id": None} == {**vars(after), "previous_item_id": None}
