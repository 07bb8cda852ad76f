"""Traces of runs that pause and are resumed."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.trace import StatusCode

import standfast
from factories.runs import approve_all, run_agent
from standfast import Agent, RunConfig, Runner, RunState, function_tool, trace
from standfast.testing import ScriptedModel, assistant_message, function_call
from telemetry import ExportedSpans, RecordingProcessor

SRC = str(Path(standfast.__file__).parent.parent)


@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    return f"refunded {amount}"


def refunding(*, asked_before: bool = False) -> Agent[Any]:
    steps: list[Any] = [[function_call("refund", {"amount": 5}, call_id="r1")], [assistant_message("done")]]
    return Agent("support", tools=[refund], model=ScriptedModel(steps[asked_before:]))


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_a_resumed_run_continues_in_its_trace(
    exported: ExportedSpans, kept: RecordingProcessor, way: str
) -> None:
    result = await run_agent(way, refunding(), "hello", run_config=RunConfig(group_id="chat-1"))
    saved = result.to_state().to_string()
    agent = refunding(asked_before=True)
    state = await RunState.from_string(agent, saved)
    approve_all(state)
    with otel.get_tracer("web").start_as_current_span("the request that approves") as request:
        await run_agent(way, agent, state)
    first, second = [span for span in exported.spans if span.name.startswith("invoke_workflow")]
    assert second.context.trace_id == first.context.trace_id
    assert second.parent.span_id == first.context.span_id
    assert [link.context.span_id for link in second.links] == [request.get_span_context().span_id]
    assert second.attributes["gen_ai.conversation.id"] == "chat-1"
    assert exported.named("execute_tool refund").context.trace_id == first.context.trace_id
    traces = [trace.export() for what, trace in kept.calls if what == "trace_start"]
    assert len(traces) == 1  # processors get a trace once
    kinds = [span for what, span in kept.calls if what == "span_end"]
    assert {span.trace_id for span in kinds} == {traces[0]["id"]}


async def test_another_process_continues_in_the_same_trace(exported: ExportedSpans) -> None:
    result = await Runner.run(refunding(), "hello")
    program = """if True:
        import asyncio, sys
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from standfast import Agent, Runner, RunState, function_tool
        from standfast.testing import ScriptedModel, assistant_message

        @function_tool(needs_approval=True)
        async def refund(amount: int) -> str:
            return f"refunded {amount}"

        async def main():
            exporter = InMemorySpanExporter()
            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            trace.set_tracer_provider(provider)
            agent = Agent("support", tools=[refund], model=ScriptedModel([[assistant_message("done")]]))
            state = await RunState.from_string(agent, sys.stdin.read())
            state.approve(state.get_interruptions()[0])
            await Runner.run(agent, state)
            print({span.context.trace_id for span in exporter.get_finished_spans()})

        asyncio.run(main())
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        input=result.to_state().to_string(),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SRC, "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == str({exported.spans[0].context.trace_id}), done.stderr


async def test_a_run_resumed_inside_of_a_trace_is_linked_to_where_it_was(exported: ExportedSpans) -> None:
    result = await Runner.run(refunding(), "hello")
    state = result.to_state()
    approve_all(state)
    with trace("Second day"):
        await Runner.run(result.last_agent, state)
    first, second = [span for span in exported.spans if span.name.startswith("invoke_workflow")]
    assert second.context.trace_id == exported.named("Second day").context.trace_id
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


async def test_a_run_inside_of_a_trace_is_resumed_in_it(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    with trace("First day") as first_day:
        result = await Runner.run(refunding(), "hello")
    agent = refunding(asked_before=True)
    state = await RunState.from_string(agent, result.to_state().to_string())
    approve_all(state)
    await Runner.run(agent, state)
    assert {span.context.trace_id for span in exported.spans} == {exported.named("First day").context.trace_id}
    assert {span["trace_id"] for span in kept.exported_spans()} == {first_day.trace_id}


async def test_a_saved_trace_that_makes_no_sense_is_no_obstacle(exported: ExportedSpans) -> None:
    result = await Runner.run(refunding(), "hello")
    state = result.to_state()
    state.set_trace({"id": 7, "traceparent": "nonsense", "metadata": "x"})
    approve_all(state)
    assert (await Runner.run(result.last_agent, state)).final_output == "done"


async def test_a_paused_nested_run_is_no_failure(exported: ExportedSpans) -> None:
    model = ScriptedModel(
        [
            [function_call("ask", {"input": "x"}, call_id="n1")],
            [function_call("refund", {"amount": 5}, call_id="r1")],
            [assistant_message("inner")],
            [assistant_message("outer")],
        ]
    )
    inner = Agent("inner", tools=[refund], model=model)
    outer = Agent("outer", tools=[inner.as_tool("ask", "Asks.")], model=model)
    result = await Runner.run(outer, "hello")
    assert {span.status.status_code for span in exported.spans} == {StatusCode.UNSET}
    state = await RunState.from_string(outer, result.to_state().to_string())
    approve_all(state)
    assert (await Runner.run(outer, state)).final_output == "outer"
    assert len({span.context.trace_id for span in exported.spans}) == 1
    again = [span for span in exported.spans if span.name == "execute_tool ask"]
    assert len(again) == 2
