"""Errors of realtime connections and sessions."""

from collections.abc import Sequence
from typing import Any

from standfast.agents.errors import UserError
from standfast.base.errors import StandfastError


def describe_error(error: Any) -> str:
    """Return the message of an error that a server has sent."""
    return str(error.get("message") if isinstance(error, dict) else error)


class NotConnected(StandfastError, RuntimeError):
    """The model is not connected, so nothing can be sent."""

    code = "realtime-not-connected"


class AlreadyConnected(StandfastError, RuntimeError):
    """The model is already connected. A model object serves one session at a time."""

    code = "realtime-already-connected"


class ApiKeyMissing(UserError):
    """No API key is set."""

    code = "realtime-key-missing"


class ConnectFailed(StandfastError, ConnectionError):
    """The connection could not be made; nothing is left open. ``status`` is the HTTP status, if there was one."""

    code = "realtime-connect-failed"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ConnectionLost(StandfastError, ConnectionError):
    """The connection ended although this side did not close it."""

    code = "realtime-connection-lost"

    def __init__(self, message: str, *, close_code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.close_code, self.reason = close_code, reason


class SettingsRejected(StandfastError):
    """The server rejected the settings; the previous ones still apply. ``error`` is the server's error."""

    code = "realtime-settings-rejected"

    def __init__(self, error: Any) -> None:
        super().__init__(f"the server rejected the session settings: {describe_error(error)}")
        self.error = error


class AcknowledgementTimeout(StandfastError, TimeoutError):
    """The server did not acknowledge a request in time; its effect is unknown."""

    code = "realtime-unacknowledged"

    def __init__(self, operation: str, seconds: float) -> None:
        super().__init__(f"the server did not acknowledge {operation} within {seconds:g} seconds")
        self.operation, self.seconds = operation, seconds


class ResponseRefused(StandfastError):
    """A requested response did not start. ``error`` is the server's error, or the reason why there was no answer.

    ``requesters`` are those who requested it. It is ``retryable`` if it was requested without options of its own.
    """

    code = "realtime-response-refused"

    def __init__(self, requesters: Sequence[str], error: Any, *, retryable: bool = True) -> None:
        super().__init__(f"the response requested by {', '.join(requesters)} did not start: {describe_error(error)}")
        self.requesters, self.error, self.retryable = tuple(requesters), error, retryable


class GuardrailTimedOut(StandfastError, TimeoutError):
    """A guardrail did not finish in time and was skipped. Audio held back for it is not heard."""

    code = "realtime-guardrail-timed-out"

    def __init__(self, guardrail: str, seconds: float) -> None:
        super().__init__(f"the guardrail {guardrail!r} did not finish within {seconds:g} seconds")
        self.guardrail, self.seconds = guardrail, seconds


class TooManyGuardrailTrips(StandfastError):
    """Guardrails rejected too many responses in a row. None is requested before the user's next turn."""

    code = "realtime-answers-refused"

    def __init__(self, guardrail: str, count: int) -> None:
        super().__init__(
            f"guardrails rejected {count} responses in a row, the last one by {guardrail!r}; "
            "no further response is requested before the user's next turn"
        )
        self.guardrail, self.count = guardrail, count


class BadFrame(StandfastError, ValueError):
    """A message of the server was invalid and was skipped."""

    code = "realtime-bad-frame"

    def __init__(self, problem: str, frame: str) -> None:
        super().__init__(f"the server sent an invalid message: {problem}; it starts with {frame[:80]!r}")
        self.problem, self.frame = problem, frame
