"""The traces of runs: through the real OpenTelemetry SDK, and to a program's own processors."""

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.trace import SpanKind, StatusCode

import standfast
import standfast.testing
from factories.runs import run_agent
from standfast import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    RunConfig,
    Runner,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    custom_span,
    flush_traces,
    function_span,
    function_tool,
    get_current_span,
    get_current_trace,
    input_guardrail,
    output_guardrail,
    set_trace_processors,
    set_tracing_disabled,
    tool_input_guardrail,
    trace,
)
from standfast.testing import ModelStep, assistant_message, function_call
from telemetry import ExportedSpans, RecordingProcessor

ScriptedModel = partial(standfast.testing.ScriptedModel, emit_traces=True)

SRC = str(Path(standfast.__file__).parent.parent)


class Broken(RecordingProcessor):
    def on_trace_start(self, trace: Any) -> None:
        raise RuntimeError("the processor is broken")

    on_trace_end = on_span_start = on_span_end = on_trace_start


@input_guardrail
async def polite(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, False)


@input_guardrail(run_in_parallel=False)
async def strict(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, True)


@output_guardrail
async def short(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, False)


@tool_input_guardrail
async def modest(data: Any) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.allow()


@function_tool(tool_input_guardrails=[modest])
async def weather(city: str) -> str:
    """What the weather is like."""
    return f"sunny in {city}"


@function_tool
def clock() -> str:
    """What time it is."""
    with custom_span("look at the clock"):
        return "noon"


def everything() -> tuple[Agent[Any], ScriptedModel]:
    """A run with two tools at a time, a nested agent, a handoff and guardrails."""
    model = ScriptedModel(
        [
            [
                function_call("weather", {"city": "Rome"}, call_id="w1"),
                function_call("clock", {}, call_id="c1"),
            ],
            [function_call("ask_helper", {"input": "help"}, call_id="h1")],
            [function_call("weather", {"city": "Oslo"}, call_id="w2")],
            [assistant_message("helped")],
            [function_call("transfer_to_closer", {}, call_id="t1")],
            [assistant_message("goodbye")],
        ]
    )
    helper = Agent("helper", tools=[weather], model=model)
    closer = Agent("closer", model=model, output_guardrails=[short])
    first = Agent(
        "first",
        tools=[weather, clock, helper.as_tool("ask_helper", "Asks the helper.")],
        handoffs=[closer],
        input_guardrails=[polite],
        model=model,
    )
    return first, model


TREE = """\
invoke_workflow Agent workflow
  invoke_agent closer
    guardrail short
    turn 4
      chat ScriptedModel
  invoke_agent first
    turn 1
      chat ScriptedModel
      execute_tool clock
        look at the clock
      execute_tool weather
        guardrail modest
      guardrail polite
    turn 2
      chat ScriptedModel
      execute_tool ask_helper
        invoke_workflow Agent workflow
          invoke_agent helper
            turn 1
              chat ScriptedModel
              execute_tool weather
                guardrail modest
            turn 2
              chat ScriptedModel
    turn 3
      chat ScriptedModel
      handoff closer
""".splitlines()


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_a_run_is_one_tree_of_spans(exported: ExportedSpans, way: str) -> None:
    agent, _ = everything()
    result = await run_agent(way, agent, "hello")
    assert result.final_output == "goodbye"
    assert exported.tree() == TREE
    assert len({span.context.trace_id for span in exported.spans}) == 1
    assert {span.status.status_code for span in exported.spans} == {StatusCode.UNSET}
    assert get_current_span() is None
    assert get_current_trace() is None
    assert not otel.get_current_span().get_span_context().is_valid


async def test_parallel_tools_are_siblings_and_nested_agents_are_inside_their_call(exported: ExportedSpans) -> None:
    agent, _ = everything()
    await Runner.run(agent, "hello")
    spans = {span.context.span_id: span for span in exported.spans}

    def above(span: Any) -> list[str]:
        return [] if span.parent is None else [spans[span.parent.span_id].name, *above(spans[span.parent.span_id])]

    assert above(exported.named("execute_tool clock"))[0] == "turn 1"
    by_call = {span.attributes.get("gen_ai.tool.call.id"): span for span in exported.spans}
    assert by_call["w1"].parent.span_id == by_call["c1"].parent.span_id
    assert above(exported.named("invoke_agent helper"))[1:3] == ["execute_tool ask_helper", "turn 2"]
    assert above(exported.named("look at the clock"))[0] == "execute_tool clock"


