"""Which responses there are: the active one, and those whose words, sounds and calls may still arrive."""

import asyncio
from collections import OrderedDict
from typing import Any

from holdfast.realtime.snapshot import Snapshot
from holdfast.tracing.spans import Span

REMEMBERED = 64
"""How many past responses are known by name."""


_UNNAMED = "unnamed-"


class Response:
    """One answer of the model, bound to the agent whose settings held when it began."""

    __slots__ = (
        "_over",
        "active",
        "asked_at",
        "began_at",
        "ended",
        "first_audio",
        "id",
        "interrupted_at",
        "item_id",
        "muted",
        "newer",
        "snapshot",
        "span",
        "spoke",
        "tripped",
    )

    def __init__(self, name: str, snapshot: Snapshot, *, began_at: float, asked_at: float | None) -> None:
        self.id, self.snapshot = name, snapshot
        self.began_at, self.asked_at = began_at, asked_at
        self.active = False
        self.ended = False
        self.newer = False
        self.first_audio = True
        self.spoke = False
        self.muted = False
        self.tripped = False
        self.interrupted_at: float | None = None
        self.item_id: str | None = None
        self.span: Span[Any] | None = None
        self._over: asyncio.Event | None = None

    async def over(self) -> None:
        """Until the response has ended."""
        if not self.ended:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

    def end(self) -> None:
        self.ended, self.active = True, False
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
        elif response.active or response.ended:
            return None
        response.active = True
        self.active = response
        return response

    def end(self, name: str | None) -> Response | None:
        """The response that is over now; ``None`` if there was no such response or it had ended before."""
        found = self.active if name is None else self.known.get(name)
        if found is None or found.ended:
            return None
        if found is self.active:
            self.active = None
        found.end()
        return found

    def get(self, name: str | None) -> Response | None:
        return None if name is None else self.known.get(name)

    def of(self, name: str | None, snapshot: Snapshot, *, now: float) -> Response:
        """The response of that name. One whose beginning was not told counts from its first sign of life.

        One that began without a name has the first that it is called by.
        """
        found = self.active or self.latest if name is None else self.known.get(name)
        if found is None and name is not None and self.active is not None and self.active.id.startswith(_UNNAMED):
            found = self.active
            found.id, self.known[name] = name, self.known.pop(found.id)
        if found is None:
            found = Response(name or "unnamed", snapshot, began_at=now, asked_at=None)
            self._remember(found)
        return found

    def playing(self, item_id: str, response_id: str | None) -> Response | None:
        """The response to which audio of an item belongs."""
        if response_id is not None:
            return self.known.get(response_id)
        for response in reversed(self.known.values()):
            if response.item_id == item_id:
                return response
        return self.active

    def _remember(self, response: Response) -> None:
        if self.latest is not None:
            self.latest.newer = True
        self.latest = self.known[response.id] = response
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)[1].end()
