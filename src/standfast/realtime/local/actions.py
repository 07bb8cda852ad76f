"""The output of the engine: frames for the client, and actions for the runner of the engine."""

from dataclasses import dataclass
from typing import Any, TypeAlias

Frame: TypeAlias = dict[str, Any]


class InvalidRequest(Exception):
    """An invalid request of the client, answered with an ``error`` frame. It changed nothing."""

    def __init__(self, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True)
class GenerateResponse:
    """Ask the responder for output and add it to the response."""

    response_id: str


@dataclass(frozen=True)
class CancelGeneration:
    """Stop the responder: the response has ended and further output is of no use."""

    response_id: str


@dataclass(frozen=True)
class TranscribeAudio:
    """Transcribe the audio of an item. ``audio`` is 16-bit mono PCM at 24 kHz."""

    item_id: str
    audio: bytes


@dataclass(frozen=True)
class CloseConnection:
    """Close the connection with this code."""

    code: int
    reason: str


Action: TypeAlias = GenerateResponse | CancelGeneration | TranscribeAudio | CloseConnection


class Outbox:
    """Numbers frames and keeps frames and actions in order until they are drained."""

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
        """Return everything since the last call."""
        drained, self._pending = self._pending, []
        return drained