async def test_spans_have_the_attributes_of_the_conventions(exported: ExportedSpans) -> None:
    usage = standfast.Usage(requests=1, input_tokens=7, output_tokens=3, total_tokens=10)
    model = ScriptedModel(
        [
            ModelStep([function_call("weather", {"city": "Rome"}, call_id="w1")], usage=usage, response_id="resp_1"),
            [assistant_message("sunny")],
        ]
    )
    agent = Agent("forecast", tools=[weather], model=model, model_settings=ModelSettings(temperature=0.5))
    session = SQLiteSession("user-7")
    await Runner.run(
        agent, "Rome?", session=session, run_config=RunConfig(workflow_name="Weather", trace_metadata={"team": "a"})
    )
    session.close()
    run = exported.named("invoke_workflow Weather")
    assert run.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert run.attributes["standfast.trace.metadata.team"] == "a"
    assert run.attributes["standfast.run.id"].startswith("run_")
    invoked = exported.named("invoke_agent forecast")
    assert invoked.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert invoked.attributes["gen_ai.agent.name"] == "forecast"
    assert invoked.attributes["gen_ai.conversation.id"] == "user-7"
    asked = next(span for span in exported.spans if span.name == "chat ScriptedModel")
    assert asked.kind is SpanKind.CLIENT
    assert asked.attributes["gen_ai.operation.name"] == "chat"
    assert asked.attributes["gen_ai.request.model"] == "ScriptedModel"
    assert asked.attributes["gen_ai.request.temperature"] == 0.5
    assert asked.attributes["gen_ai.response.id"] == "resp_1"
    assert asked.attributes["gen_ai.conversation.id"] == "user-7"
    assert (asked.attributes["gen_ai.usage.input_tokens"], asked.attributes["gen_ai.usage.output_tokens"]) == (7, 3)
    called = exported.named("execute_tool weather")
    assert called.attributes["gen_ai.operation.name"] == "execute_tool"
    assert called.attributes["gen_ai.tool.name"] == "weather"
    assert called.attributes["gen_ai.tool.call.id"] == "w1"
    assert called.attributes["gen_ai.tool.description"] == "What the weather is like."


def secretive() -> Agent[Any]:
    @function_tool
    async def leak(word: str) -> str:
        raise ValueError(f"SECRET-message {word}")

    @function_tool
    async def tell(word: str) -> str:
        return "SECRET-output"

    model = ScriptedModel(
        [
            [function_call("tell", {"word": "SECRET-argument"}, call_id="a")],
            [function_call("leak", {"word": "SECRET-argument"}, call_id="b")],
            [assistant_message("SECRET-answer")],
        ]
    )
    return Agent("keeper", instructions="SECRET-instructions", tools=[tell, leak], model=model)


WORDS = ["instructions", "input", "argument", "output", "answer", "message"]


