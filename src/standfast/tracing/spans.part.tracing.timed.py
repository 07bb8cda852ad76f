"""Beginning and ending, and being the current place meanwhile, which follows tasks and threads as contexts do."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.tracing.processors import call_safely

if TYPE_CHECKING:
    from holdfast.tracing.spans import Span, Trace
    from holdfast.tracing.telemetry import OtelSpan

CURRENT_NODE: "ContextVar[Trace | Span[Any] | None]" = ContextVar("holdfast_tracing", default=None)


class TraceNode:
    """What begins, may be the current place meanwhile, and ends once, also when an error leaves it."""

    __slots__ = ("__weakref__", "_state", "_token", "error_type", "otel_span", "recorded")

    recorded: bool

    def __init__(self) -> None:
        self.error_type: str | None = None
        self.otel_span: OtelSpan | None = None
        self._token: Token[Trace | Span[Any] | None] | None = None
        self._state = "new"

    def start(self, mark_as_current: bool = False) -> None:
        """Begin. Starting what has been started changes nothing."""
        if self._state != "new":
            return
        self._state = "started"
        self._on_start()
        if mark_as_current:
            own: Any = self
            self._token = CURRENT_NODE.set(own)
            if self.otel_span is not None:
                call_safely(self.otel_span.attach)

    def finish(self, reset_current: bool = False) -> None:
        """End. With ``reset_current`` what was current before is current again."""
        if self._state == "started":
            self._state = "finished"
            self._on_finish()
        if reset_current and self._token is not None:
            token, self._token = self._token, None
            try:
                CURRENT_NODE.reset(token)
            except ValueError:
                return  # It ends in another context than it began in: nothing is current here because of it.
            if self.otel_span is not None:
                call_safely(self.otel_span.detach)

    def _on_start(self) -> None:
        raise NotImplementedError

    def _on_finish(self) -> None:
        raise NotImplementedError

    def record_exception(self, error: BaseException) -> None:
        """Say which error ended it."""
        self.error_type = type(error).__qualname__

    def __enter__(self) -> Self:
        self.start(mark_as_current=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            self.record_exception(error)
        self.finish(reset_current=True)
