"""Text agents as tools of a realtime agent, with their own approvals."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from factories.realtime import get_sent_inputs, open_scripted_session, record_events
from factories.realtime import tool_call as called
from standfast import Agent, function_tool
from standfast.realtime import RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool
from standfast.testing import ModelStep, RealtimeServer, ScriptedModel, assistant_message, function_call

PAID = []


@function_tool(needs_approval=True)
async def pay(amount: int) -> str:
    PAID.append(amount)
    return f"paid {amount}"


def clerk(*steps, **more):
    """An agent that answers by a script."""
    script = [step if isinstance(step, ModelStep) else ModelStep(output=step) for step in steps]
    return Agent(name="clerk", model=ScriptedModel(script), tools=[pay], **more)


def speaking(agent, **more):
    return RealtimeAgent(name="host", tools=[agent.as_tool("ask_clerk", "Asks the clerk.", **more)])


def paying(amount, call_id="c1"):
    return [function_call("pay", {"amount": amount}, call_id=call_id)]


@asynccontextmanager
async def calling(agent, turns, **config):
    async with RealtimeServer(turns) as server:
        session = await RealtimeRunner(agent, config=config).run(model_config={"url": server.url, "api_key": "test"})
        async with record_events(session) as recorded, session:
            yield session, recorded, server


@pytest.fixture(autouse=True)
def nothing_paid():
    PAID.clear()


ASK = CallTool("ask_clerk", {"input": "Is it open?"})


async def test_a_text_agent_answers_a_call_of_the_agent_that_speaks():
    agent = clerk([assistant_message("We are open until six.")])
    async with calling(speaking(agent), [ASK, "Until six."]) as (session, recorded, _server):
        await session.send_message("Are you open?")
        assert (await recorded.wait_for("tool_end")).output == "We are open until six."
        await recorded.wait_for("agent_end", 2)
        (start,) = recorded.of_type("tool_start")
        assert (start.tool.name, start.arguments) == ("ask_clerk", '{"input": "Is it open?"}')
        assert session.history[1].output == "We are open until six."
        assert "Is it open?" in str(agent.model.calls[0].input)
        assert recorded.of_type("error") == []


@pytest.mark.parametrize("asynchronously", [True, False])
@pytest.mark.parametrize("approved", [True, False])
async def test_the_session_requests_approval_for_a_call_of_the_nested_agent(approved, asynchronously):
    agent = clerk(paying(7), [assistant_message("That is settled.")])
    turns = [ASK, "All right."]
    async with calling(speaking(agent), turns, async_tool_calls=asynchronously) as (session, recorded, _server):
        await session.send_message("Pay it.")
        asked = await recorded.wait_for("tool_approval_required")
        assert (asked.agent, asked.tool, asked.arguments) == (agent, pay, '{"amount":7}')
        assert PAID == []
        if approved:
            assert await session.approve_tool_call(asked.call_id)
        else:
            assert await session.reject_tool_call(asked.call_id, rejection_message="Too dear.")
        assert not await session.approve_tool_call(asked.call_id)
        assert (await recorded.wait_for("tool_end")).output == "That is settled."
        assert ([7] if approved else []) == PAID
        assert ("paid 7" if approved else "Too dear.") in str(agent.model.calls[-1].input)
        assert len(recorded.of_type("tool_start")) == 1


async def test_several_approvals_are_requested_at_once_and_later_ones_afterwards():
    agent = clerk([*paying(1, "a"), *paying(2, "b")], paying(3, "c"), [assistant_message("Done.")])
    async with calling(speaking(agent), [ASK, "Done."], async_tool_calls=False) as (session, recorded, _server):
        await session.send_message("Pay them.")
        await recorded.wait_for("tool_approval_required", 2)
        first, second = recorded.of_type("tool_approval_required")
        assert first.call_id != second.call_id
        await session.approve_tool_call(second.call_id)
        await session.reject_tool_call(first.call_id)
        third = await recorded.wait_for("tool_approval_required", 3)
        await session.approve_tool_call(third.call_id)
        await recorded.wait_for("tool_end")
        assert PAID == [2, 3]


async def test_a_standing_approval_covers_later_calls_of_the_agent_tool():
    agent = clerk(paying(1), [assistant_message("One.")], paying(2), [assistant_message("Two.")])
    async with calling(speaking(agent), [ASK, "One.", ASK, "Two."]) as (session, recorded, _server):
        await session.send_message("Pay.")
        asked = await recorded.wait_for("tool_approval_required")
        await session.approve_tool_call(asked.call_id, always=True)
        await recorded.wait_for("agent_end", 2)
        await session.send_message("Again.")
        await recorded.wait_for("tool_end", 2)
        assert PAID == [1, 2]
        assert len(recorded.of_type("tool_approval_required")) == 1


async def test_a_nested_approval_without_a_decision_expires():
    agent = clerk(paying(7), [assistant_message("Not paid.")])
    execution = {"approval_timeout": 0.05}
    async with calling(speaking(agent), [ASK, "Sorry."], tool_execution=execution) as (session, recorded, _server):
        await session.send_message("Pay it.")
        expired = await recorded.wait_for("tool_approval_expired")
        assert expired.call_id == recorded.of_type("tool_approval_required")[0].call_id
        assert (await recorded.wait_for("tool_end")).output == "Not paid."
        assert PAID == []
        assert not await session.approve_tool_call(expired.call_id)


async def test_a_nested_approval_survives_a_lost_connection():
    agent = clerk(paying(7), [assistant_message("Paid.")])
    config = {"reconnect": {"initial_delay": 0.01}}
    async with calling(speaking(agent), [ASK, "Paid."], **config) as (session, recorded, server):
        await session.send_message("Pay it.")
        asked = await recorded.wait_for("tool_approval_required")
        server.connections[0].close()
        await recorded.wait_for("reconnected")
        await session.approve_tool_call(asked.call_id)
        await recorded.wait_for("tool_end")
        assert PAID == [7]


async def test_the_close_report_names_the_undecided_nested_approval():
    agent = clerk(paying(7))
    async with calling(speaking(agent), [ASK]) as (session, recorded, _server):
        await session.send_message("Pay it.")
        asked = await recorded.wait_for("tool_approval_required")
        report = await session.close()
        assert asked.call_id in report.pending_approvals


async def test_a_nested_agent_that_fails_answers_the_model_and_the_session_continues():
    agent = clerk(ModelStep(error=RuntimeError("no line")))
    async with calling(speaking(agent), [ASK, "Sorry."]) as (session, recorded, _server):
        await session.send_message("Ask.")
        assert (
            await recorded.wait_for("tool_end")
        ).output == "An error occurred while running the tool. Please try again."
        await recorded.wait_for("agent_end", 2)


async def test_the_usage_of_a_nested_agent_counts():
    agent = clerk([assistant_message("Yes.")])
    async with open_scripted_session(speaking(agent)) as (session, model, recorded):
        await model.emit(called("ask_clerk", arguments='{"input": "?"}'))
        await recorded.wait_for("tool_end")
        assert session.metrics.usage.requests == 1


async def test_barge_in_cancels_an_agent_tool_whose_policy_is_cancel():
    begun = asyncio.Event()

    @function_tool
    async def dig() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = clerk([function_call("dig", {}, call_id="d")])
    agent.tools = [dig]
    host = speaking(agent)
    host.tools[0].on_barge_in = "cancel"
    async with open_scripted_session(host) as (session, model, recorded):
        await model.emit(called("ask_clerk", arguments='{"input": "?"}'))
        await begun.wait()
        await session.interrupt()
        assert "cancelled" in (await recorded.wait_for("tool_end")).output
        assert get_sent_inputs(model, object)
