"""What was said in a session, in order. Pure: events in, items out; a delta costs the same however long the call.

Items stand where ``previous_item_id`` puts them, also when the item before them is told later. What the model
generated and what the user heard of it are kept apart, and the history shows the latter.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from holdfast.realtime.audio import PCM16, AudioFormat
from holdfast.realtime.entries import Entry, Said
from holdfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputText,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)
from holdfast.realtime.latest import Latest
from holdfast.realtime.model_events import RealtimeModelToolCallEvent

DELETED = 64
"""How many deleted items are known by name: of the latest, something may still be told."""


class Ledger:
    """The history of one session. ``revision`` grows with every change; methods that may add an item say so."""

    def __init__(self) -> None:
        self.revision = 0
        self.reordered = 0
        """How often an item came to stand elsewhere than at the end, or went."""
        self.untold: set[str] = set()
        """Items of which the present connection knows nothing: what it tells of stands behind them."""
        self._bytes_per_ms = PCM16.bytes_per_ms
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []
        self._orphans: dict[str, list[str]] = {}
        self._calls: dict[str, str] = {}
        self._answers: dict[str | None, list[str]] = {}
        self._sent_ms: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._outputs: dict[str, str] = {}
        self._retold: Counter[str] = Counter()
        self._deleted: Latest[str, None] = Latest(DELETED)
        self._snapshot: tuple[int, list[RealtimeItem]] = (0, [])

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def entries(self, start: int = 0) -> Iterator[tuple[str, Entry]]:
        """The entries in order, from the given place on."""
        for index in range(start, len(self._order)):
            yield self._order[index], self._entries[self._order[index]]

    def items(self) -> list[RealtimeItem]:
        """The history as it is now. The list is the caller's, and its items never change."""
        if self._snapshot[0] != self.revision:
            self._snapshot = (self.revision, [self._entries[name].shown() for name in self._order])
        return list(self._snapshot[1])

    def item(self, item_id: str) -> RealtimeItem:
        return self._entries[item_id].shown()

    def tell(self, item: RealtimeItem, *, response_id: str | None = None) -> bool:
        """The model told of an item. True if it is new.

        What a response says of one that was deleted meanwhile does not bring it back; a new item of its name does.
        """
        if response_id is not None and item.item_id in self._deleted:
            return False
        self._deleted.pop(item.item_id, None)
        known = self._known(item)
        output = getattr(item, "output_item_id", None)
        if output is not None and self._order:
            # On the wire the output is an item of its own, at the end of what there is now.
            self._outputs.setdefault(output, self._order[-1])
        self.untold.discard(item.item_id)
        if known is not None:
            name, entry = known
            before = entry.shown()
            self._belongs(name, entry, response_id)
            entry.take_in(item if item.item_id == name else item.model_copy(update={"item_id": name}))
            entry.view = None
            if not _reads_the_same(before, entry.shown()):
                self._change(entry)
            if item.previous_item_id is not None and entry.previous is None:
                self._move(name, item.previous_item_id)
            return False
        self._add(Entry(item, previous=item.previous_item_id, response_id=response_id))
        return True

    def say(self, item_id: str, delta: str, response_id: str | None, *, content_index: int = 0, spoken: bool) -> bool:
        """The next words of an answer. True if that made a new item."""
        if item_id in self._deleted:
            return False
        entry = self._entries.get(item_id)
        new = entry is None
        if entry is None:
            part = AssistantAudio() if spoken else AssistantText()
            item = AssistantMessageItem(item_id=item_id, status="in_progress", content=[part])
            entry = self._add(Entry(item, response_id=response_id))
        elif entry.response_id is None:
            self._belongs(item_id, entry, response_id)
        said = entry.said.get(content_index) or entry.part(content_index, spoken=spoken)
        if said.final is None:
            said.pieces.append(delta)
            self.revision += 1
            entry.view = None
        return new

    def said(self, item_id: str, text: str, *, content_index: int = 0) -> None:
        """The words of this part are complete."""
        entry = self._entries.get(item_id)
        if entry is not None and isinstance(entry.item, AssistantMessageItem):
            entry.part(content_index, spoken=True).final = text
            self._change(entry)

    def use_format(self, format: AudioFormat | None) -> None:
        """From now on audio comes in this format, if it is a known one."""
        if format is not None:
            self._bytes_per_ms = format.bytes_per_ms

    def sent_audio(self, item_id: str, content_index: int, length: int) -> float:
        """So many further bytes of audio came. Gives how many milliseconds they last."""
        lasts = length / self._bytes_per_ms
        self._sent_ms[item_id, content_index] += lasts
        return lasts

    def cut(self, item_id: str, content_index: int, heard_ms: int) -> float | None:
        """The user heard no more than this. Gives how many more milliseconds than known were in vain, or ``None``."""
        entry = self._entries.get(item_id)
        if entry is None or not isinstance(entry.item, AssistantMessageItem):
            return None
        part: Said = entry.part(content_index, spoken=True)
        if part.heard_ms is not None and part.heard_ms <= heard_ms:
            return None
        sent_ms = self._sent_ms.get((item_id, content_index), 0.0)
        before = sent_ms if part.heard_ms is None else part.heard_ms
        part.cut(heard_ms, sent_ms)
        self._change(entry)
        return max(before - heard_ms, 0.0)

    def end_of(self, item_id: str) -> tuple[int, float]:
        """The last part of an item that is speech, and how many milliseconds of it came."""
        index = max(self.spoken(item_id), default=0)
        return index, self._sent_ms.get((item_id, index), 0.0)

    def unvoiced(self, response_id: str | None) -> list[tuple[str, int]]:
        """The parts of a response that is not over whose words came without any audio."""
        parts = [(name, index) for name in self.answers(response_id) for index in self.spoken(name)]
        return [part for part in parts if part not in self._sent_ms]

    def spoken(self, item_id: str) -> list[int]:
        """Which parts of an item are speech."""
        entry = self._entries.get(item_id)
        return [] if entry is None else [index for index, part in entry.said.items() if part.spoken]

    def transcribed(self, item_id: str, transcript: str) -> bool:
        """What the user said, in writing. True if that made a new item."""
        if item_id in self._deleted:
            return False
        entry = self._entries.get(item_id)
        if entry is None:
            part = InputText(text=transcript)
            self._add(Entry(UserMessageItem(item_id=item_id, content=[part])))
            return True
        if not isinstance(entry.item, UserMessageItem):
            return False
        content = [
            part.model_copy(update={"transcript": transcript}) if isinstance(part, InputAudio) else part
            for part in entry.item.content
        ] or [InputAudio(transcript=transcript)]
        entry.item = entry.item.model_copy(update={"content": content, "status": "completed"})
        self._change(entry)
        return False

    def not_transcribed(self, item_id: str) -> None:
        """There will be no transcript of this."""
        if item_id in self._entries:
            self._entries[item_id].inaudible = True

    def no_more_transcripts(self) -> None:
        """Whoever would have transcribed what was said so far is gone."""
        for entry in self._entries.values():
            entry.inaudible = entry.inaudible or isinstance(entry.item, UserMessageItem)

    def called(self, call: RealtimeModelToolCallEvent) -> bool:
        """The model made a call. True if that made a new item."""
        item = RealtimeToolCallItem(
            item_id=call.id or call.call_id,
            previous_item_id=call.previous_item_id,
            call_id=call.call_id,
            status="in_progress",
            arguments=call.arguments,
            name=call.name,
        )
        return self.tell(item, response_id=call.response_id)

    def answered(self, call_id: str, output: str) -> None:
        """A call has its output."""
        entry = self._entries.get(self._calls.get(call_id, ""))
        if entry is not None and isinstance(entry.item, RealtimeToolCallItem):
            entry.item = entry.item.model_copy(update={"output": output, "status": "completed"})
            self._change(entry)

    def answers(self, response_id: str | None) -> list[str]:
        """The names of the answers of a response that is not over."""
        told = (self._answers.get(name, ()) for name in dict.fromkeys((response_id, None)))
        return [name for names in told for name in names if name in self._entries]

    def ended(self, response_id: str | None, *, complete: bool) -> list[str]:
        """A response is over, and with it its answers; gives their names."""
        names = self.answers(response_id)
        self._answers.pop(response_id, None)
        self._answers.pop(None, None)
        for name in names:
            entry = self._entries[name]
            entry.ended = True
            if isinstance(entry.item, AssistantMessageItem) and entry.item.status in (None, "in_progress"):
                status = "completed" if complete else "incomplete"
                entry.item = entry.item.model_copy(update={"status": status})
            self._change(entry)
        return names

    def replayed(self, items: Iterable[RealtimeItem], *, untold: set[str]) -> None:
        """A new connection is told of these items, each output right behind its call, and not of the ``untold``."""
        self.untold = untold
        self._retold.clear()
        for item in items:
            if (output := getattr(item, "output_item_id", None)) is not None:
                self._outputs[output] = item.item_id

    def last_of(self, item: RealtimeItem) -> str:
        """What follows an item follows this: the output of a call, unless that stands elsewhere."""
        output = getattr(item, "output_item_id", None)
        return output if output is not None and self._outputs.get(output) == item.item_id else item.item_id

    def retold(self, item_id: str) -> None:
        """The server is going to be told anew of an item: that it forgets it first is no loss."""
        self._retold[item_id] += 1

    def delete(self, item_id: str) -> bool:
        """The server has forgotten an item. True if it was known."""
        if self._retold[item_id]:
            self._retold[item_id] -= 1
            self.untold.add(item_id)
            return False
        entry = self._entries.pop(item_id, None)
        if entry is None:
            return False
        self._order.remove(item_id)
        self._deleted[item_id] = None
        self.reordered += 1
        if isinstance(entry.item, RealtimeToolCallItem) and entry.item.call_id is not None:
            self._calls.pop(entry.item.call_id, None)
        for index in entry.said:
            self._sent_ms.pop((item_id, index), None)
        self.revision += 1
        return True

    def _known(self, item: RealtimeItem) -> tuple[str, Entry] | None:
        name = item.item_id
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            name = self._calls.get(item.call_id, name)
        entry = self._entries.get(name)
        return None if entry is None else (name, entry)

    def _add(self, entry: Entry) -> Entry:
        item = entry.item
        self._entries[item.item_id] = entry
        if isinstance(item, RealtimeToolCallItem) and item.call_id is not None:
            self._calls[item.call_id] = item.item_id
        elif isinstance(item, AssistantMessageItem):
            if entry.response_id is None and item.status == "completed":
                entry.ended = True  # It was said before, or by nobody here: no response has it.
            else:
                self._answers.setdefault(entry.response_id, []).append(item.item_id)
        if entry.previous is not None:
            entry.previous = self._outputs.get(entry.previous, entry.previous)
        self._place(item.item_id, entry.previous)
        entry.begin()
        self._change(entry)
        return entry

    def _belongs(self, name: str, entry: Entry, response_id: str | None) -> None:
        """To which response an answer belongs may be told after the answer itself."""
        unclaimed = self._answers.get(None, [])
        if response_id is not None and entry.response_id is None and name in unclaimed:
            unclaimed.remove(name)
            entry.response_id = response_id
            self._answers.setdefault(response_id, []).append(name)

    def _change(self, entry: Entry) -> None:
        self.revision += 1
        entry.view = None

    def _place(self, name: str, previous: str | None) -> None:
        order = self._order
        if previous is None or (order and order[-1] == previous):
            order.append(name)
        elif previous in self._entries:
            self.reordered += 1
            order.insert(self._behind(previous), name)
        else:
            order.append(name)
            self._orphans.setdefault(previous, []).append(name)
        for orphan in self._orphans.pop(name, ()):
            self._move(orphan, name)

    def _move(self, name: str, previous: str) -> None:
        """Put an item after ``previous``, and with it those that follow it by their own word."""
        entry, previous = self._entries.get(name), self._outputs.get(previous, previous)
        if entry is None or name == previous:
            return
        entry.previous = previous
        if previous not in self._entries:
            self._orphans.setdefault(previous, []).append(name)
            return
        order = self._order
        start = order.index(name)
        if start == self._behind(previous):
            return
        end = start + 1
        while end < len(order) and self._entries[order[end]].previous == order[end - 1]:
            end += 1
        block = order[start:end]
        if previous in block:
            return
        del order[start:end]
        place = self._behind(previous)
        order[place:place] = block
        self.revision += 1
        self.reordered += 1

    def _behind(self, previous: str) -> int:
        place = self._order.index(previous) + 1
        while place < len(self._order) and self._order[place] in self.untold:
            place += 1
        return place


def _reads_the_same(before: RealtimeItem, after: RealtimeItem) -> bool:
    """Whether an item that was told again says nothing new. Its place is the history's order, not its own word."""
    return {**vars(before), "previous_item_id": None} == {**vars(after), "previous_item_id": None}
