"""Agent switches by handoff and by ``update_agent``: complete or without effect."""

import asyncio

import pytest
from pydantic import BaseModel

from factories.realtime import (
    get_sent_inputs,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    tool_call,
    wait_until,
)
from standfast import Closed, RunHooks, UserError, function_tool
from standfast.realtime import (
    RealtimeAgent,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    realtime_handoff,
)
from standfast.realtime.errors import AcknowledgementTimeout, SettingsRejected
from standfast.realtime.testing import RealtimeStep, ScriptedRealtimeModel

Update, Output = RealtimeModelSendSessionUpdate, RealtimeModelSendToolOutput


@function_tool
async def a_tool() -> str:
    return "by a"


B = RealtimeAgent(name="b", instructions="I am b.")
C = RealtimeAgent(name="c", instructions="I am c.")
A = RealtimeAgent(name="a", instructions="I am a.", tools=[a_tool], handoffs=[B, C])


async def test_update_agent_sends_the_settings_and_then_emits_the_event():
    async with open_scripted_session(A, model_settings={"voice": "ash"}) as (session, model, recorded):
        await session.update_agent(B)
        assert session.current_agent is B
        changed = await recorded.wait_for("agent_changed")
        assert (changed.from_agent, changed.to_agent, changed.reason) == (A, B, "update")
        settings = get_sent_inputs(model, Update)[0].session_settings
        assert (settings["instructions"], settings["tools"], settings["voice"]) == ("I am b.", [], "ash")
        assert recorded.of_type("handoff") == []


