"""Who is told about traces and spans: the program's processors, and OpenTelemetry when it is configured."""

import atexit
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelBridge
    from standfast.tracing.provider import TraceProvider
    from standfast.tracing.spans import Span, Trace

log = logging.getLogger("standfast.tracing")


class TracingProcessor(ABC):
    """Is told when traces and spans begin and end, in the task or thread where that happens: do not block.

    What a processor raises is logged and changes nothing for the run.
    """

    @abstractmethod
    def on_trace_start(self, trace: "Trace") -> None: ...

    @abstractmethod
    def on_trace_end(self, trace: "Trace") -> None: ...

    @abstractmethod
    def on_span_start(self, span: "Span[Any]") -> None: ...

    @abstractmethod
    def on_span_end(self, span: "Span[Any]") -> None: ...

    @abstractmethod
    def shutdown(self) -> None:
        """The program ends: send what is left and let go of everything."""

    @abstractmethod
    def force_flush(self) -> None:
        """Send now what was collected."""


class TracingState:
    """What this process has been told about tracing."""

    processors: tuple[TracingProcessor, ...] = ()
    disabled: bool = False
    atexit_registered: bool = False
    provider: "TraceProvider | None" = None

    @classmethod
    def set_processors(cls, processors: Sequence[TracingProcessor]) -> None:
        """Tell exactly these from now on, and end them with the program."""
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
    """Let a processor see every trace that starts from now on. It is shut down when the program ends."""
    if TracingState.provider is not None:
        TracingState.provider.register_processor(span_processor)
    else:
        TracingState.set_processors([*TracingState.processors, span_processor])


def set_trace_processors(processors: list[TracingProcessor]) -> None:
    """Let exactly these processors see the traces that start from now on."""
    if TracingState.provider is not None:
        TracingState.provider.set_processors(processors)
    else:
        TracingState.set_processors(processors)


def set_tracing_disabled(disabled: bool) -> None:
    """Make no traces at all in this process, or do so again."""
    TracingState.disabled = disabled
    if TracingState.provider is not None:
        TracingState.provider.set_disabled(disabled)


def flush_traces() -> None:
    """Let every processor, and OpenTelemetry's provider, send what it has collected."""
    if TracingState.provider is not None:
        call_safely(TracingState.provider.force_flush)
    else:
        TracingState.flush()
    telemetry = _get_otel_bridge()
    if telemetry is not None:
        call_safely(telemetry.flush)


def get_listeners() -> "tuple[tuple[TracingProcessor, ...], OtelBridge | None]":
    """Who is to be told about a trace that starts now."""
    if TracingState.disabled:
        return (), None
    return TracingState.processors, _get_otel_bridge()


def is_tracing_active() -> bool:
    processors, telemetry = get_listeners()
    return bool(processors) or telemetry is not None or has_custom_provider()


def has_custom_provider() -> bool:
    """Whether the program makes its traces itself."""
    return TracingState.provider is not None and not TracingState.disabled


def _get_otel_bridge() -> "OtelBridge | None":
    # Whoever configures OpenTelemetry has imported it; nobody else shall pay for that.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from standfast.tracing.otel import get_otel_bridge

    return get_otel_bridge()


def call_safely(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns; its errors are logged, for watching must not change what is watched."""
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
