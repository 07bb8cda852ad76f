"""One response under guard: its words, how far they were found good, and its audio that waits for that. No I/O.

Audio that is held back may come before its words or behind them, and nothing says which belong together. But nobody
speaks at any speed: so many words take so long at the least, and so much audio can be let go when they were found good.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from unicodedata import east_asian_width

from holdfast.realtime.events import RealtimeAudio, RealtimeAudioEnd

FASTEST = 30
"""Letters and digits in a second that no voice exceeds: twice of what is usual, six words of five letters.

A letter of Chinese, Japanese or Korean is a syllable or more, and counts as two: nobody says fifteen of them.
"""


@dataclass(eq=False)
class Words:
    """What one part of an item says so far, up to where that was given to the guardrails and up to where it is good.

    ``let_go`` is how much of its audio was passed on, in milliseconds.
    """

    pieces: list[str] = field(default_factory=list)
    length: int = 0
    given: int = 0
    next_at: int = 0
    good: int = 0
    letters: int = 0
    complete: bool = False
    let_go: float = 0.0

    def add(self, delta: str) -> None:
        self.pieces.append(delta)
        self.length += len(delta)

    def are(self, text: str) -> None:
        """The words are complete, and perhaps others than those that came piece by piece."""
        if text and text != self.text():
            self.pieces, self.length = [text], len(text)
            self.given = self.good = self.letters = 0
        self.complete = True

    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def found_good(self, text: str) -> None:
        if len(text) > self.good and self.text().startswith(text):
            self.good, self.letters = len(text), _letters(text)

    def may_last(self, speed: float) -> float:
        """How many milliseconds of audio say no more than what was found good."""
        if self.complete and self.good == self.length:
            return math.inf
        return self.letters * 1000 / (FASTEST * speed)


def _letters(text: str) -> int:
    return sum(2 if east_asian_width(letter) == "W" else 1 for letter in text if letter.isalnum())


@dataclass(eq=False)
class Check:
    """Guardrails at work on these words: good, when all have answered, unless one of them was too late for that."""

    words: Words
    text: str
    unanswered: int
    good: bool = True


@dataclass
class Watch:
    """One response under guard: its words by item and part, and its audio that waits for the verdict on them, each
    piece with the milliseconds that it lasts.

    ``link`` is the number of the connection that it comes over. ``over``: it has ended. ``cut_short``: but not
    properly, so that audio may have come whose words never will. ``then`` is called when it is known what of it
    is heard.
    """

    link: int
    words: defaultdict[tuple[str, int], Words] = field(default_factory=lambda: defaultdict(Words))
    held: deque[tuple[RealtimeAudio | RealtimeAudioEnd, float]] = field(default_factory=deque)
    checks: deque[Check] = field(default_factory=deque)
    over: bool = False
    cut_short: bool = False
    then: Callable[[], None] | None = None
