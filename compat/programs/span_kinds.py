import json

from agents import (
    AgentSpanData,
    CustomSpanData,
    FunctionSpanData,
    GenerationSpanData,
    GuardrailSpanData,
    HandoffSpanData,
    MCPListToolsSpanData,
    ResponseSpanData,
    Span,
    SpanData,
    SpanError,
    SpeechGroupSpanData,
    SpeechSpanData,
    TaskSpanData,
    Trace,
    TranscriptionSpanData,
    TurnSpanData,
    agent_span,
    custom_span,
    flush_traces,
    function_span,
    gen_span_id,
    gen_trace_id,
    generation_span,
    get_current_span,
    get_current_trace,
    guardrail_span,
    handoff_span,
    mcp_tools_span,
    response_span,
    set_trace_processors,
    set_tracing_disabled,
    speech_group_span,
    speech_span,
    task_span,
    trace,
    transcription_span,
    turn_span,
)
from agents.tracing import TracingProcessor, add_trace_processor


class Printer(TracingProcessor):
    def on_trace_start(self, trace) -> None:
        print("trace", trace.export()["workflow_name"], isinstance(trace, Trace))

    def on_trace_end(self, trace) -> None:
        print("end", trace.name)

    def on_span_start(self, span) -> None:
        assert isinstance(span, Span) and isinstance(span.span_data, SpanData)

    def on_span_end(self, span) -> None:
        exported = span.export()
        print(sorted(exported), json.dumps(exported["span_data"], sort_keys=True, default=str), exported["error"])
        print(span.started_at is not None, span.ended_at >= span.started_at, exported["parent_id"] is None)

    def shutdown(self) -> None:
        print("shutdown")

    def force_flush(self) -> None:
        print("flush")


set_trace_processors([Printer()])
with trace("kinds", group_id="g1", metadata={"user": "ann"}) as current:
    print(
        current.name,
        get_current_trace() is current,
        current.trace_id.startswith("trace_"),
        current.export()["group_id"],
    )
    with agent_span("A", handoffs=["B"], tools=["t"], output_type="str") as span:
        print(get_current_span() is span, span.trace_id == current.trace_id, type(span.span_data) is AgentSpanData)
        with function_span("f", input="i", output="o") as inner:
            print(inner.parent_id == span.span_id, type(inner.span_data) is FunctionSpanData)
    with generation_span(
        input=[{"role": "user", "content": "x"}], output=[], model="m", model_config={"a": 1}, usage={"input_tokens": 1}
    ) as span:
        assert isinstance(span.span_data, GenerationSpanData)
    with response_span() as span:
        print(type(span.span_data) is ResponseSpanData)
    with handoff_span("A", "B") as span:
        span.set_error(SpanError(message="no", data={"why": "x"}))
        print(span.error, type(span.span_data) is HandoffSpanData)
    with guardrail_span("g", triggered=True) as span:
        print(type(span.span_data) is GuardrailSpanData)
    with custom_span("c", {"k": [1, 2]}) as span:
        print(type(span.span_data) is CustomSpanData, span.span_data.name, span.span_data.data)
    with transcription_span("stt", input="aGk=", input_format="pcm", output="hi", model_config={}) as span:
        print(type(span.span_data) is TranscriptionSpanData)
    with speech_group_span(input="hello") as group, speech_span("tts", input="hello", output="aGk=") as span:
        print(type(group.span_data) is SpeechGroupSpanData, type(span.span_data) is SpeechSpanData)
    with mcp_tools_span(server="s", result=["a", "b"]) as span:
        print(type(span.span_data) is MCPListToolsSpanData)
    with task_span("t") as task, turn_span(turn=1, agent_name="A") as turn:
        print(type(task.span_data) is TaskSpanData, type(turn.span_data) is TurnSpanData)
print(len(gen_trace_id()), len(gen_span_id()), gen_span_id() != gen_span_id())
add_trace_processor(Printer())
with trace("two"):
    pass
flush_traces()
set_tracing_disabled(True)
with trace("off"), custom_span("x"):
    print("nothing")
set_tracing_disabled(False)
