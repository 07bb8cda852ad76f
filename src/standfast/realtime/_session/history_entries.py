"""The entries of the conversation history: generated text, heard text, and the item that shows them."""

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

_MS_PER_LETTER = 65  # 150 words per minute


@dataclass(eq=False, slots=True)
class HistoryPart:
    """One content part of a message of the model. After a truncation, heard and generated text differ."""

    spoken: bool
    deltas: list[str] = field(default_factory=list)
    final_text: str | None = None
    """The complete text, once it is known. It replaces the deltas."""
    heard_text: str | None = None
    heard_ms: int | None = None
    max_heard_chars: int = 0
    """The longest text that the model can say was heard, as the audio was truncated where it was."""

    @property
    def generated_text(self) -> str:
        if self.final_text is None and len(self.deltas) > 1:
            self.deltas = ["".join(self.deltas)]
        return self.final_text if self.final_text is not None else "".join(self.deltas)

    @property
    def text(self) -> str:
        """The heard text if the part was truncated, else the generated text."""
        return self.generated_text if self.heard_text is None else self.heard_text

    def truncate(self, heard_ms: int, received_ms: float) -> None:
        """Record that playback stopped after ``heard_ms`` of the ``received_ms`` of audio."""
        self.heard_ms = heard_ms
        self.heard_text = estimate_heard_text(self.generated_text, heard_ms, received_ms)
        self.max_heard_chars = len(self.heard_text) * 5 // 4 + 4 if heard_ms > 0 else 0

    def to_content(self) -> AssistantAudio | AssistantText:
        if not self.spoken:
            return AssistantText(text=self.text)
        if self.heard_text is None:
            return AssistantAudio(transcript=self.text)
        return AssistantAudio(
            transcript=self.heard_text, generated_transcript=self.generated_text, audio_end_ms=self.heard_ms
        )


def estimate_heard_text(text: str, heard_ms: float, received_ms: float) -> str:
    """Estimate the words that were heard, assuming constant speed. A partial word is left out.

    If no audio was received here, as in a telephone call, the usual speed of speech is assumed.
    """
    if heard_ms <= 0:
        return ""
    duration_ms = received_ms if received_ms > 0 else len(text) * _MS_PER_LETTER
    if heard_ms >= duration_ms:
        return text
    end = int(len(text) * heard_ms / duration_ms)
    while 0 < end < len(text) and not text[end].isspace() and not text[end - 1].isspace():
        end -= 1
    return text[:end].rstrip()


@dataclass(eq=False, slots=True)
class HistoryEntry:
    """An item with its position. ``item`` is the item of the model; :meth:`to_item` returns it with the heard text."""

    item: RealtimeItem
    _: KW_ONLY
    previous_id: str | None = None
    response_id: str | None = None
    parts: dict[int, HistoryPart] = field(default_factory=dict)
    ended: bool = False
    """Its response has ended."""
    transcript_unavailable: bool = False
    """The transcript of the user's audio will not arrive."""
    cached_item: RealtimeItem | None = None
    """The result of :meth:`to_item`. Every change resets it."""

    def to_item(self) -> RealtimeItem:
        """Return the item for readers. After a change it is a new object."""
        if self.cached_item is None:
            self.cached_item = self._build_item()
        return self.cached_item

    def ensure_part(self, content_index: int, *, spoken: bool) -> HistoryPart:
        """Return the part, which may be new. Nothing was heard of one that follows a truncated part."""
        part = self.parts.get(content_index)
        if part is None:
            cut = any(other.heard_ms is not None for index, other in self.parts.items() if index < content_index)
            part = self.parts[content_index] = HistoryPart(spoken=spoken)
            if cut:
                part.heard_text, part.heard_ms = "", 0
        return part

    def merge(self, item: RealtimeItem) -> None:
        """Apply a later version of the item. Content that it lacks is kept."""
        if isinstance(item, AssistantMessageItem) and isinstance(self.item, AssistantMessageItem):
            self._merge_content(item)
            if self.ended and self.item.status == "incomplete":
                # A server that got an incomplete message in a replay reports it as complete.
                item = item.model_copy(update={"status": "incomplete"})
        elif isinstance(item, UserMessageItem) and isinstance(self.item, UserMessageItem):
            item = _merge_user_message(item, self.item)
        elif isinstance(item, RealtimeToolCallItem) and isinstance(self.item, RealtimeToolCallItem):
            output = self.item.output if item.output is None else item.output
            item = item.model_copy(update={"output": output, "status": "completed"}) if output is not None else item
        self.item = item

    def load_content(self) -> None:
        """Read the content of a new item."""
        if isinstance(self.item, AssistantMessageItem):
            self._merge_content(self.item)

    def _merge_content(self, item: AssistantMessageItem) -> None:
        for index, content in enumerate(item.content):
            spoken = isinstance(content, AssistantAudio)
            text = content.transcript if isinstance(content, AssistantAudio) else content.text
            part = self.ensure_part(index, spoken=spoken)
            if text is None or text == "" or (part.final_text and len(text) < len(part.final_text)):
                continue
            if part.heard_text is not None and len(text) < len(part.generated_text):
                # The server truncates the transcript more precisely, but what is much longer was not truncated.
                if len(text) <= part.max_heard_chars:
                    part.heard_text = text
            else:
                part.final_text = text

    def _build_item(self) -> RealtimeItem:
        item = self.item
        if not isinstance(item, AssistantMessageItem) or not self.parts:
            return item
        content: list[Any] = [self.parts[index].to_content() for index in sorted(self.parts)]
        truncated = any(part.heard_text is not None for part in self.parts.values())
        return item.model_copy(update={"content": content, **({"status": "incomplete"} if truncated else {})})


def _merge_user_message(new: UserMessageItem, old: UserMessageItem) -> UserMessageItem:
    content: list[Any] = list(new.content) or list(old.content)
    transcripts = [part.transcript for part in old.content if isinstance(part, InputAudio)]
    # The transcript may have arrived before the item, and is a text part then.
    transcripts = transcripts or [part.text for part in old.content if isinstance(part, InputText)]
    spoken = [index for index, part in enumerate(content) if isinstance(part, InputAudio)]
    for index, transcript in zip(spoken, transcripts, strict=False):
        if content[index].transcript is None and transcript is not None:
            content[index] = content[index].model_copy(update={"transcript": transcript})
    shown = {part.image_url for part in content if isinstance(part, InputImage)}
    missing = [part for part in old.content if isinstance(part, InputImage) and part.image_url not in shown]
    return new.model_copy(update={"content": [*missing, *content]})
