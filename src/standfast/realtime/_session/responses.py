"""The responses of a session: the active one, earlier ones whose events may still arrive, and their guardrail state.

Held audio may arrive before or after its text, and the protocol does not say which text it speaks. But speech has a
maximum speed: text of a given length takes a minimum time to speak, so once the text has passed, that much audio can be
released.
"""

import asyncio
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from unicodedata import east_asian_width

from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.events import RealtimeAudio, RealtimeAudioEnd
from standfast.tracing.spans import Span

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


MAX_REMEMBERED_RESPONSES = 64
"""How many past responses can be found by their id."""

_UNNAMED_PREFIX = "unnamed-"


@dataclass(eq=False, slots=True)
class TrackedResponse:
    """One response of the model, bound to the agent whose settings applied when it started."""

    id: str
    resolved_agent: ResolvedAgent
    _: KW_ONLY
    started_at: float
    requested_at: float | None
    """When the user's turn ended or the response was requested, if known."""
    started: bool = False
    """Its start was reported. Without it, the response is known by a delta or an item only."""
    ended: bool = False
    lost: bool = False
    """It ended with its connection."""
    superseded: bool = False
    """Another response has started since."""
    retryable: bool = True
    """It was requested without options of its own: if it is lost, it can be requested again."""
    produced_output: bool = False
    """Audio of it was released, or it has written text or made calls."""
    awaiting_first_audio: bool = True
    """No audio of it was released yet."""
    last_audio_item_id: str | None = None
    muted: bool = False
    """No more of its audio is released."""
    tripped: bool = False
    """A guardrail has rejected it."""
    interrupted_at: float | None = None
    released_ms: dict[tuple[str, int], float] = field(default_factory=dict)
    """The milliseconds of audio passed to the program, by item and part; kept by the playback clock."""
    playback_ends_at: float = 0.0
    """When all its released audio will have played, on the clock of the event loop."""
    connection_number: int = 0
    """The number of the connection over which it came."""
    span: Span[Any] | None = None
    guarded: GuardedResponse | None = None
    _ended_event: asyncio.Event | None = None

    @property
    def needs_retry(self) -> bool:
        """Whether it was lost with its connection before any output, and was not stopped or superseded since."""
        return self.lost and self.retryable and not (self.produced_output or self.muted or self.superseded)

    async def wait_ended(self) -> None:
        if not self.ended:
            self._ended_event = self._ended_event or asyncio.Event()
            await self._ended_event.wait()

    def end(self) -> None:
        self.ended = True
        if self.span is not None:
            self.span.finish()
        if self._ended_event is not None:
            self._ended_event.set()


class ResponseRegistry:
    """The responses of a session by id. A model that sends no ids has one response at a time."""

    def __init__(self) -> None:
        self.active: TrackedResponse | None = None
        self.latest: TrackedResponse | None = None
        self.by_id: OrderedDict[str, TrackedResponse] = OrderedDict()
        self._unnamed_count = 0

    def begin(
        self, response_id: str | None, resolved_agent: ResolvedAgent, *, now: float, requested_at: float | None
    ) -> TrackedResponse | None:
        """Start a response. Returns ``None`` if it has already started or ended."""
        if response_id is None:
            self._unnamed_count += 1
            response_id = f"{_UNNAMED_PREFIX}{self._unnamed_count}"
        response = self.by_id.get(response_id)
        if response is None:
            response = TrackedResponse(response_id, resolved_agent, started_at=now, requested_at=requested_at)
            self._remember(response)
        elif response.started or response.ended:
            return None
        self._mark_latest(response)
        response.started = True
        self.active = response
        return response

    def end(self, response: TrackedResponse) -> None:
        if response is self.active:
            self.active = None
        response.end()

    def get(self, response_id: str | None) -> TrackedResponse | None:
        return None if response_id is None else self.by_id.get(response_id)

    def get_or_create(self, response_id: str | None, resolved_agent: ResolvedAgent, *, now: float) -> TrackedResponse:
        """Return the response with that id. One whose start was not reported begins with its first event.

        An active response that started without an id takes the first id that is used. A new response is not made the
        latest while another one is active: it is an older one.
        """
        response = self.active or self.latest if response_id is None else self.by_id.get(response_id)
        if (
            response is None
            and response_id is not None
            and self.active is not None
            and self.active.id.startswith(_UNNAMED_PREFIX)
        ):
            response = self.active
            response.id, self.by_id[response_id] = response_id, self.by_id.pop(response.id)
        if response is None:
            response = TrackedResponse(response_id or "unnamed", resolved_agent, started_at=now, requested_at=None)
            self._remember(response)
            if self.active is None:
                self._mark_latest(response)
        return response

    def find_by_audio(self, item_id: str, response_id: str | None) -> TrackedResponse | None:
        """Return the response that the audio of an item belongs to."""
        if response_id is not None:
            return self.by_id.get(response_id)
        for response in reversed(self.by_id.values()):
            if response.last_audio_item_id == item_id:
                return response
        return self.active

    def _mark_latest(self, response: TrackedResponse) -> None:
        if self.latest is not None and self.latest is not response:
            self.latest.superseded = True
        self.latest = response

    def _remember(self, response: TrackedResponse) -> None:
        self.by_id[response.id] = response
        while len(self.by_id) > MAX_REMEMBERED_RESPONSES:
            self.by_id.popitem(last=False)[1].end()
