"""The trace of a session: responses, tools, guardrails and handoffs."""

import asyncio

import pytest

from factories.realtime import (
    get_sent_inputs,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    wait_until,
)
from standfast import function_tool, output_guardrail, trace
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelSendToolOutput, RealtimeRunner
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.tracing import TracingProcessor, get_current_trace, set_trace_processors


class Seen(TracingProcessor):
    def __init__(self):
        self.traces, self.spans = [], []

    def on_trace_start(self, trace):
        pass

    def on_trace_end(self, trace):
        self.traces.append(trace)

    def on_span_start(self, span):
        pass

    def on_span_end(self, span):
        self.spans.append(span)

    def shutdown(self):
        pass

    def force_flush(self):
        pass


@pytest.fixture
def seen():
    processor = Seen()
    set_trace_processors([processor])
    yield processor
    set_trace_processors([])


@function_tool
async def look() -> str:
    return "seen"


@output_guardrail
async def calm(context, agent, output):
    return GuardrailFunctionOutput(None, False)


OTHER = RealtimeAgent(name="other")
AGENT = RealtimeAgent(name="host", tools=[look], handoffs=[OTHER], output_guardrails=[calm])


async def conversation(model, recorded):
    await model.emit(response_started(), text_delta("hello"), tool_call("look", "c1"), response_ended())
    await recorded.wait_for("tool_end")
    await model.emit(
        response_started("r2"),
        tool_call("transfer_to_other", "c2"),
        response_ended("r2", status="failed", reason="broken"),
    )
    await recorded.wait_for("handoff")
    await wait_until(lambda: len(get_sent_inputs(model, RealtimeModelSendToolOutput)) == 2)
    await model.emit(response_started("r3"))


async def test_a_call_is_a_trace_of_its_responses_tools_guardrails_and_handoffs(seen):
    tracing = {"workflow_name": "Telephone", "group_id": "caller-7"}
    async with open_scripted_session(AGENT, model_settings={"tracing": tracing}) as (_session, model, recorded):
        await conversation(model, recorded)
    (made,) = seen.traces
    assert (made.name, made.group_id) == ("Telephone", "caller-7")
    kinds = sorted((span.span_data.type, getattr(span.span_data, "name", "")) for span in seen.spans)
    assert kinds == [
        ("agent", "host"),
        ("agent", "host"),
        ("agent", "other"),
        ("function", "look"),
        ("guardrail", "calm"),
        ("handoff", ""),
    ]
    assert [span.error["message"] for span in seen.spans if span.error] == ["broken"]
    assert {span.trace_id for span in seen.spans} == {made.trace_id}


async def test_a_call_joins_the_trace_around_it(seen):
    with trace("Whole"):
        async with open_scripted_session(AGENT) as (_session, model, recorded):
            await conversation(model, recorded)
    assert [made.name for made in seen.traces] == ["Whole"]
    assert len(seen.spans) == 6


async def test_a_call_that_may_not_be_traced_is_not(seen):
    async with open_scripted_session(AGENT, tracing_disabled=True) as (_session, model, recorded):
        await conversation(model, recorded)
    assert seen.traces == seen.spans == []


async def test_a_session_entered_and_closed_by_different_tasks_is_one_trace(seen):
    model = ScriptedRealtimeModel(strict=False)
    session = await RealtimeRunner(AGENT, model=model).run()
    places = []

    async def entering():
        await session.enter()
        places.append(get_current_trace())

    async def closing():
        await session.close()
        places.append(get_current_trace())

    await asyncio.create_task(entering())
    async with record_events(session) as recorded:
        await conversation(model, recorded)
        await asyncio.create_task(closing())
    assert places == [None, None]
    assert len(seen.traces) == 1
    assert {span.trace_id for span in seen.spans} == {seen.traces[0].trace_id}
    assert len(seen.spans) == 6
