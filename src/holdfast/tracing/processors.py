"""Who is told about traces and spans: the program's processors, and OpenTelemetry when it is configured."""

import atexit
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.tracing.spans import Span, Trace
    from holdfast.tracing.telemetry import Telemetry

log = logging.getLogger("holdfast.tracing")


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


class _Registered:
    processors: tuple[TracingProcessor, ...] = ()
    disabled: bool = False
    at_exit: bool = False


def add_trace_processor(span_processor: TracingProcessor) -> None:
    """Let a processor see every trace that starts from now on. It is shut down when the program ends."""
    set_trace_processors([*_Registered.processors, span_processor])


def set_trace_processors(processors: list[TracingProcessor]) -> None:
    """Let exactly these processors see the traces that start from now on."""
    _Registered.processors = tuple(processors)
    if processors and not _Registered.at_exit:
        _Registered.at_exit = True
        atexit.register(_shut_down)


def set_tracing_disabled(disabled: bool) -> None:
    """Make no traces at all in this process, or do so again."""
    _Registered.disabled = disabled


def flush_traces() -> None:
    """Let every processor, and OpenTelemetry's provider, send what it has collected."""
    for processor in _Registered.processors:
        contained(processor.force_flush)
    telemetry = _telemetry()
    if telemetry is not None:
        contained(telemetry.flush)


def listeners() -> "tuple[tuple[TracingProcessor, ...], Telemetry | None]":
    """Who is to be told about a trace that starts now."""
    if _Registered.disabled:
        return (), None
    return _Registered.processors, _telemetry()


def somebody_listens() -> bool:
    processors, telemetry = listeners()
    return bool(processors) or telemetry is not None


def _telemetry() -> "Telemetry | None":
    # Whoever configures OpenTelemetry has imported it; nobody else shall pay for that.
    if "opentelemetry.trace" not in sys.modules:
        return None
    from holdfast.tracing.telemetry import configured

    return configured()


def contained(tell: Callable[..., Any], *what: Any) -> Any:
    """What the function returns; its errors are logged, for watching must not change what is watched."""
    try:
        return tell(*what)
    except Exception:
        log.exception("%s failed; the run goes on without it", getattr(tell, "__qualname__", tell))
        return None


def _shut_down() -> None:
    for processor in _Registered.processors:
        contained(processor.shutdown)
