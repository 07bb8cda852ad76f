"""One item of a ledger: what was generated, what was heard of it, and how it is shown."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from standfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    InputText,
    RealtimeItem,
    RealtimeToolCallItem,
    UserMessageItem,
)

_MS_PER_LETTER = 65  # 150 words in a minute


@dataclass(eq=False, slots=True)
class HistoryPart:
    """One part of an answer. ``heard`` stays apart from what was generated once playback was cut."""

    spoken: bool
    deltas: list[str] = field(default_factory=list)
    final_text: str | None = None
    """The whole text, once it was told: pieces are of no interest then."""
    heard_text: str | None = None
    heard_ms: int | None = None

    @property
    def generated_text(self) -> str:
        if self.final_text is None and len(self.deltas) > 1:
            self.deltas = ["".join(self.deltas)]
        return self.final_text if self.final_text is not None else "".join(self.deltas)

    @property
    def text(self) -> str:
        """What counts: the heard part of what was cut, else all of it."""
        return self.generated_text if self.heard_text is None else self.heard_text

    def truncate(self, heard_ms: int, received_ms: float) -> None:
        """Playback stopped after so many of the milliseconds that had been sent."""
        self.heard_ms = heard_ms
        self.heard_text = estimate_heard_text(self.generated_text, heard_ms, received_ms)

    def to_content(self) -> AssistantAudio | AssistantText:
        if not self.spoken:
            return AssistantText(text=self.text)
        if self.heard_text is None:
            return AssistantAudio(transcript=self.text)
        return AssistantAudio(
            transcript=self.heard_text, generated_transcript=self.generated_text, audio_end_ms=self.heard_ms
        )


def estimate_heard_text(text: str, heard_ms: float, received_ms: float) -> str:
    """The words that fit into what was heard, if speech runs evenly over what was sent. Never half a word.

    Speech that was heard although nothing was sent here, as in a telephone call, is taken to be of usual speed.
    """
    if heard_ms <= 0:
        return ""
    lasts_ms = received_ms if received_ms > 0 else len(text) * _MS_PER_LETTER
    if heard_ms >= lasts_ms:
        return text
    end = int(len(text) * heard_ms / lasts_ms)
    while 0 < end < len(text) and not text[end].isspace() and not text[end - 1].isspace():
        end -= 1
    return text[:end].rstrip()


@dataclass(eq=False, slots=True)
class HistoryEntry:
    """An item with its place. ``item`` is as the model told it; ``shown`` is what a reader of the history sees."""

    item: RealtimeItem
    _: KW_ONLY
    previous_id: str | None = None
    response_id: str | None = None
    parts: dict[int, HistoryPart] = field(default_factory=dict)
    ended: bool = False
    """Nothing more will be said in it."""
    transcript_unavailable: bool = False
    """Nobody will transcribe what the user said in it."""
    cached_item: RealtimeItem | None = None
    """What readers are shown, once it was made; whoever changes something takes it away."""

    def to_item(self) -> RealtimeItem:
        """The item for readers: another object after every change."""
        if self.cached_item is None:
            self.cached_item = self._build_item()
        return self.cached_item

    def ensure_part(self, content_index: int, *, spoken: bool) -> HistoryPart:
        found = self.parts.get(content_index)
        if found is None:
            found = self.parts[content_index] = HistoryPart(spoken=spoken)
        return found

    def merge(self, item: RealtimeItem) -> None:
        """The model told of the item again. What it leaves out was known before and stays."""
        if isinstance(item, AssistantMessageItem) and isinstance(self.item, AssistantMessageItem):
            self._merge_content(item)
            if self.ended and self.item.status == "incomplete":
                # A server that was told what there is of an answer takes that for all of it.
                item = item.model_copy(update={"status": "incomplete"})
        elif isinstance(item, UserMessageItem) and isinstance(self.item, UserMessageItem):
            item = _merge_user_message(item, self.item)
        elif isinstance(item, RealtimeToolCallItem) and isinstance(self.item, RealtimeToolCallItem):
            output = self.item.output if item.output is None else item.output
            item = item.model_copy(update={"output": output, "status": "completed"}) if output is not None else item
        self.item = item

    def load_content(self) -> None:
        """Take in what the item says at its first appearance."""
        if isinstance(self.item, AssistantMessageItem):
            self._merge_content(self.item)

    def _merge_content(self, item: AssistantMessageItem) -> None:
        for index, told in enumerate(item.content):
            spoken = isinstance(told, AssistantAudio)
            text = told.transcript if isinstance(told, AssistantAudio) else told.text
            part = self.ensure_part(index, spoken=spoken)
            if text is None or text == "" or (part.final_text and len(text) < len(part.final_text)):
                continue
            if part.heard_text is not None and len(text) < len(part.generated_text):
                # The server keeps what was heard, and knows better; but of nothing, nothing was heard.
                part.heard_text = text if part.heard_ms else ""
            else:
                part.final_text = text

    def _build_item(self) -> RealtimeItem:
        item = self.item
        if not isinstance(item, AssistantMessageItem) or not self.parts:
            return item
        content: list[Any] = [self.parts[index].to_content() for index in sorted(self.parts)]
        cut = any(part.heard_text is not None for part in self.parts.values())
        return item.model_copy(update={"content": content, **({"status": "incomplete"} if cut else {})})


def _merge_user_message(new: UserMessageItem, known: UserMessageItem) -> UserMessageItem:
    content: list[Any] = list(new.content) or list(known.content)
    transcripts = [part.transcript for part in known.content if isinstance(part, InputAudio)]
    # What was said may have been told before there was an item of it.
    transcripts = transcripts or [part.text for part in known.content if isinstance(part, InputText)]
    spoken = [index for index, part in enumerate(content) if isinstance(part, InputAudio)]
    for index, transcript in zip(spoken, transcripts, strict=False):
        if content[index].transcript is None and transcript is not None:
            content[index] = content[index].model_copy(update={"transcript": transcript})
    shown = {part.image_url for part in content if isinstance(part, InputImage)}
    missing = [part for part in known.content if isinstance(part, InputImage) and part.image_url not in shown]
    return new.model_copy(update={"content": [*missing, *content]})
