"""What leaves the engine: frames for the client, and wishes to whoever runs the engine."""

from dataclasses import dataclass
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]


class Refused(Exception):
    """The client asked for something that cannot be. It is told so in an ``error`` frame; nothing was changed."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True)
class Ask:
    """Let the brain answer, and give its answer to the response."""

    response_id: str


@dataclass(frozen=True)
class Forget:
    """The response is over: what the brain would still say is of no use."""

    response_id: str


@dataclass(frozen=True)
class Transcribe:
    """Find out what was said in an item. ``audio`` is in the engine's own format."""

    item_id: str
    audio: bytes


@dataclass(frozen=True)
class HangUp:
    """Close the connection with this code."""

    code: int
    reason: str


Wish: TypeAlias = Ask | Forget | Transcribe | HangUp


class Outbox:
    """Numbers the frames and keeps them, with the wishes, in the order in which they came about."""

    def __init__(self) -> None:
        self._waiting: list[Frame | Wish] = []
        self._number = 0

    def tell(self, kind: str, **parts: Any) -> None:
        self._number += 1
        self._waiting.append({"type": kind, "event_id": f"event_{self._number}", **parts})

    def wish(self, wish: Wish) -> None:
        self._waiting.append(wish)

    def error(self, refused: Refused, *, event_id: str | None = None) -> None:
        error = {
            "type": "invalid_request_error",
            "code": refused.code,
            "message": refused.message,
            "param": refused.param,
            "event_id": event_id,
        }
        self.tell("error", error=error)

    def take(self) -> list[Frame | Wish]:
        """Everything since the last time."""
        taken, self._waiting = self._waiting, []
        return taken