async def test_a_handoff_is_acknowledged_before_its_event_and_its_output():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        async def send_event(self, event):
            if isinstance(event, Update):
                await gate.wait()
            await super().send_event(event)

    async with open_scripted_session(A, Slow(strict=False)) as (session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
        await recorded.wait_for("agent_end")
        await asyncio.sleep(0)
        assert (session.current_agent, recorded.of_type("handoff"), get_sent_inputs(model, Output)) == (A, [], [])
        gate.set()
        event = await recorded.wait_for("handoff")
        assert (event.from_agent, event.to_agent, session.current_agent) == (A, B, B)
        assert (await recorded.wait_for("agent_changed")).reason == "handoff"
        await wait_until(lambda: get_sent_inputs(model, Output))
        assert [type(event) for event in model.sent_events] == [Update, Output]
        assert get_sent_inputs(model, Output)[0].output == '{"assistant": "b"}'
        assert get_sent_inputs(model, Output)[0].start_response


async def test_the_end_of_a_response_names_the_agent_that_began_it():
    async with open_scripted_session(A) as (_session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b"))
        await recorded.wait_for("handoff")
        await model.emit(response_ended(), response_started("r2"), response_ended("r2"))
        await recorded.wait_for("agent_end", 2)
        assert [event.agent.name for event in recorded.of_type("agent_start")] == ["a", "b"]
        assert [event.agent.name for event in recorded.of_type("agent_end")] == ["a", "b"]


async def test_a_call_beside_a_handoff_goes_to_the_agent_that_made_it():
    async with open_scripted_session(A) as (_session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b", "c1"))
        await recorded.wait_for("handoff")
        await model.emit(tool_call("a_tool", "c2"), response_ended())
        end = await recorded.wait_for("tool_end")
        assert (end.agent, end.output) == (A, "by a")


async def test_of_several_handoffs_in_one_response_the_first_wins_and_the_others_are_answered():
    slow = asyncio.Event()
    order = []

    async def on_b(context):
        await slow.wait()
        order.append("b")

    async def on_c(context):
        order.append("c")

    agent = A.clone(handoffs=[realtime_handoff(B, on_handoff=on_b), realtime_handoff(C, on_handoff=on_c)])
    async with open_scripted_session(agent) as (session, model, recorded):
        await model.emit(
            response_started(), tool_call("transfer_to_b", "c1"), tool_call("transfer_to_c", "c2"), response_ended()
        )
        await asyncio.sleep(0.01)
        slow.set()
        await wait_until(lambda: len(get_sent_inputs(model, Output)) == 2)
        assert (session.current_agent, order) == (B, ["b"])
        assert len(recorded.of_type("agent_changed")) == 1
        answers = {event.tool_call.call_id: event for event in get_sent_inputs(model, Output)}
        assert "b has taken over" in answers["c2"].output
        assert not answers["c2"].start_response


async def test_a_hanging_handoff_does_not_delay_handoffs_of_later_agents():
    never = asyncio.Event()

    async def hang(context):
        await never.wait()

    last = RealtimeAgent(name="last")
    rescue = RealtimeAgent(name="rescue", handoffs=[last])
    stuck = RealtimeAgent(name="stuck", handoffs=[realtime_handoff(B, on_handoff=hang)])
    async with open_scripted_session(stuck) as (session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
        await session.update_agent(rescue)
        await model.emit(response_started("r2"), tool_call("transfer_to_last", "c2"), response_ended("r2"))
        assert (await recorded.wait_for("handoff")).to_agent is last
        never.set()
        await wait_until(lambda: len(get_sent_inputs(model, Output)) == 2)
        assert "last has taken over" in get_sent_inputs(model, Output)[1].output
        assert session.current_agent is last


async def test_a_handoff_after_a_failed_one_is_performed():
    def broken(context):
        raise ValueError("not now")

    agent = A.clone(handoffs=[realtime_handoff(B, on_handoff=broken), C])
    async with open_scripted_session(agent) as (session, model, recorded):
        await model.emit(
            response_started(), tool_call("transfer_to_b", "c1"), tool_call("transfer_to_c", "c2"), response_ended()
        )
        await recorded.wait_for("handoff")
        assert session.current_agent is C
        assert str((await recorded.wait_for("error")).error) == "not now"
        await wait_until(lambda: len(get_sent_inputs(model, Output)) == 2)


@pytest.mark.parametrize("how", ["handoff", "update"])
async def test_the_agent_stays_if_the_model_refuses_a_transition(how):
    model = ScriptedRealtimeModel(
        [RealtimeStep(Update, error=SettingsRejected({"message": "bad voice"}))], strict=False
    )
    async with open_scripted_session(A, model) as (session, _, recorded):
        if how == "update":
            with pytest.raises(SettingsRejected, match="bad voice"):
                await session.update_agent(B)
        else:
            await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
            assert "bad voice" in str((await recorded.wait_for("error")).error)
            await wait_until(lambda: get_sent_inputs(model, Output))
            assert "An error occurred" in get_sent_inputs(model, Output)[0].output
        assert session.current_agent is A
        assert recorded.of_type("agent_changed") == recorded.of_type("handoff") == []
        await model.emit(response_started("r2"), tool_call("a_tool", "c2"))
        assert (await recorded.wait_for("tool_end")).output == "by a"
        await session.update_agent(C)
        assert session.current_agent is C


async def test_a_switch_without_acknowledgement_is_reverted():
    model = ScriptedRealtimeModel([RealtimeStep(Update, error=AcknowledgementTimeout("the settings", 1))], strict=False)
    async with open_scripted_session(A, model) as (session, _, _recorded):
        with pytest.raises(AcknowledgementTimeout):
            await session.update_agent(B)
        assert session.current_agent is A
        assert [event.session_settings["instructions"] for event in get_sent_inputs(model, Update)] == [
            "I am b.",
            "I am a.",
        ]


async def test_a_transition_whose_agent_cannot_be_resolved_sends_nothing():
    def broken(context, agent):
        raise ValueError("no instructions")

    async with open_scripted_session(A) as (session, model, _recorded):
        with pytest.raises(ValueError, match="no instructions"):
            await session.update_agent(RealtimeAgent(name="x", instructions=broken))
        with pytest.raises(UserError):
            await session.update_agent("not an agent")
        assert (session.current_agent, model.sent_events) == (A, ())


async def test_a_program_that_stops_waiting_does_not_leave_a_transition_half_done():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        async def send_event(self, event):
            await gate.wait()
            await super().send_event(event)

    async with open_scripted_session(A, Slow(strict=False)) as (session, model, recorded):
        changing = asyncio.ensure_future(session.update_agent(B))
        await asyncio.sleep(0.01)
        changing.cancel()
        gate.set()
        await asyncio.wait({changing})
        assert (session.current_agent, len(get_sent_inputs(model, Update))) == (B, 1)
        await recorded.wait_for("agent_changed")


async def test_a_handoff_and_an_update_send_the_same_settings():
    base = {"voice": "ash", "tracing": {"workflow_name": "Telephone", "metadata": {"line": "7"}}}
    other = RealtimeAgent(name="other", instructions=lambda context, agent: "now", tools=[a_tool], handoffs=[B, C])
    event = []
    for how in ("handoff", "update"):
        async with open_scripted_session(A.clone(handoffs=[other]), model_settings=base) as (session, model, recorded):
            if how == "update":
                await session.update_agent(other)
            else:
                await model.emit(response_started(), tool_call("transfer_to_other"), response_ended())
            changed = await recorded.wait_for("agent_changed")
            assert (changed.to_agent, changed.reason) == (other, how)
            settings = dict(get_sent_inputs(model, Update)[0].session_settings)
            ways = [way.tool_name for way in settings.pop("handoffs")]
            event.append((settings, ways, session.current_agent))
    assert event[0] == event[1]
    assert event[0][0]["tracing"] == base["tracing"]


async def test_dynamic_parts_are_resolved_once_per_transition():
    asked = []

    def instructions(context, agent):
        asked.append("instructions")
        return "x"

    def enabled(context, agent):
        asked.append("tool")
        return True

    tool = function_tool(lambda: "x", name_override="t", is_enabled=enabled, strict_mode=False)
    async with open_scripted_session(A) as (session, model, _recorded):
        way = realtime_handoff(B, is_enabled=lambda context, agent: asked.append("handoff") or True)
        await session.update_agent(RealtimeAgent(name="x", instructions=instructions, tools=[tool], handoffs=[way]))
        assert sorted(asked) == ["handoff", "instructions", "tool"]
        assert get_sent_inputs(model, Update)[0].session_settings["handoffs"] == [way]
        assert get_sent_inputs(model, Update)[0].session_settings["tools"] == [tool]


class Why(BaseModel):
    reason: str


async def test_a_handoff_with_input_gives_it_to_the_program():
    reasons = []

    async def on_handoff(context, given):
        reasons.append(given.reason)

    agent = A.clone(handoffs=[realtime_handoff(B, on_handoff=on_handoff, input_type=Why)])
    async with open_scripted_session(agent) as (session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b", "c1", "not json"), response_ended())
        await recorded.wait_for("error")
        assert session.current_agent is agent
        await model.emit(
            response_started("r2"), tool_call("transfer_to_b", "c2", '{"reason": "billing"}'), response_ended("r2")
        )
        await recorded.wait_for("handoff")
    assert reasons == ["billing"]


async def test_a_handoff_that_leads_nowhere_is_answered_with_an_error():
    way = realtime_handoff(B)

    async def nowhere(context, arguments):
        return "b"

    way.on_invoke_handoff = nowhere
    async with open_scripted_session(A.clone(handoffs=[way])) as (session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
        assert isinstance((await recorded.wait_for("error")).error, UserError)
        assert session.current_agent.name == "a"
        await wait_until(lambda: get_sent_inputs(model, Output))


async def test_hooks_are_called_for_a_handoff():
    event = []

    class Watch(RunHooks):
        async def on_handoff(self, context, from_agent, to_agent):
            event.append((from_agent.name, to_agent.name))

    async with open_scripted_session(A, hooks=Watch()) as (_session, model, _recorded):
        await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
        await wait_until(lambda: event)
    assert event == [("a", "b")]


def test_declarations_that_cannot_be_used_are_refused():
    for wrong in (
        {"name": 7},
        {"name": "a", "tools": ()},
        {"name": "a", "handoffs": B},
        {"name": "a", "instructions": 7},
    ):
        with pytest.raises(TypeError):
            RealtimeAgent(**wrong)
    with pytest.raises(UserError, match="on_handoff"):
        realtime_handoff(B, input_type=Why)
    assert realtime_handoff(B).tool_name == "transfer_to_b"
    assert A.clone(name="z").handoffs is A.handoffs


async def test_a_handoff_after_a_concurrent_update_is_skipped():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        stuck = False

        async def send_event(self, event):
            if isinstance(event, Update):
                self.stuck = True
                await gate.wait()
            await super().send_event(event)

    async with open_scripted_session(A, Slow(strict=False)) as (session, model, recorded):
        changing = asyncio.ensure_future(session.update_agent(C))
        await wait_until(lambda: model.stuck)
        await model.emit(response_started(), tool_call("transfer_to_b"), response_ended())
        await recorded.wait_for("agent_end")
        await asyncio.sleep(0)
        gate.set()
        await changing
        await wait_until(lambda: get_sent_inputs(model, Output))
        assert session.current_agent is C
        assert [event.reason for event in recorded.of_type("agent_changed")] == ["update"]
        assert get_sent_inputs(model, Output)[0].output == "This handoff was ignored: c has taken over already."


@in_virtual_time
async def test_the_next_change_waits_until_an_abandoned_one_is_reverted():
    restored = asyncio.Event()

    class Stuck(ScriptedRealtimeModel):
        async def send_event(self, event):
            await super().send_event(event)
            if isinstance(event, Update):
                name = event.session_settings["instructions"]
                await (asyncio.Event() if name == "I am b." else restored).wait()

    async with open_scripted_session(A, Stuck(strict=False)) as (session, model, _recorded):
        given_up = asyncio.ensure_future(session.update_agent(B))
        await wait_until(lambda: len(get_sent_inputs(model, Update)) == 1)
        next_one = asyncio.ensure_future(session.update_agent(C))
        given_up.cancel()
        await asyncio.wait({given_up})
        await wait_until(lambda: len(get_sent_inputs(model, Update)) == 2)
        await asyncio.sleep(0.01)
        event = [event.session_settings["instructions"] for event in get_sent_inputs(model, Update)]
        assert (event, session.current_agent) == (["I am b.", "I am a."], A)
        restored.set()
        await next_one
        assert get_sent_inputs(model, Update)[2].session_settings["instructions"] == "I am c."
        assert session.current_agent is C


@in_virtual_time
async def test_a_change_that_waits_for_its_turn_ends_with_the_session():
    class Stuck(ScriptedRealtimeModel):
        async def send_event(self, event):
            await super().send_event(event)
            if isinstance(event, Update):
                await asyncio.Event().wait()

    async with open_scripted_session(A, Stuck(strict=False)) as (session, model, _recorded):
        asked = [asyncio.ensure_future(session.update_agent(agent)) for agent in (B, C, B)]
        await wait_until(lambda: get_sent_inputs(model, Update))
        asked[1].cancel()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(end) for end in ends] == [Closed, asyncio.CancelledError, Closed]
    assert session.current_agent is A