async def test_contents_are_not_traced_by_default(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    await Runner.run(secretive(), "SECRET-input")
    assert len(exported.spans) == 10
    assert "SECRET" not in exported.text()
    assert "SECRET" not in json.dumps(kept.exported_spans())


async def test_contents_are_traced_when_configured(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    await Runner.run(secretive(), "SECRET-input", run_config=RunConfig(trace_include_sensitive_data=True))
    for word in WORDS:
        assert f"SECRET-{word}" in exported.text()
        assert word in ("instructions", "message") or f"SECRET-{word}" in json.dumps(kept.exported_spans())
    called = exported.named("execute_tool tell")
    assert called.attributes["gen_ai.tool.call.arguments"] == '{"word":"SECRET-argument"}'
    assert called.attributes["gen_ai.tool.call.result"] == "SECRET-output"
    last = [span for span in exported.spans if span.name.startswith("chat")][-1]
    said = json.loads(last.attributes["gen_ai.input.messages"])
    assert said[0] == {"role": "user", "parts": [{"type": "text", "content": "SECRET-input"}]}
    assert said[1]["parts"][0] | {"arguments": ""} == {"type": "tool_call", "id": "a", "name": "tell", "arguments": ""}
    assert said[2]["parts"][0] == {"type": "tool_call_response", "id": "a", "response": "SECRET-output"}
    answer = json.loads(last.attributes["gen_ai.output.messages"])
    assert answer == [{"role": "assistant", "parts": [{"type": "text", "content": "SECRET-answer"}]}]
    assert json.loads(last.attributes["gen_ai.system_instructions"])[0]["content"] == "SECRET-instructions"


async def test_a_model_receives_what_it_may_trace(exported: ExportedSpans) -> None:
    tracing = []
    for config in ({}, {"trace_include_sensitive_data": True}, {"tracing_disabled": True}):
        model = ScriptedModel([[assistant_message("yes")]])
        await Runner.run(Agent("a", model=model), "hello", run_config=config)
        tracing.append(model.calls[0].tracing.name)
    assert tracing == ["ENABLED_WITHOUT_DATA", "ENABLED", "DISABLED"]


# --- errors -------------------------------------------------------------------------------------------


async def test_an_error_marks_every_span_that_it_leaves(exported: ExportedSpans) -> None:
    agent = Agent("a", model=ScriptedModel([ConnectionError("the network is gone")]))
    with pytest.raises(ConnectionError):
        await Runner.run(agent, "hello")
    assert len(exported.spans) == 4
    for span in exported.spans:
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "ConnectionError"


async def test_a_tool_error_that_the_model_receives_marks_the_tool_span_only(exported: ExportedSpans) -> None:
    await Runner.run(secretive(), "hello")
    failed = [span.name for span in exported.spans if span.status.status_code is StatusCode.ERROR]
    assert failed == ["execute_tool leak"]
    assert exported.named("execute_tool leak").attributes["error.type"] == "ValueError"


async def test_a_guardrail_that_trips_is_seen(exported: ExportedSpans) -> None:
    agent = Agent("a", model=ScriptedModel(), input_guardrails=[strict])
    with pytest.raises(standfast.InputGuardrailTripwireTriggered):
        await Runner.run(agent, "hello")
    assert exported.named("guardrail strict").attributes["standfast.guardrail.triggered"] is True
    assert exported.named("turn 1").attributes["error.type"] == "InputGuardrailTripwireTriggered"


async def test_processors_that_fail_change_nothing(
    exported: ExportedSpans, kept: RecordingProcessor, caplog: Any
) -> None:
    set_trace_processors([Broken(), kept])
    agent, _ = everything()
    result = await Runner.run(agent, "hello")
    assert result.final_output == "goodbye"
    assert kept.count("span_end") == len(exported.spans) == len(TREE)
    assert "the processor is broken" in caplog.text


async def test_a_span_processor_of_the_sdk_that_fails_changes_nothing(exported: ExportedSpans, caplog: Any) -> None:
    from opentelemetry.sdk.trace import SpanProcessor

    class Failing(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("cannot start")

        def on_end(self, span: Any) -> None:
            raise RuntimeError("cannot end")

    exported.provider.add_span_processor(Failing())
    agent, _ = everything()
    result = await Runner.run(agent, "hello")
    assert result.final_output == "goodbye"
    assert "cannot start" in caplog.text


async def test_contents_of_any_shape_do_not_lose_a_span(exported: ExportedSpans) -> None:
    def odd(data: Any) -> Any:
        return standfast.ModelInputData([*data.model_data.input, "no item", {"role": "user", "content": None}], None)

    config = RunConfig(trace_include_sensitive_data=True, call_model_input_filter=odd)
    await Runner.run(Agent("a", model=ScriptedModel([[assistant_message("x")]])), "hello", run_config=config)
    assert "no item" in exported.named("chat ScriptedModel").attributes["gen_ai.input.messages"]


# --- ending -------------------------------------------------------------------------------------------


def waiting_agent() -> tuple[Agent[Any], asyncio.Event]:
    begun = asyncio.Event()

    @function_tool
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return Agent("a", tools=[wait], model=ScriptedModel([[function_call("wait", {}, call_id="w")]])), begun


NAMES = ["invoke_workflow Agent workflow", "invoke_agent a", "turn 1", "chat ScriptedModel", "execute_tool wait"]


async def test_a_cancelled_run_ends_its_spans(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    agent, begun = waiting_agent()
    task = asyncio.create_task(Runner.run(agent, "hello"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [span.name for span in exported.spans] == NAMES
    assert exported.named("execute_tool wait").attributes["error.type"] == "CancelledError"
    assert kept.count("span_start") == kept.count("span_end") == 5
    assert kept.count("trace_start") == kept.count("trace_end") == 1


async def test_a_stream_that_is_left_ends_its_spans(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    agent, begun = waiting_agent()
    result = Runner.run_streamed(agent, "hello")
    events = result.stream_events()
    async for _ in events:
        if result.current_turn:
            break
    await begun.wait()
    await events.aclose()
    assert [span.name for span in exported.spans] == NAMES
    assert kept.count("span_start") == kept.count("span_end") == 5
    assert get_current_span() is None


async def test_runs_side_by_side_have_traces_of_their_own(exported: ExportedSpans) -> None:
    async def one(name: str) -> None:
        agent = Agent(
            name,
            tools=[clock],
            model=ScriptedModel([[function_call("clock", {}, call_id=name)], [assistant_message("x")]]),
        )
        await Runner.run(agent, "hello", run_config=RunConfig(workflow_name=name))

    await asyncio.gather(*(one(f"w{number}") for number in range(5)))
    owners = {
        span.context.trace_id: span.name.removeprefix("invoke_workflow ")
        for span in exported.spans
        if span.parent is None
    }
    assert len(owners) == 5
    for span in exported.spans:
        if span.name == "execute_tool clock":
            assert span.attributes["gen_ai.tool.call.id"] == owners[span.context.trace_id]


# --- off ----------------------------------------------------------------------------------------------


async def test_a_run_that_may_not_be_traced_makes_no_span(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    agent, _ = everything()
    with trace("outside"):
        await Runner.run(agent, "hello", run_config=RunConfig(tracing_disabled=True))
    assert exported.tree() == ["outside"]
    assert kept.count("span_start") == 0


@pytest.mark.parametrize("how", ["everywhere", "trace"])
async def test_what_is_disabled_makes_no_span(exported: ExportedSpans, kept: RecordingProcessor, how: str) -> None:
    agent, _ = everything()
    set_tracing_disabled(how == "everywhere")
    try:
        with trace("hidden", disabled=how == "trace") as hidden:
            assert hidden.export() is None
            result = await Runner.run(agent, "hello")
    finally:
        set_tracing_disabled(False)
    assert result.to_state().data.trace is None
    assert exported.spans == []
    assert kept.calls == []


async def test_a_run_without_trace_processors_makes_no_span() -> None:
    seen: list[Any] = []

    @function_tool
    async def look() -> str:
        seen.append((get_current_span(), get_current_trace()))
        return "nothing"

    model = ScriptedModel([[function_call("look", {}, call_id="l")], [assistant_message("x")]])
    result = await Runner.run(Agent("a", tools=[look], model=model), "hello")
    assert seen == [(None, None)]
    assert result.to_state().data.trace is None


def test_a_run_without_telemetry_does_not_import_it() -> None:
    program = (
        "import asyncio, sys; from standfast import Agent, Runner; "
        "from standfast.testing import ScriptedModel, assistant_message; "
        "agent = Agent('a', model=ScriptedModel([[assistant_message('x')]])); "
        "asyncio.run(Runner.run(agent, 'hello')); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    env = {"PYTHONPATH": SRC, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "[]", done.stderr


# --- a program's own traces ---------------------------------------------------------------------------


async def test_several_runs_join_the_trace_around_them(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    with trace("Both", group_id="chat-7", metadata={"who": "ann"}) as both:
        for word in ("one", "two"):
            agent = Agent(word, model=ScriptedModel([[assistant_message(word)]]))
            await Runner.run(agent, "hello")
        with custom_span("afterwards", {"runs": 2}) as after:
            assert get_current_trace() is both
            assert get_current_span() is after
    assert [line for line in exported.tree() if not line.startswith("    ")] == [
        "Both",
        "  afterwards",
        "  invoke_workflow Agent workflow",
        "  invoke_workflow Agent workflow",
    ]
    assert exported.named("afterwards").attributes["standfast.data.runs"] == 2
    assert exported.named("Both").attributes["gen_ai.conversation.id"] == "chat-7"
    assert kept.count("trace_start") == kept.count("trace_end") == 1
    assert {span["trace_id"] for span in kept.exported_spans()} == {both.trace_id}
    assert both.export() == {
        "object": "trace",
        "id": both.trace_id,
        "workflow_name": "Both",
        "group_id": "chat-7",
        "metadata": {"who": "ann"},
    }


async def test_a_processor_sees_the_same_tree(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    agent, _ = everything()
    await Runner.run(agent, "hello")
    ours = {span["id"]: span for span in kept.exported_spans()}

    def kind(span: dict[str, Any]) -> str:
        data = span["span_data"]
        return data["data"]["sdk_span_type"] if "sdk_span_type" in data.get("data", ()) else data["type"]

    assert len(ours) == len(exported.spans)
    parents = {(kind(span), kind(ours[span["parent_id"]])) for span in ours.values() if span["parent_id"]}
    assert parents == {
        ("agent", "task"),
        ("task", "function"),
        ("turn", "agent"),
        ("generation", "turn"),
        ("function", "turn"),
        ("handoff", "turn"),
        ("guardrail", "turn"),
        ("guardrail", "function"),
        ("guardrail", "agent"),
        ("custom", "function"),
    }
    first = next(
        span for span in ours.values() if span["span_data"]["type"] == "agent" and span["span_data"]["name"] == "first"
    )
    assert first["span_data"]["tools"] == ["weather", "clock", "ask_helper"]
    assert first["span_data"]["handoffs"] == ["closer"]
    assert all(span["started_at"] <= span["ended_at"] for span in ours.values())


async def test_spans_of_other_libraries_are_inside_of_ours(exported: ExportedSpans) -> None:
    @function_tool
    async def fetch() -> str:
        with otel.get_tracer("http").start_as_current_span("GET"), custom_span("parse"):
            return "page"

    model = ScriptedModel([[function_call("fetch", {}, call_id="f")], [assistant_message("x")]])
    with otel.get_tracer("web").start_as_current_span("POST /chat"):
        await Runner.run(Agent("a", tools=[fetch], model=model), "hello")
    assert exported.tree()[:8] == [
        "POST /chat",
        "  invoke_workflow Agent workflow",
        "    invoke_agent a",
        "      turn 1",
        "        chat ScriptedModel",
        "        execute_tool fetch",
        "          GET",
        "            parse",
    ]


def test_a_span_outside_of_every_trace_is_not_recorded(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    with custom_span("alone") as span:
        assert span.export() is None
    assert exported.spans == []
    assert kept.calls == []


def test_a_span_can_be_put_below_another_one(exported: ExportedSpans) -> None:
    with trace("work") as work:
        first = function_span("first", input="given")
        first.start()
        second = custom_span("second", parent=first)
        second.start()
        second.set_error({"message": "in my own words", "data": None})
        second.finish()
        first.finish()
        first.finish()
        third = custom_span("third", parent=work)
        third.start()
        third.finish()
    assert exported.tree() == ["work", "  execute_tool first", "    second", "  third"]
    assert exported.named("second").status.description == "in my own words"
    assert exported.named("execute_tool first").attributes["gen_ai.tool.call.arguments"] == "given"
    assert second.parent_id == first.span_id


def test_an_api_key_is_used_and_never_exported(kept: RecordingProcessor) -> None:
    with trace("work", tracing={"api_key": "sk-1"}) as work:
        assert work.tracing_api_key == "sk-1"
        assert "sk-1" not in str(work.export()) + str(work.to_json())
        assert work.to_json(include_tracing_api_key=True)["tracing_api_key"] == "sk-1"


def test_flushing_reaches_every_processor(exported: ExportedSpans, kept: RecordingProcessor) -> None:
    flush_traces()
    assert kept.calls == [("flush", None)]


def test_processors_are_shut_down_when_the_program_ends() -> None:
    program = (
        "from standfast import TracingProcessor, add_trace_processor\n"
        "class P(TracingProcessor):\n"
        "    on_trace_start = on_trace_end = on_span_start = on_span_end = lambda self, x: None\n"
        "    def force_flush(self): pass\n"
        "    def shutdown(self): print('shut down')\n"
        "add_trace_processor(P())\n"
    )
    env = {"PYTHONPATH": SRC, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert done.stdout == "shut down\n", done.stderr
