"""Spans as OpenTelemetry sees them. Only imported when the program uses OpenTelemetry itself."""

from collections.abc import Mapping
from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from standfast.tracing.otel_attributes import build_trace_attributes, describe_span_data
from standfast.tracing.span_data import GenerationSpanData, ResponseSpanData
from standfast.tracing.spans import Span, Trace

PROPAGATOR = TraceContextTextMapPropagator()
PLACEHOLDER_PROVIDERS = (api.ProxyTracerProvider, api.NoOpTracerProvider)


class OtelBridge:
    """A provider of the program's, which makes our spans its own."""

    def __init__(self, provider: api.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("standfast")

    def flush(self) -> None:
        flush = getattr(self.provider, "force_flush", None)  # the API has none, the SDK does
        if flush is not None:
            flush()

    def start_trace_span(self, trace: Trace) -> "OtelSpan":
        return OtelSpan(self.tracer.start_span(trace.name, attributes=build_trace_attributes(trace)))

    def start_span(self, span: Span[Any]) -> "OtelSpan":
        """Begin the span below the one that is current in OpenTelemetry, unless it belongs elsewhere."""
        parent, continues, links = span.otel_parents
        name, attributes = describe_span_data(span.span_data)
        context, linked = None, [] if links is None else [_extract_span_context(links)]
        if continues is not None:
            context, linked = PROPAGATOR.extract(continues, Context()), [api.get_current_span().get_span_context()]
        elif parent is not None and parent.otel_span is not None:
            context = api.set_span_in_context(parent.otel_span.span)
        asks = isinstance(span.span_data, GenerationSpanData | ResponseSpanData)
        return OtelSpan(
            self.tracer.start_span(
                name,
                context=context,
                kind=SpanKind.CLIENT if asks else SpanKind.INTERNAL,
                attributes={**attributes, **span.attributes},
                links=[Link(other) for other in linked if other.is_valid],
            )
        )


class OtelSpan:
    """One of our spans or traces in OpenTelemetry."""

    def __init__(self, span: api.Span) -> None:
        self.span = span
        self._token: Token[Context] | None = None

    def attach(self) -> None:
        """Let it be the current span, so that what other libraries trace is below it."""
        self._token = contexts.attach(api.set_span_in_context(self.span))

    def detach(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def to_carrier(self) -> dict[str, str]:
        """The way back to this span for another process: W3C's ``traceparent``."""
        found: dict[str, str] = {}
        PROPAGATOR.inject(found, api.set_span_in_context(self.span, Context()))
        return found

    def end_trace(self, trace: Trace) -> None:
        if trace.error_type is not None:
            self._set_error(trace.error_type, None)
        self.span.end()

    def end_span(self, span: Span[Any]) -> None:
        try:
            name, attributes = describe_span_data(span.span_data)
            self.span.update_name(name)
            self.span.set_attributes({**attributes, **span.attributes})
            if span.exception is not None:
                self.span.record_exception(span.exception)
            if span.error is not None:
                self._set_error(span.error_type or "_OTHER", span.error["message"])
        finally:
            self.span.end()

    def _set_error(self, error_type: str, message: str | None) -> None:
        self.span.set_attribute("error.type", error_type)
        self.span.set_status(Status(StatusCode.ERROR, message))


class _BridgeCache:
    bridge: OtelBridge | None = None


def get_otel_bridge() -> OtelBridge | None:
    """OpenTelemetry, if the program has given it a provider."""
    provider = api.get_tracer_provider()
    if type(provider) in PLACEHOLDER_PROVIDERS:
        return None
    if _BridgeCache.bridge is None or _BridgeCache.bridge.provider is not provider:
        _BridgeCache.bridge = OtelBridge(provider)
    return _BridgeCache.bridge


def _extract_span_context(carrier: Mapping[str, str]) -> api.SpanContext:
    return api.get_current_span(PROPAGATOR.extract(carrier, Context())).get_span_context()
