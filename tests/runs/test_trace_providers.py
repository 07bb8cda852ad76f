"""Providers of the program's own, which make its traces and spans."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import standfast.testing
from standfast import (
    Agent,
    RunConfig,
    Runner,
    Span,
    Trace,
    TraceProvider,
    TracingProcessor,
    add_trace_processor,
    custom_span,
    flush_traces,
    set_trace_processors,
    set_trace_provider,
    set_tracing_disabled,
    trace,
)
from standfast.testing import assistant_message
from telemetry import ExportedSpans, RecordingProcessor

ScriptedModel = partial(standfast.testing.ScriptedModel, emit_traces=True)


class Sheet(Trace):
    """A trace of the program's own make, which keeps the spans that ended in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines: list[str] = []


class Line(Span[Any]):
    def finish(self, reset_current: bool = False) -> None:
        super().finish(reset_current)
        if isinstance(self.trace, Sheet):
            self.trace.lines.append(self.span_data.type)


class Ledger(TraceProvider):
    def __init__(self) -> None:
        self.sheets: list[Sheet] = []

    def create_trace(self, name: str, trace_id: Any = None, *args: Any, **kwargs: Any) -> Trace:
        self.sheets.append(Sheet(name, trace_id=trace_id))
        return self.sheets[-1]

    def create_span(self, span_data: Any, span_id: Any = None, parent: Any = None, disabled: bool = False) -> Span[Any]:
        return Line(span_data, span_id=span_id, parent=parent, recorded=not disabled)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    provider = Ledger()
    set_trace_provider(provider)
    yield provider
    set_trace_provider(None)


def hello() -> Agent[Any]:
    return Agent(name="guide", model=ScriptedModel([[assistant_message("Hello.")]]))


async def test_a_provider_makes_every_trace_and_span(ledger: Ledger) -> None:
    await Runner.run(hello(), "Hello?", run_config=RunConfig(workflow_name="greeting", trace_id="trace_7"))
    with trace("a day"), custom_span("mine"):
        pass
    assert [(sheet.name, sheet.lines) for sheet in ledger.sheets] == [
        ("greeting", ["generation", "turn", "agent", "task"]),
        ("a day", ["custom"]),
    ]
    assert ledger.sheets[0].trace_id == "trace_7"


async def test_spans_of_a_provider_reach_processors_and_telemetry(
    ledger: Ledger, exported: ExportedSpans, kept: RecordingProcessor
) -> None:
    await Runner.run(hello(), "Hello?")
    assert [span["span_data"]["type"] for span in kept.exported_spans()] == ["generation", "custom", "agent", "custom"]
    assert all(type(span) is Line for what, span in kept.calls if what == "span_end")
    assert len(exported.spans) == 4


async def test_a_provider_that_changes_nothing_changes_nothing(kept: RecordingProcessor) -> None:
    await Runner.run(hello(), "Hello?")
    before = [span["span_data"] for span in kept.exported_spans()]
    kept.calls.clear()
    set_trace_provider(TraceProvider())
    try:
        await Runner.run(hello(), "Hello?")
    finally:
        set_trace_provider(None)
    assert [span["span_data"] for span in kept.exported_spans()] == before


@pytest.mark.parametrize("made", [None, "text", ZeroDivisionError])
async def test_a_provider_that_fails_is_done_without(kept: RecordingProcessor, caplog: Any, made: Any) -> None:
    class Failing(TraceProvider):
        def create_trace(self, *args: Any, **kwargs: Any) -> Any:
            if made is ZeroDivisionError:
                raise made
            return made

        create_span = create_trace  # type: ignore[assignment]

    set_trace_provider(Failing())
    try:
        result = await Runner.run(hello(), "Hello?")
    finally:
        set_trace_provider(None)
    assert result.final_output == "Hello."
    assert len(kept.exported_spans()) == 4
    assert caplog.text.count("the run continues without it") == 5


async def test_a_provider_is_not_called_where_tracing_is_off(ledger: Ledger) -> None:
    await Runner.run(hello(), "Hello?", run_config=RunConfig(tracing_disabled=True))
    set_tracing_disabled(True)
    try:
        await Runner.run(hello(), "Hello?")
        with trace("a day"), custom_span("mine"):
            pass
    finally:
        set_tracing_disabled(False)
    assert ledger.sheets == []


def test_a_provider_may_leave_a_trace_out(kept: RecordingProcessor) -> None:
    class Sampling(TraceProvider):
        def create_trace(self, name: str, *args: Any, **kwargs: Any) -> Trace:
            return super().create_trace(name, disabled=name == "dull")

    set_trace_provider(Sampling())
    try:
        for name in ("dull", "bright"):
            with trace(name), custom_span(f"in {name}"):
                pass
    finally:
        set_trace_provider(None)
    assert [span["span_data"]["name"] for span in kept.exported_spans()] == ["in bright"]


def test_a_provider_decides_about_processors(kept: RecordingProcessor) -> None:
    calls: list[str] = []

    class Deaf(TraceProvider):
        def register_processor(self, processor: TracingProcessor) -> None:
            calls.append("register")

        def set_processors(self, processors: list[TracingProcessor]) -> None:
            calls.append("set")

        def set_disabled(self, disabled: bool) -> None:
            calls.append(f"disabled {disabled}")

        def force_flush(self) -> None:
            calls.append("flush")

    set_trace_provider(Deaf())
    try:
        add_trace_processor(RecordingProcessor())
        set_trace_processors([])
        set_tracing_disabled(False)
        flush_traces()
    finally:
        set_trace_provider(None)
    assert calls == ["register", "set", "disabled False", "flush"]
    with trace("still heard"):
        pass
    assert kept.count("trace_start") == 1
