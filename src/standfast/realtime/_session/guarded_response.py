"""The guardrail state of one response: its text, how much of it has passed, and its held audio. Sans I/O.

Held audio may arrive before or after its text, and the protocol does not say which text it speaks. But speech has a
maximum speed: text of a given length takes a minimum time to speak, so once the text has passed, that much audio can be
released.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from standfast.realtime.events import RealtimeAudio, RealtimeAudioEnd

MAX_LETTERS_PER_SECOND = 30
"""Letters and digits per second that no voice exceeds: six words of five letters, twice the usual speed.

A Chinese, Japanese or Korean character is at least a syllable and counts as two.
"""


@dataclass(eq=False)
class GuardedText:
    """The text of one part so far, how much of it was submitted to the guardrails, and how much has passed."""

    deltas: list[str] = field(default_factory=list)
    length: int = 0
    submitted_length: int = 0
    next_check_at: int = 0
    passed_length: int = 0
    passed_letters: int = 0
    complete: bool = False

    def append(self, delta: str) -> None:
        self.deltas.append(delta)
        self.length += len(delta)

    def set_final_text(self, text: str) -> None:
        """Set the complete text. If it differs from the deltas, it has to pass again."""
        if text and text != self.get_text():
            self.deltas, self.length = [text], len(text)
            self.submitted_length = self.passed_length = self.passed_letters = 0
        self.complete = True

    def get_text(self) -> str:
        if len(self.deltas) > 1:
            self.deltas = ["".join(self.deltas)]
        return self.deltas[0] if self.deltas else ""

    def mark_passed(self, text: str) -> None:
        if len(text) > self.passed_length and self.get_text().startswith(text):
            self.passed_length, self.passed_letters = len(text), _count_letters(text)

    def get_releasable_ms(self, speed: float) -> float:
        """Return how many milliseconds of audio speak no more than the text that has passed."""
        if self.complete and self.passed_length == self.length:
            return math.inf
        return self.passed_letters * 1000 / (MAX_LETTERS_PER_SECOND * speed)


def _count_letters(text: str) -> int:
    return sum(2 if east_asian_width(letter) == "W" else 1 for letter in text if letter.isalnum())


@dataclass(eq=False)
class GuardrailCheck:
    """One run of all guardrails on a text. It has passed if none tripped and none timed out."""

    guarded_text: GuardedText
    text: str
    pending_count: int
    passed: bool = True


@dataclass
class GuardedResponse:
    """The guardrail state of one response: texts by item and part, checks, and held audio with its milliseconds.

    ``incomplete`` means that the response ended without completing, so that audio may have no text.
    ``on_settled`` is called once it is known what of the response is heard.
    """

    connection_number: int
    texts: defaultdict[tuple[str, int], GuardedText] = field(default_factory=lambda: defaultdict(GuardedText))
    held_audio: deque[tuple[RealtimeAudio | RealtimeAudioEnd, float]] = field(default_factory=deque)
    checks: deque[GuardrailCheck] = field(default_factory=deque)
    ended: bool = False
    incomplete: bool = False
    on_settled: Callable[[], None] | None = None
