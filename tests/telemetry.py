"""Fixtures that record the traces of a test: with the OpenTelemetry SDK, or with a trace processor."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from standfast import TracingProcessor, add_trace_processor, set_trace_processors


class ExportedSpans:
    """The spans that were exported to OpenTelemetry."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans in the order of their start."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> ReadableSpan:
        """Return the only span of that name."""
        spans = [span for span in self.spans if span.name == name]
        assert len(spans) == 1, f"{name}: {[span.name for span in self.spans]}"
        return spans[0]

    def tree(self) -> list[str]:
        """Return one line per span, indented below its parent. Siblings are sorted, because some run concurrently."""
        spans = {span.context.span_id: span for span in self.spans}

        def format_children(parent: int | None, depth: int) -> Iterator[str]:
            children = [span for span in spans.values() if self._parent(span, spans) == parent]
            for span in sorted(children, key=lambda span: span.name):
                yield "  " * depth + span.name
                yield from format_children(span.context.span_id, depth + 1)

        return list(format_children(None, 0))

    @staticmethod
    def _parent(span: ReadableSpan, spans: dict[int, ReadableSpan]) -> int | None:
        return span.parent.span_id if span.parent is not None and span.parent.span_id in spans else None

    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.spans)


@pytest.fixture
def no_telemetry() -> Iterator[None]:
    """Reset OpenTelemetry after the test, because a tracer provider can be set only once per process."""
    yield
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()


@pytest.fixture
def exported(no_telemetry: None) -> Iterator[ExportedSpans]:
    spans = ExportedSpans()
    trace.set_tracer_provider(spans.provider)
    yield spans
    spans.provider.shutdown()


class RecordingProcessor(TracingProcessor):
    """A processor that records the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_trace_start(self, trace: Any) -> None:
        self.calls.append(("trace_start", trace))

    def on_trace_end(self, trace: Any) -> None:
        self.calls.append(("trace_end", trace))

    def on_span_start(self, span: Any) -> None:
        self.calls.append(("span_start", span))

    def on_span_end(self, span: Any) -> None:
        self.calls.append(("span_end", span))

    def shutdown(self) -> None:
        self.calls.append(("shutdown", None))

    def force_flush(self) -> None:
        self.calls.append(("flush", None))

    def exported_spans(self) -> list[dict[str, Any]]:
        return [span.export() for event, span in self.calls if event == "span_end"]

    def count(self, what: str) -> int:
        return sum(event == what for event, _ in self.calls)


@pytest.fixture
def kept() -> Iterator[RecordingProcessor]:
    processor = RecordingProcessor()
    add_trace_processor(processor)
    yield processor
    set_trace_processors([])
