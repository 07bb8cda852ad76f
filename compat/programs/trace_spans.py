import asyncio
import json

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunConfig,
    Runner,
    RunState,
    function_tool,
    set_trace_processors,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import TracingProcessor


class Collector(TracingProcessor):
    def __init__(self) -> None:
        self.spans, self.traces = [], []

    def on_trace_start(self, trace) -> None:
        self.traces.append(f"start {trace.name}")

    def on_trace_end(self, trace) -> None:
        self.traces.append(f"end {trace.name}")

    def on_span_start(self, span) -> None:
        self.spans.append(span)

    def on_span_end(self, span) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass

    def show(self, label: str) -> None:
        print("#", label, self.traces)
        known = {span.span_id: span for span in self.spans}
        for span in self.spans:
            depth, above = 0, span
            while above.parent_id in known:
                depth, above = depth + 1, known[above.parent_id]
            data = span.export()["span_data"]
            if data["type"] == "response":
                data = {
                    "type": "response",
                    "has_id": data["response_id"] is not None,
                    "tokens": data["usage"]["total_tokens"],
                }
            print("  " * depth, type(span.span_data).__name__, json.dumps(data, sort_keys=True), span.error)
        self.spans, self.traces = [], []


collector = Collector()


@function_tool
def weather(city: str) -> str:
    """Return the weather."""
    return "sunny"


@function_tool
def bad(city: str) -> str:
    """Fail."""
    raise ValueError("detail")


@function_tool(failure_error_function=None)
def worse(city: str) -> str:
    """Fail for good."""
    raise ValueError("detail")


@function_tool(needs_approval=True)
def careful() -> str:
    """Ask first."""
    return "done"


def trip(name, trips=True):
    async def check(context, agent, given):
        if not trips:
            raise ValueError("broken guardrail")
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    check.__name__ = name
    return check


async def attempt(label, agent, *, max_turns=10, **options) -> None:
    try:
        await Runner.run(agent, 'call weather {"city": "Rome"}', max_turns=max_turns, run_config=RunConfig(**options))
    except Exception as error:
        print(label, "raised", type(error).__name__ if label != "worse" else "")
    collector.show(label)


def script(*steps):
    return ScriptedModel(list(steps))


async def main() -> None:
    set_trace_processors([collector])
    with_data = {"trace_include_sensitive_data": True}
    await attempt("responses", Agent(name="A", model="gpt-4.1", tools=[weather]), **with_data)
    call = [function_call("weather", {"city": "Rome"}, call_id="c")]
    done = [assistant_message("done")]
    await attempt("tool", Agent(name="A", model=script(call, done), tools=[weather]), **with_data)
    for tool in (bad, worse):
        failing = [function_call(tool.name, {"city": "Rome"}, call_id="c")]
        for sensitive in (True, False):
            agent = Agent(name="A", model=script(failing, done), tools=[tool])
            await attempt(tool.name, agent, trace_include_sensitive_data=sensitive)
    await attempt("model", Agent(name="A", model=script(ValueError("boom"))), **with_data)
    await attempt(
        "model, no data", Agent(name="A", model=script(ValueError("boom"))), trace_include_sensitive_data=False
    )
    await attempt("max turns", Agent(name="A", model=script(call, call), tools=[weather]), max_turns=1, **with_data)
    for label, options in (
        ("input guardrail", {"input_guardrails": [InputGuardrail(guardrail_function=trip("g"))]}),
        ("output guardrail", {"output_guardrails": [OutputGuardrail(guardrail_function=trip("g"))]}),
        ("broken guardrail", {"input_guardrails": [InputGuardrail(guardrail_function=trip("g", trips=False))]}),
    ):
        await attempt(label, Agent(name="A", model=script(done), **options), **with_data)
    other = Agent(name="B", model=script(done))
    await attempt(
        "handoff", Agent(name="A", model=script([function_call("transfer_to_b", {}, call_id="h")]), handoffs=[other])
    )
    inner = Agent(name="Inner", model=script(done))
    ask = [function_call("ask", {"input": "q"}, call_id="c")]
    outer = Agent(name="Outer", model=script(ask, done), tools=[inner.as_tool("ask", "Ask.")])
    await attempt("agent tool", outer, **with_data)
    await attempt(
        "brief",
        Agent(name="A", model=script(call, done), tools=[weather]),
        tracing={"include_task_and_turn_spans": False},
        **with_data,
    )
    for name in ("Flow", "Other"):
        agent = Agent(name="A", model=script([function_call("careful", {}, call_id="c")], done), tools=[careful])
        result = await Runner.run(agent, "go", run_config=RunConfig(workflow_name="Flow"))
        collector.spans, collector.traces = [], []
        state = await RunState.from_string(agent, result.to_state().to_string())
        state.approve(state.get_interruptions()[0])
        await Runner.run(agent, state, run_config=RunConfig(workflow_name=name, trace_include_sensitive_data=True))
        collector.show(f"resumed {name}")
    set_trace_processors([])


asyncio.run(main())
