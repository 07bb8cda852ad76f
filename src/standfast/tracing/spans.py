"""Traces and spans, and which of them is current in a task or thread."""

import secrets
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict

from typing_extensions import TypeVar

from standfast.tracing.registry import call_safely, get_listeners, has_custom_provider
from standfast.tracing.span_data import SpanData

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelSpan

CURRENT_NODE: "ContextVar[Trace | Span[Any] | None]" = ContextVar("standfast_tracing", default=None)


class TraceNode:
    """The common part of traces and spans: each is started and finished once, and can be the current one meanwhile."""

    __slots__ = ("__weakref__", "_state", "_token", "error_type", "otel_span", "recorded")

    recorded: bool

    def __init__(self) -> None:
        self.error_type: str | None = None
        self.otel_span: OtelSpan | None = None
        self._token: Token[Trace | Span[Any] | None] | None = None
        self._state = "new"

    def start(self, mark_as_current: bool = False) -> None:
        """Start it. Further calls have no effect. With ``mark_as_current``, new spans become its children."""
        if self._state != "new":
            return
        self._state = "started"
        self._on_start()
        if mark_as_current:
            node: Any = self
            self._token = CURRENT_NODE.set(node)
            if self.otel_span is not None:
                call_safely(self.otel_span.attach)

    def finish(self, reset_current: bool = False) -> None:
        """Finish it. With ``reset_current``, the span or trace that was current before is current again."""
        if self._state == "started":
            self._state = "finished"
            self._on_finish()
        if reset_current and self._token is not None:
            token, self._token = self._token, None
            try:
                CURRENT_NODE.reset(token)
            except ValueError:
                return  # It was started in another context, so it is not the current one here.
            if self.otel_span is not None:
                call_safely(self.otel_span.detach)

    def _on_start(self) -> None:
        raise NotImplementedError

    def _on_finish(self) -> None:
        raise NotImplementedError

    def record_exception(self, error: BaseException) -> None:
        """Record the error that ended it."""
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
    """The error of a span."""

    message: str
    data: dict[str, Any] | None


def gen_trace_id() -> str:
    """Return a new id for a trace."""
    return f"trace_{secrets.token_hex(16)}"


def gen_span_id() -> str:
    """Return a new id for a span."""
    return f"span_{secrets.token_hex(12)}"


def gen_group_id() -> str:
    return f"group_{secrets.token_hex(12)}"


def get_recorded_parent() -> "Trace | Span[Any] | None":
    """Return the current span or trace if it is recorded, otherwise None."""
    node = CURRENT_NODE.get()
    return node if node is not None and node.recorded else None


def get_current_trace() -> "Trace | None":
    """Return the current trace. It is ``None`` outside of traces and in runs that are not traced."""
    node = CURRENT_NODE.get()
    return node.trace if isinstance(node, Span) else node


def get_current_span() -> "Span[Any] | None":
    """Return the current span, or None."""
    node = CURRENT_NODE.get()
    return node if isinstance(node, Span) else None


