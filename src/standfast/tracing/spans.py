"""Traces and the spans in them."""

import secrets
from collections.abc import Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict

from typing_extensions import TypeVar

from standfast.tracing.processors import call_safely, get_listeners, has_custom_provider
from standfast.tracing.span_data import SpanData

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelSpan

CURRENT_NODE: "ContextVar[Trace | Span[Any] | None]" = ContextVar("standfast_tracing", default=None)


class TraceNode:
    """What begins, may be the current place meanwhile, and ends once, also when an error leaves it."""

    __slots__ = ("__weakref__", "_state", "_token", "error_type", "otel_span", "recorded")

    recorded: bool

    def __init__(self) -> None:
        self.error_type: str | None = None
        self.otel_span: OtelSpan | None = None
        self._token: Token[Trace | Span[Any] | None] | None = None
        self._state = "new"

    def start(self, mark_as_current: bool = False) -> None:
        """Begin. Starting what has been started changes nothing."""
        if self._state != "new":
            return
        self._state = "started"
        self._on_start()
        if mark_as_current:
            own: Any = self
            self._token = CURRENT_NODE.set(own)
            if self.otel_span is not None:
                call_safely(self.otel_span.attach)

    def finish(self, reset_current: bool = False) -> None:
        """End. With ``reset_current`` what was current before is current again."""
        if self._state == "started":
            self._state = "finished"
            self._on_finish()
        if reset_current and self._token is not None:
            token, self._token = self._token, None
            try:
                CURRENT_NODE.reset(token)
            except ValueError:
                return  # It ends in another context than it began in: nothing is current here because of it.
            if self.otel_span is not None:
                call_safely(self.otel_span.detach)

    def _on_start(self) -> None:
        raise NotImplementedError

    def _on_finish(self) -> None:
        raise NotImplementedError

    def record_exception(self, error: BaseException) -> None:
        """Say which error ended it."""
        self.error_type = type(error).__qualname__

    def __enter__(self) -> Self:
        self.start(mark_as_current=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            self.record_exception(error)
        self.finish(reset_current=True)


TSpanData = TypeVar("TSpanData", bound=SpanData, default=Any)


class SpanError(TypedDict):
    """What went wrong in a span."""

    message: str
    data: dict[str, Any] | None


def gen_trace_id() -> str:
    return f"trace_{secrets.token_hex(16)}"


def gen_span_id() -> str:
    return f"span_{secrets.token_hex(12)}"


def get_recorded_parent() -> "Trace | Span[Any] | None":
    """The innermost span or trace that is current, if it is recorded."""
    found = CURRENT_NODE.get()
    return found if found is not None and found.recorded else None


def get_current_trace() -> "Trace | None":
    """The trace that this code runs in; ``None`` outside of traces, and in a run that nobody listens to."""
    found = CURRENT_NODE.get()
    return found.trace if isinstance(found, Span) else found


def get_current_span() -> "Span[Any] | None":
    """The innermost span that this code runs in."""
    found = CURRENT_NODE.get()
    return found if isinstance(found, Span) else None


class Trace(TraceNode):
    """Everything that belongs to one piece of work, in however many runs and processes it is done.

    ``shown`` traces are spans of their own in OpenTelemetry. A trace that is not ``recorded`` hides what is in it.
    """

    __slots__ = (
        "emit_otel_span",
        "group_id",
        "include_sensitive_data",
        "metadata",
        "name",
        "otel_bridge",
        "processors",
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
        emit_otel_span: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.trace_id = name, trace_id or gen_trace_id()
        self.group_id, self.metadata, self.tracing_api_key = group_id, metadata, tracing_api_key
        self.processors, self.otel_bridge = get_listeners() if recorded else ((), None)
        self.recorded = bool(self.processors) or self.otel_bridge is not None or (recorded and has_custom_provider())
        self.emit_otel_span = emit_otel_span
        self.include_sensitive_data = False

    def resume_from(self, saved: Mapping[str, Any]) -> None:
        """Be the trace that :meth:`to_json` described, as far as that says."""
        metadata = saved.get("metadata")
        self.name = _get_text(saved, "workflow_name") or self.name
        self.trace_id = _get_text(saved, "id") or self.trace_id
        self.group_id = _get_text(saved, "group_id") or self.group_id
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

    def _on_start(self) -> None:
        for processor in self.processors:
            call_safely(processor.on_trace_start, self)
        if self.otel_bridge is not None and self.emit_otel_span:
            self.otel_span = call_safely(self.otel_bridge.start_trace_span, self)

    def _on_finish(self) -> None:
        if self.otel_span is not None:
            call_safely(self.otel_span.end_trace, self)
        for processor in self.processors:
            call_safely(processor.on_trace_end, self)


class Span(TraceNode, Generic[TSpanData]):
    """One step of a trace. What it is about is in ``span_data``, and can be filled in until the span is finished.

    ``attributes`` are for OpenTelemetry only. ``contents`` says whether what people, models and tools said may be told.
    A span outside of every trace is not recorded.
    """

    __slots__ = (
        "attributes",
        "ended_at",
        "error",
        "exception",
        "include_sensitive_data",
        "otel_parents",
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
        include_sensitive_data: bool | None = None,
        attributes: dict[str, Any] | None = None,
        remote_parent: Mapping[str, str] | None = None,
        remote_link: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        above: Trace | Span[Any] | None = parent or CURRENT_NODE.get()
        self.span_data, self.span_id = span_data, span_id or gen_span_id()
        self.trace: Trace = above.trace if above is not None else Trace(recorded=False)
        self.parent_id = above.span_id if isinstance(above, Span) else None
        self.recorded = recorded and above is not None and above.recorded
        self.include_sensitive_data: bool = (
            include_sensitive_data
            if include_sensitive_data is not None
            else above is not None and above.include_sensitive_data
        )
        self.attributes = attributes or {}
        self.error: SpanError | None = None
        self.exception: BaseException | None = None
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.otel_parents = (parent, remote_parent, remote_link)

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

    def record_exception(self, error: BaseException) -> None:
        """Mark the span as failed. The error's message is told only if contents may be."""
        super().record_exception(error)
        if self.error is None:
            self.exception = error if self.include_sensitive_data else None
            message = f"{self.error_type}: {error}" if self.include_sensitive_data else type(error).__qualname__
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

    def _on_start(self) -> None:
        self.started_at = now_iso()
        if not self.recorded:
            return
        for processor in self.trace.processors:
            call_safely(processor.on_span_start, self)
        if self.trace.otel_bridge is not None:
            self.otel_span = call_safely(self.trace.otel_bridge.start_span, self)

    def _on_finish(self) -> None:
        self.ended_at = now_iso()
        if self.otel_span is not None:
            call_safely(self.otel_span.end_span, self)
        for processor in self.trace.processors if self.recorded else ():
            call_safely(processor.on_span_end, self)


def now_iso() -> str:
    return datetime.now(UTC).isoformat()


def _get_text(saved: Mapping[str, Any], name: str) -> str | None:
    found = saved.get(name)
    return found if isinstance(found, str) and found else None
