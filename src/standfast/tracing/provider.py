"""Where traces and spans come from: from here, or from a provider of the program's."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.tracing.processors import TracingProcessor, TracingState, call_safely
from standfast.tracing.spans import (
    Span,
    Trace,
    TSpanData,
    gen_span_id,
    gen_trace_id,
    get_current_span,
    get_current_trace,
    now_iso,
)

if TYPE_CHECKING:
    from standfast.tracing.create import TracingConfig

T = TypeVar("T", bound=Trace | Span[Any])


class TraceProvider:
    """Makes the traces and spans of this process, when :func:`set_trace_provider` was given it.

    Each method does what standfast does without a provider: override those that should do something else. What
    ``create_trace`` and ``create_span`` make are a :class:`Trace` and a :class:`Span`, or classes of the program's
    below those; anything else, and what they raise, is logged, and standfast's own is used. A program's own code asks
    :func:`get_current_trace` where it is; that is not up to the provider.
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
        """A trace that has not started. ``disabled`` ones hide what is in them."""
        return Trace(
            name,
            trace_id=trace_id or self.gen_trace_id(),
            group_id=group_id,
            metadata=metadata,
            tracing_api_key=(tracing or {}).get("api_key"),
            recorded=not disabled,
        )

    def create_span(
        self,
        span_data: TSpanData,
        span_id: str | None = None,
        parent: Trace | Span[Any] | None = None,
        disabled: bool = False,
    ) -> Span[TSpanData]:
        """A span that has not started, below ``parent`` or the place where it is made."""
        return Span(span_data, span_id=span_id or self.gen_span_id(), parent=parent, recorded=not disabled)

    def register_processor(self, processor: TracingProcessor) -> None:
        TracingState.set_processors([*TracingState.processors, processor])

    def set_processors(self, processors: list[TracingProcessor]) -> None:
        TracingState.set_processors(processors)

    def set_disabled(self, disabled: bool) -> None:
        """Tracing was switched off or on for the process: nothing is made while it is off."""

    def force_flush(self) -> None:
        """Send now what was collected."""
        TracingState.flush()

    def shutdown(self) -> None:
        """The program ends: send what is left and let go of everything."""
        TracingState.shutdown()

    def get_current_trace(self) -> Trace | None:
        return get_current_trace()

    def get_current_span(self) -> Span[Any] | None:
        return get_current_span()

    def gen_trace_id(self) -> str:
        return gen_trace_id()

    def gen_span_id(self) -> str:
        return gen_span_id()

    def gen_group_id(self) -> str:
        return f"group_{gen_trace_id().removeprefix('trace_')}"

    def time_iso(self) -> str:
        """The time that spans begin and end with."""
        return now_iso()


def set_trace_provider(provider: TraceProvider | None) -> None:
    """Let a provider make the traces and spans that begin from now on; ``None`` for standfast's own again.

    Runs are traced as long as there is a provider, whether or not anybody else listens.
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
    """A trace, from wherever this process has them. ``shown`` is as in :class:`Trace`."""
    provider = TracingState.provider
    if provider is not None and not TracingState.disabled:
        made = _create_with_provider(
            Trace, provider.create_trace, name, trace_id, group_id, metadata, not recorded, tracing
        )
        if made is not None:
            made.emit_otel_span = emit_otel_span
            return made
    key = (tracing or {}).get("api_key")
    ids: dict[str, Any] = {"trace_id": trace_id, "group_id": group_id, "metadata": metadata}
    return Trace(name, **ids, tracing_api_key=key, recorded=recorded, emit_otel_span=emit_otel_span)


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
    """A span, from wherever this process has them; the arguments are those of :class:`Span`."""
    provider = TracingState.provider
    if provider is not None and not TracingState.disabled:
        made = _create_with_provider(Span, provider.create_span, span_data, span_id, parent, not recorded)
        if made is not None:
            made.include_sensitive_data = (
                made.include_sensitive_data if include_sensitive_data is None else include_sensitive_data
            )
            made.attributes.update(attributes or {})
            made.otel_parents = (parent, remote_parent, remote_link)
            return made
    return Span(
        span_data,
        span_id=span_id,
        parent=parent,
        recorded=recorded,
        include_sensitive_data=include_sensitive_data,
        attributes=attributes,
        remote_parent=remote_parent,
        remote_link=remote_link,
    )


def _create_with_provider(kind: type[T], create: Callable[..., object], *args: Any) -> T | None:
    """What a provider makes; ``None``, and a line in the log, when it raises or makes something else."""

    def provided() -> T:
        found = create(*args)
        if not isinstance(found, kind) or not hasattr(found, "include_sensitive_data"):
            raise TypeError(f"the trace provider made {found!r}, which is no whole {kind.__name__}")
        return found

    found: T | None = call_safely(provided)
    return found