class Trace(TraceNode):
    """The root of a tree of spans. It can extend over several runs and processes.

    With ``emit_otel_span`` the trace is a span of its own in OpenTelemetry. A trace that is not ``recorded`` records
    nothing inside of it either.
    """

    __slots__ = (
        "emit_otel_span",
        "group_id",
        "include_sensitive_data",
        "is_continued",
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
        self.is_continued = False
        """Whether it was started before, by this process or another: it is not reported to processors again."""

    def resume_from(self, saved: Mapping[str, Any]) -> None:
        """Take over the name, ids and metadata that :meth:`to_json` returned, as far as they are present."""
        metadata = saved.get("metadata")
        self.is_continued = _get_text(saved, "id") is not None
        self.name = _get_text(saved, "workflow_name") or self.name
        self.trace_id = _get_text(saved, "id") or self.trace_id
        self.group_id = _get_text(saved, "group_id") or self.group_id
        self.metadata = metadata if isinstance(metadata, dict) else self.metadata

    @property
    def trace(self) -> "Trace":
        """The trace itself."""
        return self

    def export(self) -> dict[str, Any] | None:
        """Return the trace as a dict, or None if it is not recorded."""
        if not self.recorded:
            return None
        names = {"object": "trace", "id": self.trace_id, "workflow_name": self.name}
        return {**names, "group_id": self.group_id, "metadata": self.metadata}

    def to_json(self, *, include_tracing_api_key: bool = False) -> dict[str, Any] | None:
        """Return the result of :meth:`export`, on request with the API key."""
        exported = self.export()
        if exported is not None and include_tracing_api_key and self.tracing_api_key:
            exported["tracing_api_key"] = self.tracing_api_key
        return exported

    def _on_start(self) -> None:
        for processor in () if self.is_continued else self.processors:
            call_safely(processor.on_trace_start, self)
        if self.otel_bridge is not None and self.emit_otel_span:
            self.otel_span = call_safely(self.otel_bridge.start_trace_span, self)

    def _on_finish(self) -> None:
        if self.otel_span is not None:
            call_safely(self.otel_span.end_trace, self)
        for processor in () if self.is_continued else self.processors:
            call_safely(processor.on_trace_end, self)


class Span(TraceNode, Generic[TSpanData]):
    """One step of a trace. ``span_data`` describes it and can be changed until the span is finished.

    ``attributes`` are for OpenTelemetry only. ``include_sensitive_data`` tells whether contents of messages, arguments
    and outputs may be recorded. A span outside of a trace is not recorded.
    """

    __slots__ = (
        "attributes",
        "ended_at",
        "error",
        "exception",
        "explain_error",
        "failure",
        "include_sensitive_data",
        "is_quiet",
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
        self.is_quiet: bool = False
        """Whether only OpenTelemetry is informed about the span, not processors."""
        node: Trace | Span[Any] | None = parent or CURRENT_NODE.get()
        self.span_data, self.span_id = span_data, span_id or gen_span_id()
        self.trace: Trace = node.trace if node is not None else NoOpTrace()
        self.parent_id: str | None = None
        if isinstance(node, Span):
            self.parent_id = node.parent_id if node.is_quiet else node.span_id
        self.recorded = recorded and node is not None and node.recorded
        self.include_sensitive_data: bool = (
            include_sensitive_data
            if include_sensitive_data is not None
            else node is not None and node.include_sensitive_data
        )
        self.attributes = attributes or {}
        self.error: SpanError | None = None
        self.exception: BaseException | None = None
        self.failure: str | None = None
        """The exception that left the span, as it is reported to OpenTelemetry."""
        self.explain_error: Callable[[BaseException, bool], SpanError | None] | None = None
        """Returns the ``error`` of an exception, and None for one that other spans show; the default names the type."""
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.otel_parents = (parent, remote_parent, remote_link)

    @property
    def trace_id(self) -> str:
        """The id of the trace."""
        return self.trace.trace_id

    @property
    def trace_metadata(self) -> dict[str, Any] | None:
        """The metadata of the trace."""
        return self.trace.metadata

    @property
    def tracing_api_key(self) -> str | None:
        """The key with which the trace is exported."""
        return self.trace.tracing_api_key

    def set_error(self, error: SpanError) -> None:
        """Mark the span as failed, with an error described by the caller."""
        self.error = error

    def record_exception(self, error: BaseException) -> None:
        """Mark the span as failed. The message is recorded only with ``include_sensitive_data``."""
        super().record_exception(error)
        if self.error is None and self.failure is None:
            self.exception = error if self.include_sensitive_data else None
            self.failure = f"{self.error_type}: {error}" if self.include_sensitive_data else type(error).__qualname__
            if self.explain_error is not None:
                self.error = self.explain_error(error, self.include_sensitive_data)
            else:
                self.error = SpanError(message=self.failure, data={"error.type": self.error_type})

    def export(self) -> dict[str, Any] | None:
        """Return the span as a dict, or None if it is not recorded. Values in its data are not converted to JSON."""
        if not self.recorded:
            return None
        metadata = getattr(self.span_data, "metadata", None)
        return {
            "object": "trace.span",
            "id": self.span_id,
            "trace_id": self.trace_id,
            "parent_id": self.parent_id,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "span_data": self.span_data.export(),
            "error": self.error,
            **({} if metadata is None else {"metadata": metadata}),
        }

    def _on_start(self) -> None:
        self.started_at = now_iso()
        if not self.recorded:
            return
        for processor in () if self.is_quiet else self.trace.processors:
            call_safely(processor.on_span_start, self)
        if self.trace.otel_bridge is not None:
            self.otel_span = call_safely(self.trace.otel_bridge.start_span, self)

    def _on_finish(self) -> None:
        self.ended_at = now_iso()
        if self.otel_span is not None:
            call_safely(self.otel_span.end_span, self)
        for processor in self.trace.processors if self.recorded and not self.is_quiet else ():
            call_safely(processor.on_span_end, self)


NO_OP_ID = "no-op"


class NoOpTrace(Trace):
    """A trace that is disabled: it has no id of its own, and nothing inside of it is recorded."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NO_OP_ID, trace_id=NO_OP_ID, recorded=False)


class NoOpSpan(Span[TSpanData]):
    """A span that is disabled, or outside of a trace. Its data can be changed, and nothing is done with them."""

    __slots__ = ()

    def __init__(self, span_data: TSpanData, parent: Trace | Span[Any] | None = None) -> None:
        super().__init__(span_data, span_id=NO_OP_ID, parent=parent, recorded=False)
        self.parent_id = None

    @property
    def trace_id(self) -> str:
        return NO_OP_ID

    def set_error(self, error: SpanError) -> None:
        return

    def record_exception(self, error: BaseException) -> None:
        return

    def _on_start(self) -> None:
        return

    def _on_finish(self) -> None:
        return


def is_disabled(node: Trace | Span[Any] | None) -> bool:
    """Return whether spans below a span or trace are disabled, or outside of any trace."""
    return node is None or isinstance(node, NoOpTrace | NoOpSpan)


def now_iso() -> str:
    return datetime.now(UTC).isoformat()


def _get_text(saved: Mapping[str, Any], name: str) -> str | None:
    value = saved.get(name)
    return value if isinstance(value, str) and value else None
