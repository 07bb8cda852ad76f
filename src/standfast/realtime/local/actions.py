"""What leaves the engine: frames for the client, and wishes to whoever runs the engine."""

from dataclasses import dataclass
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]


class InvalidRequest(Exception):
    """The client asked for something that cannot be. It is told so in an ``error`` frame; nothing was changed."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True)
class GenerateResponse:
    """Let the brain answer, and give its answer to the response."""

    response_id: str


@dataclass(frozen=True)
class CancelGeneration:
    """The response is over: what the brain would still say is of no use."""

    response_id: str


@dataclass(frozen=True)
class TranscribeAudio:
    """Find out what was said in an item. ``audio`` is in the engine's own format."""

    item_id: str
    audio: bytes


@dataclass(frozen=True)
class CloseConnection:
    """Close the connection with this code."""

    code: int
    reason: str


Action: TypeAlias = GenerateResponse | CancelGeneration | TranscribeAudio | CloseConnection


class Outbox:
    """Numbers the frames and keeps them, with the wishes, in the order in which they came about."""

    def __init__(self) -> None:
        self._pending: list[Frame | Action] = []
        self._event_count = 0

    def emit(self, event_type: str, **fields: Any) -> None:
        self._event_count += 1
        self._pending.append({"type": event_type, "event_id": f"event_{self._event_count}", **fields})

    def add_action(self, action: Action) -> None:
        self._pending.append(action)

    def emit_error(self, invalid_request: InvalidRequest, *, event_id: str | None = None) -> None:
        error = {
            "type": "invalid_request_error",
            "code": invalid_request.code,
            "message": invalid_request.message,
            "param": invalid_request.param,
            "event_id": event_id,
        }
        self.emit("error", error=error)

    def drain(self) -> list[Frame | Action]:
        """Everything since the last time."""
        taken, self._pending = self._pending, []
        return taken
