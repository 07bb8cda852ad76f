"""Export of traces and spans to OpenTelemetry. Imported only if the program itself imports OpenTelemetry."""

from collections.abc import Mapping
from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from standfast.tracing.otel_attributes import build_trace_attributes, describe_span_data
from standfast.tracing.span_data import (
    GenerationSpanData,
    ResponseSpanData,
)
from standfast.tracing.spans import Span, Trace

PROPAGATOR = TraceContextTextMapPropagator()
PLACEHOLDER_PROVIDERS = (api.ProxyTracerProvider, api.NoOpTracerProvider)


class OtelBridge:
    """Creates OpenTelemetry spans with the program's tracer provider."""

    def __init__(self, provider: api.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("standfast")

    def flush(self) -> None:
        flush = getattr(self.provider, "force_flush", None)  # part of the SDK, not of the API
        if flush is not None:
            flush()

    def start_trace_span(self, trace: Trace) -> "OtelSpan":
        return OtelSpan(self.tracer.start_span(trace.name, attributes=build_trace_attributes(trace)))

    def start_request_span(self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str]) -> "OtelSpan":
        """Start the span of a request that a server received. Its parent is the span that the headers name."""
        context = PROPAGATOR.extract(headers)
        return OtelSpan(self.tracer.start_span(name, context=context, kind=SpanKind.SERVER, attributes=attributes))

    def start_span(self, span: Span[Any]) -> "OtelSpan":
        """Start an OpenTelemetry span for ``span``.

        Its parent is the current OpenTelemetry span, unless ``span`` has an explicit or a remote parent.
        """
        parent, remote_parent, remote_link = span.otel_parents
        name, attributes = describe_span_data(span.span_data)
        context, linked = None, [] if remote_link is None else [_extract_span_context(remote_link)]
        if remote_parent is not None:
            context, linked = PROPAGATOR.extract(remote_parent, Context()), [api.get_current_span().get_span_context()]
        elif parent is not None and parent.otel_span is not None:
            context = api.set_span_in_context(parent.otel_span.span)
        calls_model = isinstance(span.span_data, GenerationSpanData | ResponseSpanData)
        return OtelSpan(
            self.tracer.start_span(
                name,
                context=context,
                kind=SpanKind.CLIENT if calls_model else SpanKind.INTERNAL,
                attributes={**attributes, **span.attributes},
                links=[Link(other) for other in linked if other.is_valid],
            )
        )


class OtelSpan:
    """The OpenTelemetry span of a :class:`Span` or :class:`Trace`."""

    def __init__(self, span: api.Span) -> None:
        self.span = span
        self._token: Token[Context] | None = None

    def attach(self) -> None:
        """Make it the current OpenTelemetry span, so that spans of other libraries become its children."""
        self._token = contexts.attach(api.set_span_in_context(self.span))

    def detach(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def to_carrier(self) -> dict[str, str]:
        """Return the W3C ``traceparent`` header with which another process can refer to this span."""
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, api.set_span_in_context(self.span, Context()))
        return carrier

    def end_request(self, status: int, attributes: Mapping[str, str]) -> None:
        self.span.set_attributes({"http.response.status_code": status, **attributes})
        if status >= 500:
            self._set_error(str(status), None)
        self.span.end()

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
            if span.failure is not None or span.error is not None:
                message = span.failure or (span.error["message"] if span.error is not None else None)
                self._set_error(span.error_type or "_OTHER", message)
        finally:
            self.span.end()

    def _set_error(self, error_type: str, message: str | None) -> None:
        self.span.set_attribute("error.type", error_type)
        self.span.set_status(Status(StatusCode.ERROR, message))


class _BridgeCache:
    bridge: OtelBridge | None = None


def get_otel_bridge() -> OtelBridge | None:
    """Return a bridge to the program's tracer provider, or None if the program has set none."""
    provider = api.get_tracer_provider()
    if type(provider) in PLACEHOLDER_PROVIDERS:
        return None
    if _BridgeCache.bridge is None or _BridgeCache.bridge.provider is not provider:
        _BridgeCache.bridge = OtelBridge(provider)
    return _BridgeCache.bridge


def _extract_span_context(carrier: Mapping[str, str]) -> api.SpanContext:
    return api.get_current_span(PROPAGATOR.extract(carrier, Context())).get_span_context()
