"""What frames travel on: a socket, a pair of queues, a recording."""

from typing import Protocol


class TransportClosed(Exception):
    """The other side is gone. ``error`` is what happened to the link, if that is known."""

    def __init__(self, code: int | None, reason: str, error: Exception | None = None) -> None:
        super().__init__(f"the link was closed ({code}): {reason or 'no reason given'}")
        self.code, self.reason, self.error = code, reason, error

    @property
    def is_clean(self) -> bool:
        """Whether it said goodbye, and not because something went wrong."""
        return self.code in (1000, 1001)


class Transport(Protocol):
    """Frames both ways, in order. One task sends and one receives."""

    async def send(self, frame: bytes) -> None:
        """Hand over a frame, waiting while the other side takes none. Raises ``LinkClosed``."""

    async def receive(self) -> bytes | str:
        """The next frame. Raises ``LinkClosed`` when there will be none."""

    async def close(self) -> bool | None:
        """End the link, soon and whatever the other side does. True if that took no leave: it was cut."""
