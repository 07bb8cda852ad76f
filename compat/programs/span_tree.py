"""A trace processor that draws the tree of spans of a run, with what each of them exports."""

import asyncio
import json

from agents import Agent, RunConfig, Runner, custom_span, flush_traces, function_tool, get_current_trace, trace
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import TracingProcessor, add_trace_processor, get_current_span


class Tree(TracingProcessor):
    def __init__(self):
        self.spans, self.traces = [], []

    def on_trace_start(self, trace):
        self.traces.append(trace)

    def on_trace_end(self, trace):
        exported = trace.export()
        print("trace", exported["workflow_name"], exported["group_id"], exported["metadata"])

    def on_span_start(self, span):
        assert span.started_at and not span.ended_at

    def on_span_end(self, span):
        self.spans.append(span)

    def shutdown(self):
        print("shutdown")

    def force_flush(self):
        print("flushed")

    def draw(self, parent=None, depth=0):
        for span in sorted(self.spans, key=lambda span: span.started_at):
            if span.parent_id == parent:
                data = {name: value for name, value in span.span_data.export().items() if value is not None}
                data.pop("response_id", None)
                if "usage" in data:
                    data["usage"] = {name: count for name, count in data["usage"].items() if isinstance(count, int)}
                print("  " * depth + json.dumps(data, sort_keys=True, default=str), span.error)
                self.draw(span.span_id, depth + 1)


SHOWN = RunConfig(trace_include_sensitive_data=True)


@function_tool
def broken() -> str:
    """Breaks."""
    raise ValueError("broken")


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    with custom_span("adding", {"a": a}):
        assert get_current_span().span_data.name == "adding"
        return a + b


async def main() -> None:
    tree = Tree()
    add_trace_processor(tree)
    inner = Agent(name="Inner", model="gpt-4.1")
    other = Agent(name="Other", model="gpt-4.1", output_type=list[int])
    agent = Agent(name="A", model="gpt-4.1", tools=[add, broken, inner.as_tool("inner", "Inner.")], handoffs=[other])
    with trace("Office", group_id="g1", metadata={"who": "ann"}):
        print(get_current_trace().name)
        await Runner.run(agent, 'call add {"a": 1, "b": 2} and call broken {}', run_config=SHOWN)
        await Runner.run(agent, 'call inner {"input": "hi"}', run_config=SHOWN)
    await Runner.run(agent, "call transfer_to_other {}", run_config=RunConfig(workflow_name="Handing", group_id="g2"))
    scripted = Agent(
        name="S",
        model=ScriptedModel([[function_call("add", {"a": 1, "b": 1}, call_id="c")], [assistant_message("2")]]),
        tools=[add],
    )
    await Runner.run(scripted, "x", run_config=RunConfig(trace_include_sensitive_data=False))
    await Runner.run(
        scripted.clone(model=ScriptedModel([[assistant_message("2")]])),
        "x",
        run_config=RunConfig(tracing_disabled=True),
    )
    flush_traces()
    tree.draw()
    print(len(tree.traces))


asyncio.run(main())
