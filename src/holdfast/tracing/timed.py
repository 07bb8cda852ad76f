"""Beginning and ending, and being the current place meanwhile, which follows tasks and threads as contexts do."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.tracing.processors import contained

if TYPE_CHECKING:
    from holdfast.tracing.spans import Span, Trace
    from holdfast.tracing.telemetry import Mirror

PLACE: "ContextVar[Trace | Span[Any] | None]" = ContextVar("holdfast_tracing", default=None)


class Timed:
    """What begins, may be the current place meanwhile, and ends once, also when an error leaves it."""

    __slots__ = ("__weakref__", "_state", "_token", "error_type", "mirror", "recorded")

    recorded: bool

    def __init__(self) -> None:
        self.error_type: str | None = None
        self.mirror: Mirror | None = None
        self._token: Token[Trace | Span[Any] | None] | None = None
        self._state = "new"

    def start(self, mark_as_current: bool = False) -> None:
        """Begin. Starting what has been started changes nothing."""
        if self._state != "new":
            return
        self._state = "started"
        self._begin()
        if mark_as_current:
            own: Any = self
            self._token = PLACE.set(own)
            if self.mirror is not None:
                contained(self.mirror.enter)

    def finish(self, reset_current: bool = False) -> None:
        """End. With ``reset_current`` what was current before is current again."""
        if self._state == "started":
            self._state = "finished"
            self._end()
        if reset_current and self._token is not None:
            token, self._token = self._token, None
            try:
                PLACE.reset(token)
            except ValueError:
                return  # It ends in another context than it began in: nothing is current here because of it.
            if self.mirror is not None:
                contained(self.mirror.leave)

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Say which error ended it."""
        self.error_type = type(error).__qualname__

    def __enter__(self) -> Self:
        self.start(mark_as_current=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail(error)
        self.finish(reset_current=True)
