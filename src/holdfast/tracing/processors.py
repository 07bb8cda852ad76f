"""Who is told about traces and spans: the program's processors, and OpenTelemetry when it is configured."""

import atexit
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.tracing.providing import TraceProvider
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


class Registered:
    """What this process has been told about tracing."""

    processors: tuple[TracingProcessor, ...] = ()
    disabled: bool = False
    at_exit: bool = False
    provider: "TraceProvider | None" = None

    @classmethod
    def listen(cls, processors: Sequence[TracingProcessor]) -> None:
        """Tell exactly these from now on, and end them with the program."""
        cls.processors = tuple(processors)
        if processors:
            cls.end_with_the_program()

    @classmethod
    def end_with_the_program(cls) -> None:
        if not cls.at_exit:
            cls.at_exit = True
            atexit.register(_shut_down)

    @classmethod
    def flush(cls) -> None:
        for processor in cls.processors:
            contained(processor.force_flush)

    @classmethod
    def shut_down(cls) -> None:
        for processor in cls.processors:
            contained(processor.shutdown)


def add_trace_processor(span_processor: TracingProcessor) -> None:
    """Let a processor see every trace that starts from now on. It is shut down when the program ends."""
    if Registered.provider is not None:
        Registered.provider.register_processor(span_processor)
    else:
        Registered.listen([*Registered.processors, span_processor])


def set_trace_processors(processors: list[TracingProcessor]) -> None:
    """Let exactly these processors see the traces that start from now on."""
    if Registered.provider is not None:
        Registered.provider.set_processors(processors)
    else:
        Registered.listen(processors)


def set_tracing_disabled(disabled: bool) -> None:
    """Make no traces at all in this process, or do so again."""
    Registered.disabled = disabled
    if Registered.provider is not None:
        Registered.provider.set_disabled(disabled)


def flush_traces() -> None:
    """Let every processor, and OpenTelemetry's provider, send what it has collected."""
    if Registered.provider is not None:
        contained(Registered.provider.force_flush)
    else:
        Registered.flush()
    telemetry = _telemetry()
    if telemetry is not None:
        contained(telemetry.flush)


def listeners() -> "tuple[tuple[TracingProcessor, ...], Telemetry | None]":
    """Who is to be told about a trace that starts now."""
    if Registered.disabled:
        return (), None
    return Registered.processors, _telemetry()


def somebody_listens() -> bool:
    processors, telemetry = listeners()
    return bool(processors) or telemetry is not None or provided()


def provided() -> bool:
    """Whether the program makes its traces itself."""
    return Registered.provider is not None and not Registered.disabled


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
        log.exception("%s failed; the run continues without it", getattr(tell, "__qualname__", tell))
        return None


def _shut_down() -> None:
    if Registered.provider is not None:
        contained(Registered.provider.shutdown)
    else:
        Registered.shut_down()
