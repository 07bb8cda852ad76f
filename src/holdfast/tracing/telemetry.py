"""Spans as OpenTelemetry sees them. Only imported when the program uses OpenTelemetry itself."""

from collections.abc import Mapping
from contextvars import Token
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.tracing.genai import described, trace_attributes
from holdfast.tracing.span_data import GenerationSpanData, ResponseSpanData
from holdfast.tracing.spans import Span, Trace

W3C = TraceContextTextMapPropagator()
NO_PROVIDERS = (api.ProxyTracerProvider, api.NoOpTracerProvider)


class Telemetry:
    """A provider of the program's, which makes our spans its own."""

    def __init__(self, provider: api.TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("holdfast")

    def flush(self) -> None:
        flush = getattr(self.provider, "force_flush", None)  # the API has none, the SDK does
        if flush is not None:
            flush()

    def trace_started(self, trace: Trace) -> "Mirror":
        return Mirror(self.tracer.start_span(trace.name, attributes=trace_attributes(trace)))

    def span_started(self, span: Span[Any]) -> "Mirror":
        """Begin the span below the one that is current in OpenTelemetry, unless it belongs elsewhere."""
        parent, continues, links = span.elsewhere
        name, attributes = described(span.span_data)
        context, linked = None, [] if links is None else [_remote(links)]
        if continues is not None:
            context, linked = W3C.extract(continues, Context()), [api.get_current_span().get_span_context()]
        elif parent is not None and parent.mirror is not None:
            context = api.set_span_in_context(parent.mirror.span)
        asks = isinstance(span.span_data, GenerationSpanData | ResponseSpanData)
        return Mirror(
            self.tracer.start_span(
                name,
                context=context,
                kind=SpanKind.CLIENT if asks else SpanKind.INTERNAL,
                attributes={**attributes, **span.attributes},
                links=[Link(other) for other in linked if other.is_valid],
            )
        )


class Mirror:
    """One of our spans or traces in OpenTelemetry."""

    def __init__(self, span: api.Span) -> None:
        self.span = span
        self._token: Token[Context] | None = None

    def enter(self) -> None:
        """Let it be the current span, so that what other libraries trace is below it."""
        self._token = contexts.attach(api.set_span_in_context(self.span))

    def leave(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def carrier(self) -> dict[str, str]:
        """The way back to this span for another process: W3C's ``traceparent``."""
        found: dict[str, str] = {}
        W3C.inject(found, api.set_span_in_context(self.span, Context()))
        return found

    def trace_ended(self, trace: Trace) -> None:
        if trace.error_type is not None:
            self._failed(trace.error_type, None)
        self.span.end()

    def span_ended(self, span: Span[Any]) -> None:
        try:
            name, attributes = described(span.span_data)
            self.span.update_name(name)
            self.span.set_attributes({**attributes, **span.attributes})
            if span.exception is not None:
                self.span.record_exception(span.exception)
            if span.error is not None:
                self._failed(span.error_type or "_OTHER", span.error["message"])
        finally:
            self.span.end()

    def _failed(self, kind: str, message: str | None) -> None:
        self.span.set_attribute("error.type", kind)
        self.span.set_status(Status(StatusCode.ERROR, message))


class _Known:
    telemetry: Telemetry | None = None


def configured() -> Telemetry | None:
    """OpenTelemetry, if the program has given it a provider."""
    provider = api.get_tracer_provider()
    if type(provider) in NO_PROVIDERS:
        return None
    if _Known.telemetry is None or _Known.telemetry.provider is not provider:
        _Known.telemetry = Telemetry(provider)
    return _Known.telemetry


def _remote(carrier: Mapping[str, str]) -> api.SpanContext:
    return api.get_current_span(W3C.extract(carrier, Context())).get_span_context()
