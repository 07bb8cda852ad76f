"""Creation of traces and spans, which a program can replace by its own provider."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.tracing.registry import TracingProcessor, TracingState, call_safely
from standfast.tracing.spans import (
    CURRENT_NODE,
    NoOpSpan,
    NoOpTrace,
    Span,
    Trace,
    TSpanData,
    gen_span_id,
    gen_trace_id,
    get_current_span,
    get_current_trace,
    is_disabled,
    now_iso,
)

if TYPE_CHECKING:
    from standfast.tracing.create import TracingConfig

T = TypeVar("T", bound=Trace | Span[Any])


class TraceProvider:
    """Creates the traces and spans of this process, once it is passed to :func:`set_trace_provider`.

    Each method does what standfast does without a provider; override those that should behave differently.
    ``create_trace`` and ``create_span`` must return a :class:`Trace` and a :class:`Span`, or instances of subclasses.
    If they raise or return something else, that is logged and the default is used. A provider cannot change what
    :func:`get_current_trace` returns.
    """

    def create_trace(
        self,
        name: str,
        trace_id: str | None = None,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        disabled: bool = False,
        tracing: "TracingConfig | None" = None,
    ) -> Trace:
        """Create a trace without starting it. A ``disabled`` trace records nothing."""
        if disabled:
            return NoOpTrace()
        return Trace(
            name,
            trace_id=trace_id or self.gen_trace_id(),
            group_id=group_id,
            metadata=metadata,
            tracing_api_key=(tracing or {}).get("api_key"),
        )

    def create_span(
        self,
        span_data: TSpanData,
        span_id: str | None = None,
        parent: Trace | Span[Any] | None = None,
        disabled: bool = False,
    ) -> Span[TSpanData]:
        """Create a span without starting it. Its parent is ``parent`` or the current span or trace."""
        if disabled or is_disabled(parent or CURRENT_NODE.get()):
            return NoOpSpan(span_data, parent)
        return Span(span_data, span_id=span_id or self.gen_span_id(), parent=parent)

    def register_processor(self, processor: TracingProcessor) -> None:
        """Let a processor receive later traces and spans, too."""
        TracingState.set_processors([*TracingState.processors, processor])

    def set_processors(self, processors: list[TracingProcessor]) -> None:
        """Replace all processors."""
        TracingState.set_processors(processors)

    def set_disabled(self, disabled: bool) -> None:
        """Called when tracing is disabled or enabled. While it is disabled, the provider is not used."""

    def force_flush(self) -> None:
        """Send the collected data now."""
        TracingState.flush()

    def shutdown(self) -> None:
        """Send the remaining data and release all resources. Called when the program ends."""
        TracingState.shutdown()

    def get_current_trace(self) -> Trace | None:
        """Return the trace around the caller, or None."""
        return get_current_trace()

    def get_current_span(self) -> Span[Any] | None:
        """Return the span around the caller, or None."""
        return get_current_span()

    def gen_trace_id(self) -> str:
        """Return a new id for a trace."""
        return gen_trace_id()

    def gen_span_id(self) -> str:
        """Return a new id for a span."""
        return gen_span_id()

    def gen_group_id(self) -> str:
        """Return a new id for a group of traces."""
        return f"group_{gen_trace_id().removeprefix('trace_')}"

    def time_iso(self) -> str:
        """Return the current time for the start and end of spans."""
        return now_iso()


_default_provider = TraceProvider()


def get_trace_provider() -> TraceProvider:
    """Return the provider that was set, or the default."""
    return TracingState.provider or _default_provider


def set_trace_provider(provider: TraceProvider | None) -> None:
    """Use ``provider`` for all traces and spans from now on; ``None`` restores the default.

    Runs are traced as long as a provider is set, even without processors.
    """
    TracingState.provider = provider
    if provider is not None:
        TracingState.register_atexit()


def new_trace(
    name: str,
    *,
    trace_id: str | None = None,
    group_id: str | None = None,
    metadata: dict[str, Any] | None = None,
    tracing: "TracingConfig | None" = None,
    recorded: bool = True,
    emit_otel_span: bool = False,
) -> Trace:
    """Create a trace with the program's provider if there is one. The arguments are those of :class:`Trace`."""
    provider = TracingState.provider
    if provider is not None and not TracingState.disabled:
        trace = _create_with_provider(
            Trace, provider.create_trace, name, trace_id, group_id, metadata, not recorded, tracing
        )
        if trace is not None:
            trace.emit_otel_span = emit_otel_span
            return trace
    if not recorded or TracingState.disabled:
        return NoOpTrace()
    key = (tracing or {}).get("api_key")
    ids: dict[str, Any] = {"trace_id": trace_id, "group_id": group_id, "metadata": metadata}
    return Trace(name, **ids, tracing_api_key=key, emit_otel_span=emit_otel_span)


def new_span(
    span_data: TSpanData,
    *,
    span_id: str | None = None,
    parent: Trace | Span[Any] | None = None,
    recorded: bool = True,
    include_sensitive_data: bool | None = None,
    attributes: dict[str, Any] | None = None,
    remote_parent: Mapping[str, str] | None = None,
    remote_link: Mapping[str, str] | None = None,
) -> Span[TSpanData]:
    """Create a span with the program's provider if there is one. The arguments are those of :class:`Span`."""
    provider = TracingState.provider
    if provider is not None and not TracingState.disabled:
        span = _create_with_provider(Span, provider.create_span, span_data, span_id, parent, not recorded)
        if span is not None:
            if include_sensitive_data is not None:
                span.include_sensitive_data = include_sensitive_data
            span.attributes.update(attributes or {})
            span.otel_parents = (parent, remote_parent, remote_link)
            return span
    if not recorded or is_disabled(parent or CURRENT_NODE.get()):
        return NoOpSpan(span_data, parent)
    return Span(
        span_data,
        span_id=span_id,
        parent=parent,
        include_sensitive_data=include_sensitive_data,
        attributes=attributes,
        remote_parent=remote_parent,
        remote_link=remote_link,
    )


def _create_with_provider(kind: type[T], create: Callable[..., object], *args: Any) -> T | None:
    """Call a provider's method. Return None and log the problem if it raises or returns something else."""

    def create_checked() -> T:
        node = create(*args)
        if not isinstance(node, kind) or not hasattr(node, "include_sensitive_data"):  # __init__ was not called
            raise TypeError(f"the trace provider must return an initialized {kind.__name__}, got {node!r}")
        return node

    result: T | None = call_safely(create_checked)
    return result
