"""What was said in a session, in order. Pure: events in, items out; a delta costs the same however long the call.

Items stand where ``previous_item_id`` puts them, also when the item before them is told later. What the model
generated and what the user heard of it are kept apart, and the history shows the latter.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from standfast.base.collections import BoundedDict
from standfast.realtime._session.history_entries import HistoryEntry, HistoryPart
from standfast.realtime.audio import PCM16, AudioFormat
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
"""How many deleted items are known by name: of the latest, something may still be told."""


class ConversationHistory:
    """The history of one session. ``revision`` grows with every change; methods that may add an item say so."""

    def __init__(self) -> None:
        self.revision = 0
        self.reorder_count = 0
        """How often an item came to stand elsewhere than at the end, or went."""
        self.unknown_to_server: set[str] = set()
        """Items of which the present connection knows nothing: what it tells of stands behind them."""
        self._bytes_per_ms = PCM16.bytes_per_ms
        self._entries: dict[str, HistoryEntry] = {}
        self._order: list[str] = []
        self._orphans: dict[str, list[str]] = {}
        self._call_item_ids: dict[str, str] = {}
        self._open_message_ids: dict[str | None, list[str]] = {}
        self._received_ms: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._output_anchors: dict[str, str] = {}
        self._pending_resends: Counter[str] = Counter()
        self._deleted_ids: BoundedDict[str, None] = BoundedDict(MAX_DELETED_IDS)
        self._cached_items: tuple[int, list[RealtimeItem]] = (0, [])

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def iter_entries(self, start: int = 0) -> Iterator[tuple[str, HistoryEntry]]:
        """The entries in order, from the given place on."""
        for index in range(start, len(self._order)):
            yield self._order[index], self._entries[self._order[index]]

    def get_items(self) -> list[RealtimeItem]:
        """The history as it is now. The list is the caller's, and its items never change."""
        if self._cached_items[0] != self.revision:
            self._cached_items = (self.revision, [self._entries[name].to_item() for name in self._order])
        return list(self._cached_items[1])

    def get_item(self, item_id: str) -> RealtimeItem:
        return self._entries[item_id].to_item()

    def upsert_item(self, item: RealtimeItem, *, response_id: str | None = None) -> bool:
        """The model told of an item. True if it is new.

        What a response says of one that was deleted meanwhile does not bring it back; a new item of its name does.
        """
        if response_id is not None and item.item_id in self._deleted_ids:
            return False
        self._deleted_ids.pop(item.item_id, None)
        known = self._find(item)
        output = getattr(item, "output_item_id", None)
        if output is not None and self._order:
            # On the wire the output is an item of its own, at the end of what there is now.
            self._output_anchors.setdefault(output, self._order[-1])
        self.unknown_to_server.discard(item.item_id)
        if known is not None:
            name, entry = known
            before = entry.to_item()
            self._assign_response(name, entry, response_id)
            entry.merge(item if item.item_id == name else item.model_copy(update={"item_id": name}))
            entry.cached_item = None
            if not _has_same_content(before, entry.to_item()):
                self._mark_changed(entry)
            if item.previous_item_id is not None and entry.previous_id is None:
                self._move(name, item.previous_item_id)
            return False
        self._add(HistoryEntry(item, previous_id=item.previous_item_id, response_id=response_id))
        return True

    def append_delta(
        self, item_id: str, delta: str, response_id: str | None, *, content_index: int = 0, spoken: bool
    ) -> bool:
        """The next words of an answer. True if that made a new item."""
        if item_id in self._deleted_ids:
            return False
        entry = self._entries.get(item_id)
        new = entry is None
        if entry is None:
            part = AssistantAudio() if spoken else AssistantText()
            item = AssistantMessageItem(item_id=item_id, status="in_progress", content=[part])
            entry = self._add(HistoryEntry(item, response_id=response_id))
        elif entry.response_id is None:
            self._assign_response(item_id, entry, response_id)
        said = entry.parts.get(content_index) or entry.ensure_part(content_index, spoken=spoken)
        if said.final_text is None:
            said.deltas.append(delta)
            self.revision += 1
            entry.cached_item = None
        return new

    def set_text(self, item_id: str, text: str, *, content_index: int = 0) -> None:
        """The words of this part are complete."""
        entry = self._entries.get(item_id)
        if entry is not None and isinstance(entry.item, AssistantMessageItem):
            entry.ensure_part(content_index, spoken=True).final_text = text
            self._mark_changed(entry)

    def set_audio_format(self, format: AudioFormat | None) -> None:
        """From now on audio comes in this format, if it is a known one."""
        if format is not None:
            self._bytes_per_ms = format.bytes_per_ms

    def add_audio(self, item_id: str, content_index: int, byte_count: int) -> float:
        """So many further bytes of audio came. Gives how many milliseconds they last."""
        lasts = byte_count / self._bytes_per_ms
        self._received_ms[item_id, content_index] += lasts
        return lasts

    def truncate(self, item_id: str, content_index: int, heard_ms: int) -> float | None:
        """The user heard no more than this. Gives how many more milliseconds than known were in vain, or ``None``."""
        entry = self._entries.get(item_id)
        if entry is None or not isinstance(entry.item, AssistantMessageItem):
            return None
        part: HistoryPart = entry.ensure_part(content_index, spoken=True)
        if part.heard_ms is not None and part.heard_ms <= heard_ms:
            return None
        sent_ms = self._received_ms.get((item_id, content_index), 0.0)
        before = sent_ms if part.heard_ms is None else part.heard_ms
        part.truncate(heard_ms, sent_ms)
        self._mark_changed(entry)
        return max(before - heard_ms, 0.0)

    def get_audio_end(self, item_id: str) -> tuple[int, float]:
        """The last part of an item that is speech, and how many milliseconds of it came."""
        index = max(self.get_spoken_parts(item_id), default=0)
        return index, self._received_ms.get((item_id, index), 0.0)

    def find_parts_without_audio(self, response_id: str | None) -> list[tuple[str, int]]:
        """The parts of a response that is not over whose words came without any audio."""
        parts = [(name, index) for name in self.get_open_messages(response_id) for index in self.get_spoken_parts(name)]
        return [part for part in parts if part not in self._received_ms]

    def get_spoken_parts(self, item_id: str) -> list[int]:
        """Which parts of an item are speech."""
        entry = self._entries.get(item_id)
        return [] if entry is None else [index for index, part in entry.parts.items() if part.spoken]

    def set_transcript(self, item_id: str, transcript: str) -> bool:
        """What the user said, in writing. True if that made a new item."""
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
        """There will be no transcript of this."""
        if item_id in self._entries:
            self._entries[item_id].transcript_unavailable = True

    def mark_all_transcripts_unavailable(self) -> None:
        """Whoever would have transcribed what was said so far is gone."""
        for entry in self._entries.values():
            entry.transcript_unavailable = entry.transcript_unavailable or isinstance(entry.item, UserMessageItem)

    def add_tool_call(self, call: RealtimeModelToolCallEvent) -> bool:
        """The model made a call. True if that made a new item."""
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
        """A call has its output."""
        entry = self._entries.get(self._call_item_ids.get(call_id, ""))
        if entry is not None and isinstance(entry.item, RealtimeToolCallItem):
            entry.item = entry.item.model_copy(update={"output": output, "status": "completed"})
            self._mark_changed(entry)

    def get_open_messages(self, response_id: str | None) -> list[str]:
        """The names of the answers of a response that is not over."""
        told = (self._open_message_ids.get(name, ()) for name in dict.fromkeys((response_id, None)))
        return [name for names in told for name in names if name in self._entries]

    def end_response(self, response_id: str | None, *, complete: bool) -> list[str]:
        """A response is over, and with it its answers; gives their names."""
        names = self.get_open_messages(response_id)
        self._open_message_ids.pop(response_id, None)
        self._open_message_ids.pop(None, None)
        for name in names:
            entry = self._entries[name]
            entry.ended = True
            if isinstance(entry.item, AssistantMessageItem) and entry.item.status in (None, "in_progress"):
                status = "completed" if complete else "incomplete"
                entry.item = entry.item.model_copy(update={"status": status})
            self._mark_changed(entry)
        return names

    def begin_replay(self, items: Iterable[RealtimeItem], *, unknown_to_server: set[str]) -> None:
        """A new connection is told of these items, each output right behind its call, and not of the ``untold``."""
        self.unknown_to_server = unknown_to_server
        self._pending_resends.clear()
        for item in items:
            if (output := getattr(item, "output_item_id", None)) is not None:
                self._output_anchors[output] = item.item_id

    def get_last_wire_id(self, item: RealtimeItem) -> str:
        """What follows an item follows this: the output of a call, unless that stands elsewhere."""
        output = getattr(item, "output_item_id", None)
        return output if output is not None and self._output_anchors.get(output) == item.item_id else item.item_id

    def expect_resend(self, item_id: str) -> None:
        """The server is going to be told anew of an item: that it forgets it first is no loss."""
        self._pending_resends[item_id] += 1

    def delete(self, item_id: str) -> bool:
        """The server has forgotten an item. True if it was known."""
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
        for index in entry.parts:
            self._received_ms.pop((item_id, index), None)
        self.revision += 1
        return True

    def _find(self, item: RealtimeItem) -> tuple[str, HistoryEntry] | None:
        name = item.item_id
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            name = self._call_item_ids.get(item.call_id, name)
        entry = self._entries.get(name)
        return None if entry is None else (name, entry)

    def _add(self, entry: HistoryEntry) -> HistoryEntry:
        item = entry.item
        self._entries[item.item_id] = entry
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            self._call_item_ids[item.call_id] = item.item_id
        elif isinstance(item, AssistantMessageItem):
            if entry.response_id is None and item.status == "completed":
                entry.ended = True  # It was said before, or by nobody here: no response has it.
            else:
                self._open_message_ids.setdefault(entry.response_id, []).append(item.item_id)
        if entry.previous_id is not None:
            entry.previous_id = self._output_anchors.get(entry.previous_id, entry.previous_id)
        self._place(item.item_id, entry.previous_id)
        entry.load_content()
        self._mark_changed(entry)
        return entry

    def _assign_response(self, item_id: str, entry: HistoryEntry, response_id: str | None) -> None:
        """To which response an answer belongs may be told after the answer itself."""
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
        """Put an item after ``previous``, and with it those that follow it by their own word."""
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
        place = self._find_position_after(previous_id)
        order[place:place] = block
        self.revision += 1
        self.reorder_count += 1

    def _find_position_after(self, previous_id: str) -> int:
        place = self._order.index(previous_id) + 1
        while place < len(self._order) and self._order[place] in self.unknown_to_server:
            place += 1
        return place


def _has_same_content(before: RealtimeItem, after: RealtimeItem) -> bool:
    """Whether an item that was told again says nothing new. Its place is the history's order, not its own word."""
    return {**vars(before), "previous_item_id": None} == {**vars(after), "previous_item_id": None}
