"""Traces are exported in batches; to OpenAI's dashboard only if the program asks for it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from standfast.tracing import (
    BackendSpanExporter,
    BatchTraceProcessor,
    ConsoleSpanExporter,
    SpeechSpanData,
    TraceCtxManager,
    TracingExporter,
    TranscriptionSpanData,
    custom_span,
    get_current_trace,
    get_trace_provider,
    set_trace_processors,
    speech_group_span,
    trace,
)


class Kept(TracingExporter):
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def export(self, items: list[Any]) -> None:
        self.batches.append(items)


@pytest.fixture(autouse=True)
def no_processors() -> Iterator[None]:
    yield
    set_trace_processors([])


def record(processor: BatchTraceProcessor, spans: int = 3, **options: Any) -> None:
    set_trace_processors([processor])
    with trace("work", **options):
        for number in range(spans):
            with custom_span(f"s{number}", {"n": number}):
                pass


def test_a_flush_exports_everything_in_batches() -> None:
    kept = Kept()
    processor = BatchTraceProcessor(kept, max_batch_size=3, schedule_delay=3600)
    record(processor)
    get_trace_provider().force_flush()
    assert [len(batch) for batch in kept.batches] == [3, 1]
    processor.shutdown()


def test_a_full_queue_is_exported_without_waiting() -> None:
    exported = threading.Event()

    class Signal(TracingExporter):
        def export(self, items: list[Any]) -> None:
            exported.set()

    processor = BatchTraceProcessor(Signal(), max_queue_size=4, export_trigger_ratio=0.5, schedule_delay=3600)
    record(processor)
    assert exported.wait(60)
    processor.shutdown()


def test_shutdown_exports_what_is_left() -> None:
    kept = Kept()
    processor = BatchTraceProcessor(kept, schedule_delay=3600)
    record(processor, spans=1)
    processor.shutdown()
    assert sum(map(len, kept.batches)) == 2


def test_the_console_exporter_prints_no_contents(capsys: pytest.CaptureFixture[str]) -> None:
    processor = BatchTraceProcessor(ConsoleSpanExporter(), schedule_delay=3600)
    set_trace_processors([processor])
    with trace("work"), custom_span("name", {"secret": "hunter2"}):
        pass
    processor.shutdown()
    printed = capsys.readouterr().out
    assert "[trace]" in printed
    assert "[span]" in printed
    assert "hunter2" not in printed


@pytest.fixture
def endpoint() -> Iterator[Any]:
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            received.append((self.headers["authorization"], body))
            self.send_response(500 if len(received) == 1 else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/traces", received
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_backend_exporter_sends_with_the_key_of_the_trace_and_repeats_after_a_failure(endpoint: Any) -> None:
    url, received = endpoint
    processor = BatchTraceProcessor(BackendSpanExporter("k1", endpoint=url, base_delay=0), schedule_delay=3600)
    record(processor, spans=1, tracing={"api_key": "k2"})
    processor.shutdown()
    assert [key for key, _ in received] == ["Bearer k2", "Bearer k2"]
    assert [item["object"] for item in received[-1][1]["data"]] == ["trace", "trace.span"]


def test_without_a_key_nothing_is_sent(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    url, received = endpoint
    processor = BatchTraceProcessor(BackendSpanExporter(endpoint=url), schedule_delay=3600)
    record(processor)
    processor.shutdown()
    assert received == []


def test_speech_spans_export_audio_with_its_format() -> None:
    audio = {"data": "AAAA", "format": "pcm"}
    assert SpeechSpanData(input="hi", output="AAAA").export()["output"] == audio
    assert TranscriptionSpanData(input="AAAA", output="hi").export()["input"] == audio
    kept = Kept()
    processor = BatchTraceProcessor(kept, schedule_delay=3600)
    set_trace_processors([processor])
    with trace("talk"), speech_group_span("hello"):
        pass
    processor.shutdown()
    assert kept.batches[0][1].export()["span_data"] == {"type": "speech_group", "input": "hello"}


def test_a_trace_is_started_unless_one_is_current() -> None:
    with TraceCtxManager("outer") as outer:
        assert get_current_trace() is outer.trace
        with TraceCtxManager("inner") as inner:
            assert inner.trace is None
            assert get_current_trace() is outer.trace
    assert get_current_trace() is None
