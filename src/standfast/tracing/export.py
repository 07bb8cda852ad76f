"""Exporters of traces and spans, and the processor that hands batches to them."""

import json
import os
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections import deque
from functools import cache
from typing import Any
from urllib.error import HTTPError, URLError

from standfast.base.log import get_logger
from standfast.base.network import get_url_opener
from standfast.tracing.registry import TracingProcessor, TracingState, add_trace_processor, call_safely
from standfast.tracing.spans import Span, Trace

log = get_logger("standfast.tracing")

TRACES_ENDPOINT = "https://api.openai.com/v1/traces/ingest"


class TracingExporter(ABC):
    """Sends traces and spans somewhere."""

    @abstractmethod
    def export(self, items: list[Trace | Span[Any]]) -> None:
        """Send the items. It is called in a thread of its own and may block."""


class ConsoleSpanExporter(TracingExporter):
    """Prints names, times and errors, and no contents of messages or tools."""

    def export(self, items: list[Trace | Span[Any]]) -> None:
        for item in items:
            if isinstance(item, Trace):
                print(f"[trace] {item.trace_id} {item.name}")
            else:
                error = "" if item.error is None else " failed"
                print(f"[span] {item.span_id} {item.span_data.type} {item.started_at} {item.ended_at}{error}")


class BatchTraceProcessor(TracingProcessor):
    """Collects finished traces and spans, and exports them in batches from a thread.

    A batch is exported every ``schedule_delay`` seconds, and earlier when the queue is filled to
    ``export_trigger_ratio``. If the queue is full, further items are dropped and counted in the log.
    """

    def __init__(
        self,
        exporter: TracingExporter,
        max_queue_size: int = 8192,
        max_batch_size: int = 128,
        schedule_delay: float = 5.0,
        export_trigger_ratio: float = 0.7,
    ) -> None:
        self.exporter = exporter
        self._max_queue_size, self._max_batch_size = max_queue_size, max_batch_size
        self._schedule_delay, self._trigger = schedule_delay, max(1, int(max_queue_size * export_trigger_ratio))
        self._queue: deque[Trace | Span[Any]] = deque()
        self._changed = threading.Condition()
        self._exporting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._dropped = 0

    def on_trace_start(self, trace: Trace) -> None:
        self._add(trace)

    def on_trace_end(self, trace: Trace) -> None:
        """Nothing: a trace is exported when it starts."""

    def on_span_start(self, span: Span[Any]) -> None:
        """Nothing: a span is exported when it has ended."""

    def on_span_end(self, span: Span[Any]) -> None:
        self._add(span)

    def force_flush(self) -> None:
        while self._export_batch():
            pass

    def shutdown(self, timeout: float | None = None) -> None:
        """Export the rest and stop. With a ``timeout`` in seconds, a batch that takes longer is not waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return
        self.force_flush()

    def _add(self, item: Trace | Span[Any]) -> None:
        with self._changed:
            if len(self._queue) >= self._max_queue_size:
                self._dropped += 1
                return
            self._queue.append(item)
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="standfast traces", daemon=True)
                self._thread.start()
            if len(self._queue) >= self._trigger:
                self._changed.notify()

    def _run(self) -> None:
        while not self._stopped:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or len(self._queue) >= self._trigger, self._schedule_delay)
            self.force_flush()

    def _export_batch(self) -> bool:
        with self._exporting:
            with self._changed:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch_size))]
                dropped, self._dropped = self._dropped, 0
            if dropped:
                log.warning("the queue of traces was full: %s traces and spans were not exported", dropped)
            if batch:
                call_safely(self.exporter.export, batch)
            return bool(batch)


class BackendSpanExporter(TracingExporter):
    """Sends traces to OpenAI's dashboard. Contents are in them only if the run includes sensitive data.

    Without a key, given here, by ``tracing_api_key`` of the trace or in ``OPENAI_API_KEY``, nothing is sent.
    """

    def __init__(
        self,
        api_key: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        endpoint: str = TRACES_ENDPOINT,
        max_retries: int = 3,
        base_delay: float = 1.0,
        max_delay: float = 30.0,
    ) -> None:
        self._api_key, self._organization, self._project = api_key, organization, project
        self.endpoint, self.max_retries = endpoint, max_retries
        self.base_delay, self.max_delay = base_delay, max_delay

    @property
    def api_key(self) -> str | None:
        """The key for OpenAI, by default ``OPENAI_API_KEY``."""
        return self._api_key or os.environ.get("OPENAI_API_KEY")

    @property
    def organization(self) -> str | None:
        """The organization at OpenAI, by default ``OPENAI_ORG_ID``."""
        return self._organization or os.environ.get("OPENAI_ORG_ID")

    @property
    def project(self) -> str | None:
        """The project at OpenAI, by default ``OPENAI_PROJECT_ID``."""
        return self._project or os.environ.get("OPENAI_PROJECT_ID")

    def set_api_key(self, api_key: str) -> None:
        """Send later spans with this key."""
        self._api_key = api_key

    def close(self) -> None:
        """Nothing: each batch is a request of its own."""

    def export(self, items: list[Trace | Span[Any]]) -> None:
        batches: dict[str | None, list[Any]] = {}
        for item in items:
            exported = item.export()
            if exported is not None:
                batches.setdefault(item.tracing_api_key or self.api_key, []).append(exported)
        for api_key, data in batches.items():
            if api_key is None:
                log.warning("there is no API key for traces: they are not exported")
            else:
                self._send(api_key, json.dumps({"data": data}, default=str).encode())

    def _send(self, api_key: str, body: bytes) -> None:
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json", "OpenAI-Beta": "traces=v1"}
        if self.organization:
            headers["OpenAI-Organization"] = self.organization
        if self.project:
            headers["OpenAI-Project"] = self.project
        for attempt in range(self.max_retries + 1):
            try:
                request = urllib.request.Request(self.endpoint, body, headers)  # noqa: S310 - the program's endpoint
                with get_url_opener().open(request, timeout=30):
                    return
            except HTTPError as error:
                if error.code < 500:
                    log.warning("traces were refused with status %s", error.code)
                    return
            except (URLError, TimeoutError, OSError):
                log.debug("the traces endpoint cannot be reached")
            if attempt < self.max_retries:
                time.sleep(min(self.base_delay * 2**attempt, self.max_delay))
        log.warning("traces could not be exported after %s attempts", self.max_retries + 1)


@cache
def default_exporter() -> BackendSpanExporter:
    """Return the exporter to OpenAI's dashboard, which is not used unless the program asks for it."""
    return BackendSpanExporter()


@cache
def default_processor() -> BatchTraceProcessor:
    """Return the processor of :func:`default_exporter`."""
    return BatchTraceProcessor(default_exporter())


def set_tracing_export_api_key(api_key: str) -> None:
    """Export traces to OpenAI's dashboard from now on, with this key. Without this call nothing is sent there."""
    default_exporter().set_api_key(api_key)
    if default_processor() not in TracingState.processors:
        add_trace_processor(default_processor())
