"""Which responses there are: the active one, and those whose words, sounds and calls may still arrive."""

import asyncio
from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass
from typing import Any

from holdfast.realtime.snapshot import Snapshot
from holdfast.realtime.watch import Watch
from holdfast.tracing.spans import Span

REMEMBERED = 64
"""How many past responses are known by name."""

_UNNAMED = "unnamed-"


@dataclass(eq=False, slots=True)
class Response:
    """One answer of the model, bound to the agent whose settings held when it began."""

    id: str
    snapshot: Snapshot
    _: KW_ONLY
    began_at: float
    asked_at: float | None
    """When the user had asked, as far as that is known."""
    begun: bool = False
    """Its beginning was told, and not only something of it."""
    ended: bool = False
    lost: bool = False
    """It went with its connection."""
    newer: bool = False
    """Another one has begun since."""
    plain: bool = True
    """Asked for without wishes of its own: if it is lost, another one can stand for it."""
    spoke: bool = False
    """Sounds of it were passed on, or written words or calls of it came."""
    first_audio: bool = True
    """No audio of it was passed on yet."""
    item_id: str | None = None
    """The item of which audio came last."""
    muted: bool = False
    """No more of its audio is passed on."""
    tripped: bool = False
    """A guardrail has refused it."""
    interrupted_at: float | None = None
    heard_by: float = 0.0
    """When all that was passed on of it will have been heard."""
    link: int = 0
    """The number of the connection that it came over."""
    span: Span[Any] | None = None
    watch: Watch | None = None
    _over: asyncio.Event | None = None

    @property
    def owed(self) -> bool:
        """Whether it went with its connection before anything of it was heard, and nobody has stopped it since."""
        return self.lost and self.plain and not (self.spoke or self.muted or self.newer)

    async def over(self) -> None:
        """Until the response has ended."""
        if not self.ended:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    def end(self) -> None:
        self.ended = True
        if self.span is not None:
            self.span.finish()
        if self._over is not None:
            self._over.set()


class Responses:
    """The responses of a session by id; a model that names none still has one at a time."""

    def __init__(self) -> None:
        self.active: Response | None = None
        self.latest: Response | None = None
        self.known: OrderedDict[str, Response] = OrderedDict()
        self._unnamed = 0

    def begin(self, name: str | None, snapshot: Snapshot, *, now: float, asked_at: float | None) -> Response | None:
        """The response that begins now; ``None`` if that was told before, or after its end."""
        if name is None:
            self._unnamed += 1
            name = f"{_UNNAMED}{self._unnamed}"
        response = self.known.get(name)
        if response is None:
            response = Response(name, snapshot, began_at=now, asked_at=asked_at)
            self._remember(response)
        elif response.begun or response.ended:
            return None
        self._is_newest(response)
        response.begun = True
        self.active = response
        return response

    def end(self, response: Response) -> None:
        if response is self.active:
            self.active = None
        response.end()

    def get(self, name: str | None) -> Response | None:
        return None if name is None else self.known.get(name)

    def of(self, name: str | None, snapshot: Snapshot, *, now: float) -> Response:
        """The response of that name. One whose beginning was not told counts from its first sign of life.

        One that began without a name has the first that it is called by. While another is active, it is an older one.
        """
        found = self.active or self.latest if name is None else self.known.get(name)
        if found is None and name is not None and self.active is not None and self.active.id.startswith(_UNNAMED):
            found = self.active
            found.id, self.known[name] = name, self.known.pop(found.id)
        if found is None:
            found = Response(name or "unnamed", snapshot, began_at=now, asked_at=None)
            self._remember(found)
            if self.active is None:
                self._is_newest(found)
        return found

    def playing(self, item_id: str, response_id: str | None) -> Response | None:
        """The response to which audio of an item belongs."""
        if response_id is not None:
            return self.known.get(response_id)
        for response in reversed(self.known.values()):
            if response.item_id == item_id:
                return response
        return self.active

    def _is_newest(self, response: Response) -> None:
        if self.latest is not None and self.latest is not response:
            self.latest.newer = True
        self.latest = response

    def _remember(self, response: Response) -> None:
        self.known[response.id] = response
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)[1].end()
