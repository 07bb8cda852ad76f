"""Which responses there are: the active one, and those whose words, sounds and calls may still arrive."""

import asyncio
from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass
from typing import Any

from standfast.realtime._session.guarded_response import GuardedResponse
from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.tracing.spans import Span

MAX_REMEMBERED_RESPONSES = 64
"""How many past responses are known by name."""

_UNNAMED_PREFIX = "unnamed-"


@dataclass(eq=False, slots=True)
class TrackedResponse:
    """One answer of the model, bound to the agent whose settings held when it began."""

    id: str
    resolved_agent: ResolvedAgent
    _: KW_ONLY
    started_at: float
    requested_at: float | None
    """When the user had asked, as far as that is known."""
    started: bool = False
    """Its beginning was told, and not only something of it."""
    ended: bool = False
    lost: bool = False
    """It went with its connection."""
    superseded: bool = False
    """Another one has begun since."""
    retryable: bool = True
    """Asked for without wishes of its own: if it is lost, another one can stand for it."""
    produced_output: bool = False
    """Sounds of it were passed on, or written words or calls of it came."""
    awaiting_first_audio: bool = True
    """No audio of it was passed on yet."""
    last_audio_item_id: str | None = None
    """The item of which audio came last."""
    muted: bool = False
    """No more of its audio is passed on."""
    tripped: bool = False
    """A guardrail has refused it."""
    interrupted_at: float | None = None
    playback_ends_at: float = 0.0
    """When all that was passed on of it will have been heard."""
    connection_number: int = 0
    """The number of the connection that it came over."""
    span: Span[Any] | None = None
    guarded: GuardedResponse | None = None
    _ended_event: asyncio.Event | None = None

    @property
    def needs_retry(self) -> bool:
        """Whether it went with its connection before anything of it was heard, and nobody has stopped it since."""
        return self.lost and self.retryable and not (self.produced_output or self.muted or self.superseded)

    async def wait_ended(self) -> None:
        """Until the response has ended."""
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
    """The responses of a session by id; a model that names none still has one at a time."""

    def __init__(self) -> None:
        self.active: TrackedResponse | None = None
        self.latest: TrackedResponse | None = None
        self.by_id: OrderedDict[str, TrackedResponse] = OrderedDict()
        self._unnamed_count = 0

    def begin(
        self, response_id: str | None, resolved_agent: ResolvedAgent, *, now: float, requested_at: float | None
    ) -> TrackedResponse | None:
        """The response that begins now; ``None`` if that was told before, or after its end."""
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
        """The response of that name. One whose beginning was not told counts from its first sign of life.

        One that began without a name has the first that it is called by. While another is active, it is an older one.
        """
        found = self.active or self.latest if response_id is None else self.by_id.get(response_id)
        if (
            found is None
            and response_id is not None
            and self.active is not None
            and self.active.id.startswith(_UNNAMED_PREFIX)
        ):
            found = self.active
            found.id, self.by_id[response_id] = response_id, self.by_id.pop(found.id)
        if found is None:
            found = TrackedResponse(response_id or "unnamed", resolved_agent, started_at=now, requested_at=None)
            self._remember(found)
            if self.active is None:
                self._mark_latest(found)
        return found

    def find_by_audio(self, item_id: str, response_id: str | None) -> TrackedResponse | None:
        """The response to which audio of an item belongs."""
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
