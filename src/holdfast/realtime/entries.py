"""One item of a ledger: what was generated, what was heard of it, and how it is shown."""

from typing import Any

from holdfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)


class Said:
    """One part of an answer. ``heard`` stays apart from what was generated once playback was cut."""

    __slots__ = ("final", "heard", "heard_ms", "pieces", "spoken")

    def __init__(self, *, spoken: bool) -> None:
        self.spoken = spoken
        self.pieces: list[str] = []
        self.final: str | None = None
        self.heard: str | None = None
        self.heard_ms: int | None = None

    @property
    def generated(self) -> str:
        if self.final is None and len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.final if self.final is not None else "".join(self.pieces)

    @property
    def text(self) -> str:
        """What counts: the heard part of what was cut, else all of it."""
        return self.generated if self.heard is None else self.heard

    def cut(self, heard_ms: int, sent_ms: float) -> None:
        """Playback stopped after so many of the milliseconds that had been sent."""
        self.heard_ms = heard_ms
        self.heard = heard_part(self.generated, heard_ms, sent_ms)

    def shown(self) -> AssistantAudio | AssistantText:
        if not self.spoken:
            return AssistantText(text=self.text)
        if self.heard is None:
            return AssistantAudio(transcript=self.text)
        apart: dict[str, Any] = {"generated_transcript": self.generated, "audio_end_ms": self.heard_ms}
        return AssistantAudio(transcript=self.heard, **apart)


def heard_part(text: str, heard_ms: float, sent_ms: float) -> str:
    """The words that fit into what was heard, if speech runs evenly over what was sent. Never half a word."""
    if heard_ms <= 0 or sent_ms <= 0:
        return ""
    if heard_ms >= sent_ms:
        return text
    end = int(len(text) * heard_ms / sent_ms)
    while 0 < end < len(text) and not text[end].isspace() and not text[end - 1].isspace():
        end -= 1
    return text[:end].rstrip()


class Entry:
    """An item with its place. ``item`` is as the model told it; ``shown`` is what a reader of the history sees."""

    __slots__ = ("_shown", "ended", "inaudible", "item", "previous", "response_id", "revision", "said")

    def __init__(self, item: RealtimeItem, *, previous: str | None, response_id: str | None) -> None:
        self.item = item
        self.previous = previous
        self.response_id = response_id
        self.said: dict[int, Said] = {}
        self.ended = False
        self.inaudible = False
        self.revision = 0
        self._shown: RealtimeItem | None = None

    def changed(self, revision: int) -> None:
        self.revision, self._shown = revision, None

    def shown(self) -> RealtimeItem:
        """The item for readers: an object of its own for every revision."""
        if self._shown is None:
            self._shown = self._merged()
        return self._shown

    def part(self, content_index: int, *, spoken: bool) -> Said:
        found = self.said.get(content_index)
        if found is None:
            found = self.said[content_index] = Said(spoken=spoken)
        return found

    def take_in(self, item: RealtimeItem) -> None:
        """The model told of the item again. What it leaves out was known before and stays."""
        if isinstance(item, AssistantMessageItem) and isinstance(self.item, AssistantMessageItem):
            self._take_in_answer(item)
        elif isinstance(item, UserMessageItem) and isinstance(self.item, UserMessageItem):
            item = _with_known_parts(item, self.item)
        elif isinstance(item, RealtimeToolCallItem) and isinstance(self.item, RealtimeToolCallItem):
            output = self.item.output if item.output is None else item.output
            item = item.model_copy(update={"output": output, "status": "completed"}) if output is not None else item
        self.item = item

    def begin(self) -> None:
        """Take in what the item says at its first appearance."""
        if isinstance(self.item, AssistantMessageItem):
            self._take_in_answer(self.item)

    def _take_in_answer(self, item: AssistantMessageItem) -> None:
        for index, told in enumerate(item.content):
            spoken = isinstance(told, AssistantAudio)
            text = told.transcript if isinstance(told, AssistantAudio) else told.text
            part = self.part(index, spoken=spoken)
            if text is None or text == "" or (part.final and len(text) < len(part.final)):
                continue
            if part.heard is not None and len(text) < len(part.generated):
                # The server keeps what was heard, and knows better; but of nothing, nothing was heard.
                part.heard = text if part.heard_ms else ""
            else:
                part.final = text

    def _merged(self) -> RealtimeItem:
        item = self.item
        if not isinstance(item, AssistantMessageItem) or not self.said:
            return item
        content: list[Any] = [self.said[index].shown() for index in sorted(self.said)]
        cut = any(part.heard is not None for part in self.said.values())
        return item.model_copy(update={"content": content, **({"status": "incomplete"} if cut else {})})


def _with_known_parts(new: UserMessageItem, known: UserMessageItem) -> UserMessageItem:
    content: list[Any] = list(new.content) or list(known.content)
    transcripts = [part.transcript for part in known.content if isinstance(part, InputAudio)]
    spoken = [index for index, part in enumerate(content) if isinstance(part, InputAudio)]
    for index, transcript in zip(spoken, transcripts, strict=False):
        if content[index].transcript is None and transcript is not None:
            content[index] = content[index].model_copy(update={"transcript": transcript})
    shown = {part.image_url for part in content if isinstance(part, InputImage)}
    missing = [part for part in known.content if isinstance(part, InputImage) and part.image_url not in shown]
    return new.model_copy(update={"content": [*missing, *content]})
