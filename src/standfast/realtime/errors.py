"""What can go wrong with a realtime connection, as types."""

from collections.abc import Sequence
from typing import Any

from standfast.agents.errors import UserError
from standfast.base.errors import StandfastError


def describe_error(error: Any) -> str:
    """What a server says in an error of its own."""
    return str(error.get("message") if isinstance(error, dict) else error)


class NotConnected(StandfastError, RuntimeError):
    """The model is not connected, so nothing can be said to it."""

    code = "realtime-not-connected"


class AlreadyConnected(StandfastError, RuntimeError):
    """The model has a connection; one model object serves one session at a time."""

    code = "realtime-already-connected"


class ApiKeyMissing(UserError):
    """There is no API key to connect with."""

    code = "realtime-key-missing"


class ConnectFailed(StandfastError, ConnectionError):
    """No connection came about and nothing is left open. ``status`` is the server's answer, if there was one."""

    code = "realtime-connect-failed"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ConnectionLost(StandfastError, ConnectionError):
    """The connection ended although nobody here asked for it."""

    code = "realtime-connection-lost"

    def __init__(self, message: str, *, close_code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.close_code, self.reason = close_code, reason


class SettingsRejected(StandfastError):
    """The server did not take the settings; the ones before hold. ``error`` is what it said."""

    code = "realtime-settings-rejected"

    def __init__(self, error: Any) -> None:
        super().__init__(f"the server rejected the session settings: {describe_error(error)}")
        self.error = error


class AcknowledgementTimeout(StandfastError, TimeoutError):
    """The server did not answer in time; whether it did what was asked is unknown."""

    code = "realtime-unacknowledged"

    def __init__(self, operation: str, seconds: float) -> None:
        super().__init__(f"the server did not acknowledge {operation} within {seconds:g} seconds")
        self.operation, self.seconds = operation, seconds


class ResponseRefused(StandfastError):
    """A response will not come. ``owners`` asked for it; ``error`` is what the server said, or why it said nothing.

    One that is not ``plain`` was asked for with wishes of its own.
    """

    code = "realtime-response-refused"

    def __init__(self, requesters: Sequence[str], error: Any, *, retryable: bool = True) -> None:
        super().__init__(f"there will be no response for {', '.join(requesters)}: {describe_error(error)}")
        self.requesters, self.error, self.retryable = tuple(requesters), error, retryable


class GuardrailTimedOut(StandfastError, TimeoutError):
    """A guardrail gave no verdict in time and was skipped. Audio held back for it is not heard."""

    code = "realtime-guardrail-timed-out"

    def __init__(self, guardrail: str, seconds: float) -> None:
        super().__init__(f"the guardrail {guardrail!r} gave no verdict within {seconds:g} seconds")
        self.guardrail, self.seconds = guardrail, seconds


class TooManyGuardrailTrips(StandfastError):
    """Guardrails refused so many answers in a row that no other one is asked for until the user says something."""

    code = "realtime-answers-refused"

    def __init__(self, guardrail: str, count: int) -> None:
        super().__init__(
            f"guardrails refused {count} answers in a row, the last one was {guardrail!r}: "
            "no other one is asked for before the user says something"
        )
        self.guardrail, self.count = guardrail, count


class BadFrame(StandfastError, ValueError):
    """A message of the server could not be read; it was skipped."""

    code = "realtime-bad-frame"

    def __init__(self, problem: str, frame: str) -> None:
        super().__init__(f"a message of the server could not be read: {problem}; it began with {frame[:80]!r}")
        self.problem, self.frame = problem, frame
