"""Links: short messages between the runtimes that use one store, beside the store.

A link delivers at most once, and in order for each sender. A lost message was a hint: its receiver
finds the same in the store, only later.
"""

import asyncio
from typing import Protocol

MAX_PENDING_BYTES = 4 * 2**20
"""How much may wait to be sent before further messages are dropped."""


class LinkUnavailable(Exception):
    """There is no link for this store; the message says why."""


class LinkListener(Protocol):
    """The receiving end. Its methods are called on the event loop and must not raise."""

    def receive(self, sender: str, data: bytes) -> None: ...

    def note_loss(self, sender: str | None) -> None:
        """Take note that messages of the sender, or of all, may have been lost. A sender that ended is such a loss."""
        ...


class Link(Protocol):
    """An open link. Sending never waits and never raises; what cannot be sent is dropped."""

    def send(self, to: str, data: bytes) -> None: ...

    def broadcast(self, data: bytes) -> None:
        """Send to all others that have a link to the same store now."""
        ...

    async def close(self) -> None:
        """Send what waits, if that takes no long time, and close."""
        ...


class MemoryLink:
    """A link between the runtimes that share one store in memory, all in one process."""

    def __init__(self, links: dict[str, "MemoryLink"], name: str, listener: LinkListener) -> None:
        self._links, self._name, self._listener = links, name, listener
        self._loop = asyncio.get_running_loop()
        links[name] = self

    def send(self, to: str, data: bytes) -> None:
        peer = self._links.get(to)
        if peer is not None:
            peer._loop.call_soon_threadsafe(peer._deliver, self._name, data)

    def broadcast(self, data: bytes) -> None:
        for name in [name for name in self._links if name != self._name]:
            self.send(name, data)

    def _deliver(self, sender: str, data: bytes) -> None:
        if self._links.get(self._name) is self:
            self._listener.receive(sender, data)

    async def close(self) -> None:
        self._links.pop(self._name, None)
        for peer in self._links.values():
            peer._loop.call_soon_threadsafe(peer._listener.note_loss, self._name)
