"""Traces and the spans in them."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypedDict

from typing_extensions import TypeVar

from holdfast.tracing.processors import contained, listeners, provided
from holdfast.tracing.span_data import SpanData
from holdfast.tracing.timed import PLACE, Timed

TSpanData = TypeVar("TSpanData", bound=SpanData, default=Any)


class SpanError(TypedDict):
    """What went wrong in a span."""

    message: str
    data: dict[str, Any] | None


def gen_trace_id() -> str:
    return f"trace_{secrets.token_hex(16)}"


def gen_span_id() -> str:
    return f"span_{secrets.token_hex(12)}"


def here() -> "Trace | Span[Any] | None":
    """The innermost span or trace that is current, if it is recorded."""
    found = PLACE.get()
    return found if found is not None and found.recorded else None


def get_current_trace() -> "Trace | None":
    """The trace that this code runs in; ``None`` outside of traces, and in a run that nobody listens to."""
    found = PLACE.get()
    return found.trace if isinstance(found, Span) else found


def get_current_span() -> "Span[Any] | None":
    """The innermost span that this code runs in."""
    found = PLACE.get()
    return found if isinstance(found, Span) else None


class Trace(Timed):
    """Everything that belongs to one piece of work, in however many runs and processes it is done.

    ``shown`` traces are spans of their own in OpenTelemetry. A trace that is not ``recorded`` hides what is in it.
    """

    __slots__ = (
        "contents",
        "group_id",
        "metadata",
        "name",
        "processors",
        "shown",
        "telemetry",
        "trace_id",
        "tracing_api_key",
    )

    def __init__(
        self,
        name: str = "",
        *,
        trace_id: str | None = None,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        tracing_api_key: str | None = None,
        recorded: bool = True,
        shown: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.trace_id = name, trace_id or gen_trace_id()
        self.group_id, self.metadata, self.tracing_api_key = group_id, metadata, tracing_api_key
        self.processors, self.telemetry = listeners() if recorded else ((), None)
        self.recorded = bool(self.processors) or self.telemetry is not None or (recorded and provided())
        self.shown = shown
        self.contents = False

    def go_on(self, saved: Mapping[str, Any]) -> None:
        """Be the trace that :meth:`to_json` described, as far as that says."""
        metadata = saved.get("metadata")
        self.name = _text(saved, "workflow_name") or self.name
        self.trace_id = _text(saved, "id") or self.trace_id
        self.group_id = _text(saved, "group_id") or self.group_id
        self.metadata = metadata if isinstance(metadata, dict) else self.metadata

    @property
    def trace(self) -> "Trace":
        return self

    def export(self) -> dict[str, Any] | None:
        """What there is to know about the trace; ``None`` when it is not recorded."""
        if not self.recorded:
            return None
        names = {"object": "trace", "id": self.trace_id, "workflow_name": self.name}
        return {**names, "group_id": self.group_id, "metadata": self.metadata}

    def to_json(self, *, include_tracing_api_key: bool = False) -> dict[str, Any] | None:
        """As :meth:`export`; an API key is in it only when that is asked for."""
        found = self.export()
        if found is not None and include_tracing_api_key and self.tracing_api_key:
            found["tracing_api_key"] = self.tracing_api_key
        return found

    def _begin(self) -> None:
        for processor in self.processors:
            contained(processor.on_trace_start, self)
        if self.telemetry is not None and self.shown:
            self.mirror = contained(self.telemetry.trace_started, self)

    def _end(self) -> None:
        if self.mirror is not None:
            contained(self.mirror.trace_ended, self)
        for processor in self.processors:
            contained(processor.on_trace_end, self)


class Span(Timed, Generic[TSpanData]):
    """One step of a trace. What it is about is in ``span_data``, and can be filled in until the span is finished.

    ``attributes`` are for OpenTelemetry only. ``contents`` says whether what people, models and tools said may be told.
    A span outside of every trace is not recorded.
    """

    __slots__ = (
        "attributes",
        "contents",
        "elsewhere",
        "ended_at",
        "error",
        "exception",
        "parent_id",
        "span_data",
        "span_id",
        "started_at",
        "trace",
    )

    def __init__(
        self,
        span_data: TSpanData,
        *,
        span_id: str | None = None,
        parent: "Trace | Span[Any] | None" = None,
        recorded: bool = True,
        contents: bool | None = None,
        attributes: dict[str, Any] | None = None,
        continues: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        above: Trace | Span[Any] | None = parent or PLACE.get()
        self.span_data, self.span_id = span_data, span_id or gen_span_id()
        self.trace: Trace = above.trace if above is not None else Trace(recorded=False)
        self.parent_id = above.span_id if isinstance(above, Span) else None
        self.recorded = recorded and above is not None and above.recorded
        self.contents: bool = contents if contents is not None else above is not None and above.contents
        self.attributes = attributes or {}
        self.error: SpanError | None = None
        self.exception: BaseException | None = None
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.elsewhere = (parent, continues, links)

    @property
    def trace_id(self) -> str:
        return self.trace.trace_id

    @property
    def trace_metadata(self) -> dict[str, Any] | None:
        return self.trace.metadata

    @property
    def tracing_api_key(self) -> str | None:
        return self.trace.tracing_api_key

    def set_error(self, error: SpanError) -> None:
        """Mark the span as failed, in the program's words."""
        self.error = error

    def fail(self, error: BaseException) -> None:
        """Mark the span as failed. The error's message is told only if contents may be."""
        super().fail(error)
        if self.error is None:
            self.exception = error if self.contents else None
            message = f"{self.error_type}: {error}" if self.contents else type(error).__qualname__
            self.error = SpanError(message=message, data={"error.type": self.error_type})

    def export(self) -> dict[str, Any] | None:
        """The span as JSON values, as far as its data is; ``None`` when it is not recorded."""
        if not self.recorded:
            return None
        return {
            "object": "trace.span",
            "id": self.span_id,
            "trace_id": self.trace_id,
            "parent_id": self.parent_id,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "span_data": self.span_data.export(),
            "error": self.error,
        }

    def _begin(self) -> None:
        self.started_at = now()
        if not self.recorded:
            return
        for processor in self.trace.processors:
            contained(processor.on_span_start, self)
        if self.trace.telemetry is not None:
            self.mirror = contained(self.trace.telemetry.span_started, self)

    def _end(self) -> None:
        self.ended_at = now()
        if self.mirror is not None:
            contained(self.mirror.span_ended, self)
        for processor in self.trace.processors if self.recorded else ():
            contained(processor.on_span_end, self)


def now() -> str:
    return datetime.now(UTC).isoformat()


def _text(saved: Mapping[str, Any], name: str) -> str | None:
    found = saved.get(name)
    return found if isinstance(found, str) and found else None
