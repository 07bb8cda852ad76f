"""Trace processors, and the process-wide state of tracing."""

import atexit
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelBridge
    from standfast.tracing.provider import TraceProvider
    from standfast.tracing.spans import Span, Trace

log = get_logger("standfast.tracing")


class TracingProcessor(ABC):
    """Receives traces and spans when they start and end.

    The methods are called in the task or thread of the traced work, so they must not block. Exceptions are logged and
    do not affect the run.
    """

    @abstractmethod
    def on_trace_start(self, trace: "Trace") -> None:
        """Called when a trace has started."""

    @abstractmethod
    def on_trace_end(self, trace: "Trace") -> None:
        """Called when a trace has ended."""

    @abstractmethod
    def on_span_start(self, span: "Span[Any]") -> None:
        """Called when a span has started."""

    @abstractmethod
    def on_span_end(self, span: "Span[Any]") -> None:
        """Called when a span has ended."""

    @abstractmethod
    def shutdown(self) -> None:
        """Send the remaining data and release all resources. Called when the program ends."""

    @abstractmethod
    def force_flush(self) -> None:
        """Send the collected data now."""


class TracingState:
    """The tracing configuration of this process."""

    processors: tuple[TracingProcessor, ...] = ()
    disabled: bool = False
    atexit_registered: bool = False
    provider: "TraceProvider | None" = None

    @classmethod
    def set_processors(cls, processors: Sequence[TracingProcessor]) -> None:
        """Replace the processors, and shut them down when the program ends."""
        cls.processors = tuple(processors)
        if processors:
            cls.register_atexit()

    @classmethod
    def register_atexit(cls) -> None:
        if not cls.atexit_registered:
            cls.atexit_registered = True
            atexit.register(_shutdown_at_exit)

    @classmethod
    def flush(cls) -> None:
        for processor in cls.processors:
            call_safely(processor.force_flush)

    @classmethod
    def shutdown(cls) -> None:
        for processor in cls.processors:
            call_safely(processor.shutdown)


def add_trace_processor(span_processor: TracingProcessor) -> None:
    """Add a processor for all traces that start from now on. It is shut down when the program ends."""
    if TracingState.provider is not None:
        TracingState.provider.register_processor(span_processor)
    else:
        TracingState.set_processors([*TracingState.processors, span_processor])


def set_trace_processors(processors: list[TracingProcessor]) -> None:
    """Replace the processors of all traces that start from now on."""
    if TracingState.provider is not None:
        TracingState.provider.set_processors(processors)
    else:
        TracingState.set_processors(processors)


def set_tracing_disabled(disabled: bool) -> None:
    """Disable or enable tracing in this process."""
    TracingState.disabled = disabled
    if TracingState.provider is not None:
        TracingState.provider.set_disabled(disabled)


def flush_traces() -> None:
    """Make every processor and OpenTelemetry's provider send the collected data now."""
    if TracingState.provider is not None:
        call_safely(TracingState.provider.force_flush)
    else:
        TracingState.flush()
    bridge = _get_otel_bridge()
    if bridge is not None:
        call_safely(bridge.flush)


def get_listeners() -> "tuple[tuple[TracingProcessor, ...], OtelBridge | None]":
    """Return the processors and the OpenTelemetry bridge for a trace that starts now."""
    if TracingState.disabled:
        return (), None
    return TracingState.processors, _get_otel_bridge()


def is_tracing_active() -> bool:
    """Return True if a trace that starts now would be recorded."""
    processors, bridge = get_listeners()
    return bool(processors) or bridge is not None or has_custom_provider()


def has_custom_provider() -> bool:
    """Return True if tracing is enabled and the program has set its own provider."""
    return TracingState.provider is not None and not TracingState.disabled


def _get_otel_bridge() -> "OtelBridge | None":
    # A program that configures OpenTelemetry has imported it; others do not pay for the import.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from standfast.tracing.otel import get_otel_bridge

    return get_otel_bridge()


def call_safely(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` and return its result. Exceptions are logged: tracing must not affect the traced work."""
    try:
        return function(*args)
    except Exception:
        log.exception("%s failed; the run continues without it", getattr(function, "__qualname__", function))
        return None


def _shutdown_at_exit() -> None:
    if TracingState.provider is not None:
        call_safely(TracingState.provider.shutdown)
    else:
        TracingState.shutdown()
