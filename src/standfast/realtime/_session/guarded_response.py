"""One response under guard: its words, how far they were found good, and its audio that waits for that. No I/O.

Audio that is held back may come before its words or behind them, and nothing says which belong together. But nobody
speaks at any speed: so many words take so long at the least, and so much audio can be let go when they were found good.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from standfast.realtime.events import RealtimeAudio, RealtimeAudioEnd

MAX_LETTERS_PER_SECOND = 30
"""Letters and digits in a second that no voice exceeds: twice of what is usual, six words of five letters.

A letter of Chinese, Japanese or Korean is a syllable or more, and counts as two: nobody says fifteen of them.
"""


@dataclass(eq=False)
class GuardedText:
    """What one part of an item says so far, up to where that was given to the guardrails and up to where it is good.

    ``let_go`` is how much of its audio was passed on, in milliseconds.
    """

    deltas: list[str] = field(default_factory=list)
    length: int = 0
    submitted_length: int = 0
    next_check_at: int = 0
    passed_length: int = 0
    passed_letters: int = 0
    complete: bool = False
    released_ms: float = 0.0

    def append(self, delta: str) -> None:
        self.deltas.append(delta)
        self.length += len(delta)

    def set_final_text(self, text: str) -> None:
        """The words are complete, and perhaps others than those that came piece by piece."""
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
        """How many milliseconds of audio say no more than what was found good."""
        if self.complete and self.passed_length == self.length:
            return math.inf
        return self.passed_letters * 1000 / (MAX_LETTERS_PER_SECOND * speed)


def _count_letters(text: str) -> int:
    return sum(2 if east_asian_width(letter) == "W" else 1 for letter in text if letter.isalnum())


@dataclass(eq=False)
class GuardrailCheck:
    """Guardrails at work on these words: good, when all have answered, unless one of them was too late for that."""

    guarded_text: GuardedText
    text: str
    pending_count: int
    passed: bool = True


@dataclass
class GuardedResponse:
    """One response under guard: its words by item and part, and its audio that waits for the verdict on them, each
    piece with the milliseconds that it lasts.

    ``link`` is the number of the connection that it comes over. ``over``: it has ended. ``cut_short``: but not
    properly, so that audio may have come whose words never will. ``then`` is called when it is known what of it
    is heard.
    """

    connection_number: int
    texts: defaultdict[tuple[str, int], GuardedText] = field(default_factory=lambda: defaultdict(GuardedText))
    held_audio: deque[tuple[RealtimeAudio | RealtimeAudioEnd, float]] = field(default_factory=deque)
    checks: deque[GuardrailCheck] = field(default_factory=deque)
    ended: bool = False
    incomplete: bool = False
    on_settled: Callable[[], None] | None = None
