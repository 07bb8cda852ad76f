"""Somebody who listens to the traces of one test: a provider of the real OpenTelemetry SDK, or a processor."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from standfast import TracingProcessor, add_trace_processor, set_trace_processors


class Exported:
    """The spans that left the process, as a reader of traces sees them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> ReadableSpan:
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, f"{name}: {[span.name for span in self.spans]}"
        return found[0]

    def tree(self) -> list[str]:
        """One line per span, indented below its parent; siblings by name, for some of them run side by side."""
        spans = {span.context.span_id: span for span in self.spans}

        def below(parent: int | None, depth: int) -> Iterator[str]:
            own = [span for span in spans.values() if self._parent(span, spans) == parent]
            for span in sorted(own, key=lambda span: span.name):
                yield "  " * depth + span.name
                yield from below(span.context.span_id, depth + 1)

        return list(below(None, 0))

    @staticmethod
    def _parent(span: ReadableSpan, known: dict[int, ReadableSpan]) -> int | None:
        return span.parent.span_id if span.parent is not None and span.parent.span_id in known else None

    def text(self) -> str:
        return "\n".join(span.to_json() for span in self.spans)


@pytest.fixture
def no_telemetry() -> Iterator[None]:
    """The program's provider can be set once per process; after a test it can be set again."""
    yield
    trace._TRACER_PROVIDER, trace._TRACER_PROVIDER_SET_ONCE = None, Once()


@pytest.fixture
def exported(no_telemetry: None) -> Iterator[Exported]:
    kept = Exported()
    trace.set_tracer_provider(kept.provider)
    yield kept
    kept.provider.shutdown()


class Kept(TracingProcessor):
    """A processor that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_trace_start(self, trace: Any) -> None:
        self.told.append(("trace_start", trace))

    def on_trace_end(self, trace: Any) -> None:
        self.told.append(("trace_end", trace))

    def on_span_start(self, span: Any) -> None:
        self.told.append(("span_start", span))

    def on_span_end(self, span: Any) -> None:
        self.told.append(("span_end", span))

    def shutdown(self) -> None:
        self.told.append(("shutdown", None))

    def force_flush(self) -> None:
        self.told.append(("flush", None))

    def ended(self) -> list[dict[str, Any]]:
        return [span.export() for what, span in self.told if what == "span_end"]

    def count(self, what: str) -> int:
        return sum(told == what for told, _ in self.told)


@pytest.fixture
def kept() -> Iterator[Kept]:
    processor = Kept()
    add_trace_processor(processor)
    yield processor
    set_trace_processors([])
