"""Tool calls of a session: approved once, executed once, and delivered for certain."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    audio_chunk,
    get_sent_inputs,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    wait_until,
)
from standfast import AgentHooks, RunHooks, function_tool, tool_input_guardrail, tool_output_guardrail
from standfast.agents.guardrails import ToolGuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelSendToolOutput
from standfast.realtime.model_events import RealtimeModelAudioInterruptedEvent, RealtimeModelSpeechStartedEvent
from standfast.realtime.testing import RealtimeStep, ScriptedRealtimeModel

Output = RealtimeModelSendToolOutput


def outputs(model):
    return [(event.tool_call.call_id, event.output, event.start_response) for event in get_sent_inputs(model, Output)]


def agent_with(*tools, **more):
    return RealtimeAgent(name="host", tools=list(tools), **more)


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


async def test_a_call_is_made_and_answered():
    async with open_scripted_session(agent_with(add)) as (session, model, recorded):
        await model.emit(response_started(), tool_call("add", arguments='{"a": 1, "b": 2}'), response_ended())
        end = await recorded.wait_for("tool_end")
        start = recorded.of_type("tool_start")[0]
        assert (start.call_id, end.call_id, end.output, end.arguments) == ("c1", "c1", 3, '{"a": 1, "b": 2}')
        assert outputs(model) == [("c1", "3", True)]
        assert (session.history[0].status, session.history[0].output) == ("completed", "3")


@pytest.mark.parametrize("beside", [True, False])
async def test_a_call_that_comes_while_the_session_is_opening_is_made_and_answered_when_it_is_open(beside):
    made = [response_started(), tool_call("add", arguments='{"a": 1, "b": 2}'), response_ended()]
    model = ScriptedRealtimeModel(strict=False, connect_events=made)
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        open_scripted_session(agent_with(add), model, async_tool_calls=beside) as (_, _, recorded),
    ):
        assert (await recorded.wait_for("tool_end")).output == 3
        assert outputs(model) == [("c1", "3", True)]


async def test_a_call_is_executed_once_even_if_it_is_reported_repeatedly():
    made = []

    @function_tool
    async def once() -> str:
        made.append(1)
        return "ok"

    async with open_scripted_session(agent_with(once)) as (_session, model, recorded):
        await model.emit(tool_call("once"), tool_call("once"))
        await recorded.wait_for("tool_end")
        await model.emit(tool_call("once"), tool_call("once", arguments='{"x": 1}'))
        assert "reused the call id" in str((await recorded.wait_for("error")).error)
    assert (made, len(outputs(model))) == ([1], 1)


async def test_a_call_without_an_id_is_not_answered_and_the_session_continues():
    async with open_scripted_session(agent_with(add)) as (_session, model, recorded):
        await model.emit(tool_call("add", call_id=""))
        await recorded.wait_for("error")
        await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
        await recorded.wait_for("tool_end")


@function_tool(failure_error_function=None)
async def raising() -> str:
    raise KeyError("secret detail")


@function_tool(failure_error_function=lambda context, error: f"it said: {error}")
async def explaining() -> str:
    raise ValueError("told to the model")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tool_call("nothing"), "Tool nothing not found. There are: add, raising, explaining."),
        (tool_call("add", arguments='{"a": "x"}'), "An error occurred while running the tool"),
        (tool_call("add", arguments="no json"), "An error occurred while running the tool"),
        (tool_call("raising"), "An error occurred while running the tool."),
        (tool_call("explaining"), "it said: told to the model"),
    ],
    ids=["unknown", "bad arguments", "no json", "raising", "explaining"],
)
async def test_every_failing_call_is_answered_and_the_session_continues(made, expected):
    async with open_scripted_session(agent_with(add, raising, explaining)) as (_session, model, recorded):
        await model.emit(made)
        await wait_until(lambda: outputs(model))
        (_, text, start) = outputs(model)[0]
        assert expected in text
        assert "secret" not in text
        assert start
        await model.emit(tool_call("add", "c2", '{"a": 1, "b": 2}'))
        await wait_until(lambda: len(outputs(model)) == 2)
        assert recorded.of_type("session_closed") == []


async def test_an_output_that_could_not_be_sent_is_sent_again_without_running_the_tool_again():
    made = []

    @function_tool
    async def once() -> str:
        made.append(1)
        return "ok"

    steps = [RealtimeStep(Output, error=RuntimeError("line noise")), RealtimeStep(Output)]
    model = ScriptedRealtimeModel(steps)
    async with open_scripted_session(agent_with(once), model) as (_session, _, recorded):
        await model.emit(tool_call("once"))
        assert str((await recorded.wait_for("error")).error) == "line noise"
        await recorded.wait_for("tool_end")
    model.assert_complete()
    assert made == [1]
    assert len(get_sent_inputs(model, Output)) == 2


@in_virtual_time
async def test_a_repeated_call_sends_an_unsent_output_at_once():
    steps = [RealtimeStep(Output, error=RuntimeError("noise")) for _ in range(4)] + [RealtimeStep(Output)]
    model = ScriptedRealtimeModel(steps)
    async with open_scripted_session(agent_with(add), model) as (_session, _, recorded):
        await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
        await recorded.wait_for("error")
        before = asyncio.get_running_loop().time()
        while model.remaining_steps:
            await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
            await asyncio.sleep(0.001)
        await recorded.wait_for("tool_end")
        assert asyncio.get_running_loop().time() - before < 0.5


async def test_an_output_that_was_never_sent_is_in_the_report():
    class Deaf(ScriptedRealtimeModel):
        async def send_event(self, event):
            raise RuntimeError("deaf")

    async with open_scripted_session(agent_with(add), Deaf()) as (session, model, recorded):
        await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
        await recorded.wait_for("error")
        assert (await session.close()).unsent_outputs == ("c1",)


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (Point(7), '{"x": 7}'),
        (None, "None"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
    ],
    ids=["text", "dict", "dataclass", "nothing", "parts"],
)
async def test_outputs_become_text(value, text):
    @function_tool
    async def give():
        return value

    async with open_scripted_session(agent_with(give)) as (_session, model, recorded):
        await model.emit(tool_call("give"))
        await recorded.wait_for("tool_end")
    assert outputs(model)[0][1] == text


@function_tool(needs_approval=True)
async def delete(name: str) -> str:
    return f"deleted {name}"


ARGUMENTS = json.dumps({"name": "x"})


async def test_a_call_waits_for_approval_and_is_made_then():
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        asked = await recorded.wait_for("tool_approval_required")
        assert (asked.call_id, asked.arguments, outputs(model)) == ("c1", ARGUMENTS, [])
        assert await session.approve_tool_call("c1")
        await recorded.wait_for("tool_end")
        assert outputs(model) == [("c1", "deleted x", True)]
        assert not await session.approve_tool_call("c1")
        assert not await session.approve_tool_call("unknown")


async def test_a_waiting_call_cannot_be_replaced_by_another_with_its_id():
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        await model.emit(tool_call("delete", arguments='{"name": "everything"}'))
        assert "reused the call id" in str((await recorded.wait_for("error")).error)
        await session.approve_tool_call("c1")
        assert (await recorded.wait_for("tool_end")).output == "deleted x"
        assert len(recorded.of_type("tool_approval_required")) == len(outputs(model)) == 1


async def test_an_approval_for_all_covers_those_that_wait_and_those_to_come():
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", "c1", ARGUMENTS), tool_call("delete", "c2", ARGUMENTS))
        await recorded.wait_for("tool_approval_required", 2)
        await session.approve_tool_call("c1", always=True)
        await recorded.wait_for("tool_end", 2)
        await model.emit(tool_call("delete", "c3", ARGUMENTS))
        await recorded.wait_for("tool_end", 3)
        assert len(recorded.of_type("tool_approval_required")) == 2


async def test_the_first_decision_about_a_call_counts():
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        assert await session.approve_tool_call("c1")
        assert not await session.reject_tool_call("c1")
        assert (await recorded.wait_for("tool_end")).output == "deleted x"


async def test_a_decision_beside_a_standing_one_about_another_tool_counts():
    async def always(context, arguments, call_id):
        await asyncio.sleep(0.01)
        return True

    @function_tool(needs_approval=always)
    async def send() -> str:
        return "sent"

    async with open_scripted_session(agent_with(delete, send)) as (session, model, recorded):
        await model.emit(tool_call("delete", "c1", ARGUMENTS), tool_call("send", "c2"))
        await recorded.wait_for("tool_approval_required", 2)
        await session.approve_tool_call("c1", always=True)
        await recorded.wait_for("tool_end")
        assert await session.approve_tool_call("c2")
        assert (await recorded.wait_for("tool_end", 2)).output == "sent"


async def test_a_standing_approval_of_one_agent_does_not_apply_to_another():
    other = RealtimeAgent(name="host", tools=[delete])
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", "c1", ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        await session.approve_tool_call("c1", always=True)
        await recorded.wait_for("tool_end")
        await session.update_agent(other)
        await model.emit(response_started("r2"), tool_call("delete", "c2", ARGUMENTS))
        await recorded.wait_for("tool_approval_required", 2)


@pytest.mark.parametrize("message", [None, "ask me tomorrow"])
async def test_a_rejected_call_is_answered_with_the_reason(message):
    formatted = []

    def refusal(args):
        formatted.append((args.kind, args.tool_name, args.call_id))
        return "not today"

    async with open_scripted_session(agent_with(delete), tool_error_formatter=refusal) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        assert await session.reject_tool_call("c1", rejection_message=message, always=True)
        end = await recorded.wait_for("tool_end")
        assert end.output == (message or "not today")
        await model.emit(tool_call("delete", "c2", ARGUMENTS))
        await recorded.wait_for("tool_end", 2)
        assert recorded.of_type("tool_start") == []
        assert len(recorded.of_type("tool_approval_required")) == 1
    assert bool(formatted) == (message is None)


async def test_an_approval_without_a_decision_expires():
    async with open_scripted_session(agent_with(delete), tool_execution={"approval_timeout": 0.02}) as (
        session,
        model,
        recorded,
    ):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_expired")
        end = await recorded.wait_for("tool_end")
        assert "in time" in end.output
        assert not await session.approve_tool_call("c1")


async def test_undecided_calls_are_in_the_report():
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        assert (await session.close()).pending_approvals == ("c1",)
        assert not await session.approve_tool_call("c1")


async def test_an_approval_after_a_handoff_uses_the_tool_of_the_old_agent():
    other = RealtimeAgent(name="other")
    async with open_scripted_session(agent_with(delete)) as (session, model, recorded):
        await model.emit(response_started(), tool_call("delete", arguments=ARGUMENTS))
        await recorded.wait_for("tool_approval_required")
        await session.update_agent(other)
        await session.approve_tool_call("c1")
        end = await recorded.wait_for("tool_end")
        assert (end.agent.name, end.output) == ("host", "deleted x")


@pytest.mark.parametrize("first", [False, True])
async def test_input_guardrails_run_after_the_approval_and_on_request_before_it(first):
    asked = []

    @tool_input_guardrail
    def careful(data):
        asked.append(data.context.tool_call_id)
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(needs_approval=True, tool_input_guardrails=[careful])
    async def guarded() -> str:
        return "made"

    execution = {"pre_approval_tool_input_guardrails": first}
    async with open_scripted_session(agent_with(guarded), tool_execution=execution) as (session, model, recorded):
        await model.emit(tool_call("guarded"))
        await recorded.wait_for("tool_approval_required")
        assert asked == (["c1"] if first else [])
        await session.approve_tool_call("c1")
        await recorded.wait_for("tool_end")
    assert asked == (["c1", "c1"] if first else ["c1"])


@pytest.mark.parametrize("behaviour", ["reject_content", "raise_exception"])
async def test_a_guardrail_that_refuses_the_input_keeps_the_tool_from_running(behaviour):
    @tool_input_guardrail
    def strict(data):
        if behaviour == "reject_content":
            return ToolGuardrailFunctionOutput.reject_content("not like that")
        return ToolGuardrailFunctionOutput.raise_exception()

    @function_tool(tool_input_guardrails=[strict])
    async def guarded() -> str:
        raise AssertionError

    async with open_scripted_session(agent_with(guarded)) as (_session, model, recorded):
        await model.emit(tool_call("guarded"))
        end = await recorded.wait_for("tool_end")
        assert ("not like that" if behaviour == "reject_content" else "triggered tripwire") in end.output
        assert recorded.of_type("tool_start") == []


async def test_output_guardrails_of_tools_run():
    @tool_output_guardrail
    def discreet(data):
        return ToolGuardrailFunctionOutput.reject_content(f"hidden instead of {len(data.output)} letters")

    @function_tool(tool_output_guardrails=[discreet])
    async def leak() -> str:
        return "secret"

    async with open_scripted_session(agent_with(leak)) as (_session, model, recorded):
        await model.emit(tool_call("leak"))
        await recorded.wait_for("tool_end")
    assert outputs(model)[0][1] == "hidden instead of 6 letters"


@pytest.mark.parametrize("interruption", ["speech", "audio", "program"])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("keep", ("done", True)), ("finish_silently", ("done", False)), ("cancel", (None, False))],
)
async def test_barge_in_follows_the_policy_of_each_tool(policy, expected, interruption):
    gate = asyncio.Event()

    @function_tool(on_barge_in=policy)
    async def slow() -> str:
        await gate.wait()
        return "done"

    async with open_scripted_session(agent_with(slow)) as (session, model, recorded):
        await model.emit(response_started(), audio_chunk(), tool_call("slow"), response_ended())
        await recorded.wait_for("tool_start")
        if interruption == "speech":
            await model.emit(RealtimeModelSpeechStartedEvent("u1", 0))
        elif interruption == "audio":
            await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
        else:
            await session.interrupt()
        if policy != "cancel":
            gate.set()
        await recorded.wait_for("tool_end")
    ((_, text, start),) = outputs(model)
    assert start is expected[1]
    assert text == (expected[0] or "The user began to speak, so this call was cancelled.")


async def test_a_tool_that_cancels_itself_is_answered():
    @function_tool
    async def confused() -> str:
        raise asyncio.CancelledError

    async with open_scripted_session(agent_with(confused)) as (_session, model, recorded):
        await model.emit(tool_call("confused"))
        await recorded.wait_for("tool_end")
    assert outputs(model) == [("c1", "An error occurred while running the tool. Please try again.", True)]


async def test_calls_run_beside_the_conversation_and_each_other():
    gate = asyncio.Event()

    @function_tool
    async def slow() -> str:
        await gate.wait()
        return "slow"

    async with open_scripted_session(agent_with(slow, add)) as (_session, model, recorded):
        await model.emit(
            response_started(),
            tool_call("slow", "c1"),
            tool_call("add", "c2", '{"a": 1, "b": 2}'),
            response_ended(),
            response_started("r2"),
        )
        assert (await recorded.wait_for("tool_end")).call_id == "c2"
        await recorded.wait_for("agent_start", 2)
        gate.set()
        assert (await recorded.wait_for("tool_end", 2)).call_id == "c1"


async def test_without_async_tool_calls_the_next_event_waits_for_the_call():
    async with open_scripted_session(agent_with(add), async_tool_calls=False) as (_session, model, _recorded):
        await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
        assert outputs(model) == [("c1", "3", True)]


async def test_without_async_tool_calls_an_approval_does_not_block_the_connection():
    async with open_scripted_session(agent_with(delete), async_tool_calls=False) as (session, model, recorded):
        await model.emit(tool_call("delete", arguments=ARGUMENTS), response_started())
        await recorded.wait_for("agent_start")
        await session.approve_tool_call("c1")
        assert outputs(model) == [("c1", "deleted x", True)]


async def test_hooks_are_called_for_responses_and_tools():
    expected = []

    class Watch(RunHooks):
        async def on_agent_start(self, context, agent):
            expected.append(("start", agent.name))

        async def on_agent_end(self, context, agent, output):
            expected.append(("end", agent.name, output))

        async def on_tool_start(self, context, agent, tool):
            expected.append(("tool", context.tool_call_id))

        async def on_tool_end(self, context, agent, tool, result):
            expected.append(("made", result))

    class Own(AgentHooks):
        async def on_start(self, context, agent):
            expected.append("own start")

        async def on_tool_start(self, context, agent, tool):
            expected.append("own tool")

    agent = agent_with(add, hooks=Own())
    async with open_scripted_session(agent, hooks=Watch()) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("hello"), response_ended())
        await wait_until(lambda: len(expected) == 3)
        await model.emit(tool_call("add", arguments='{"a": 1, "b": 2}'))
        await recorded.wait_for("tool_end")
    assert expected == [
        ("start", "host"),
        "own start",
        ("end", "host", "hello"),
        ("tool", "c1"),
        "own tool",
        ("made", 3),
    ]


async def test_a_failing_hook_is_reported_and_the_session_continues():
    class Broken(AgentHooks):
        async def on_start(self, context, agent):
            raise ValueError("hook")

    async with open_scripted_session(agent_with(hooks=Broken())) as (_session, model, recorded):
        await model.emit(response_started(), response_ended())
        assert str((await recorded.wait_for("error")).error) == "hook"
        assert recorded.of_type("session_closed") == []


async def test_the_context_variables_of_the_entry_reach_the_tool():
    from contextvars import ContextVar

    who = ContextVar("who", default="nobody")

    @function_tool
    async def ask() -> str:
        return who.get()

    token = who.set("ann")
    async with open_scripted_session(agent_with(ask)) as (_session, model, recorded):
        who.reset(token)
        await model.emit(tool_call("ask"))
        assert (await recorded.wait_for("tool_end")).output == "ann"
