"""Failed entries and closes of sessions over a real websocket: nothing is left open on either side."""

import asyncio

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    EventRecorder,
    connect_options,
    open_websocket_session,
    record_events,
    wait_until,
)
from standfast import AgentHooks, HostedMCPTool, UserError, WebSearchTool, function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeRunner,
    RealtimeState,
    realtime_handoff,
)
from standfast.realtime.errors import AlreadyConnected, ConnectFailed, ConnectionLost, SettingsRejected
from standfast.realtime.local import CallTool
from standfast.testing import RealtimeServer
from standfast.testing.interruption import cancel_at_every_await
from standfast.testing.realtime.connection import Disconnect, Reject

AGENT = RealtimeAgent(name="host", instructions="I am the host.")
OTHER = RealtimeAgent(name="other", instructions="I am another.")


# Entries that fail.


async def test_a_refused_connection_is_raised_by_the_entry_and_by_every_waiting_iterator():
    async with RealtimeServer() as server:
        server.inject("connect", Reject(status=403))
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        waiting = [asyncio.ensure_future(everything(session)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ConnectFailed) as refused:
            await session.enter()
        assert refused.value.status == 403
        for types, error in await asyncio.gather(*waiting):
            assert (types[-1], error) == ("session_closed", refused.value)
        assert session.state is RealtimeState.CLOSED


@pytest.mark.parametrize(("fault", "error"), [(Reject(), SettingsRejected), (Disconnect(1011), ConnectionLost)])
async def test_an_entry_whose_settings_are_refused_leaves_no_connection(fault, error):
    async with RealtimeServer() as server:
        server.inject("session.update", fault)
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        with pytest.raises(error):
            await session.enter()
        await wait_until(lambda: server.open_connections == [])
        assert (len(server.connections), session.state) == (1, RealtimeState.CLOSED)


def hosted(label, approval="never"):
    config = {"type": "mcp", "server_label": label, "server_url": "https://x.example", "require_approval": approval}
    return HostedMCPTool(config)


async def test_hosted_mcp_servers_are_sent_to_the_provider():
    agent = RealtimeAgent(name="a", tools=[hosted("docs"), hosted("mail")])
    async with RealtimeServer() as server, open_websocket_session(server, agent):
        assert [tool["server_label"] for tool in server.connections[0].session["tools"]] == ["docs", "mail"]


@pytest.mark.parametrize("tool", [hosted("docs", "always"), WebSearchTool()], ids=["asking", "search"])
async def test_tools_that_no_realtime_session_can_serve_are_refused_at_entry_and_later(tool):
    agent = RealtimeAgent(name="a", tools=[tool])
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, recorded):
        refused = await RealtimeRunner(agent).run(model_config=connect_options(server))
        with pytest.raises(UserError, match="realtime"):
            await refused.enter()
        with pytest.raises(UserError, match="realtime"):
            await session.update_agent(agent)
        assert (session.current_agent, recorded.of_type("agent_changed")) == (AGENT, [])
        await wait_until(lambda: len(server.open_connections) == 1)


async def test_a_session_whose_model_is_in_use_does_not_affect_the_other_call():
    async with RealtimeServer(["Still here."]) as server:
        runner = RealtimeRunner(AGENT, model=OpenAIRealtimeWebSocketModel())
        first, second = (
            await runner.run(model_config=connect_options(server)),
            await runner.run(model_config=connect_options(server)),
        )
        async with record_events(first) as recorded, first:
            with pytest.raises(AlreadyConnected):
                await second.enter()
            await second.close()
            await first.send_message("hello?")
            await recorded.wait_for("agent_end")
            assert first.history[-1].content[0].transcript == "Still here."
            assert recorded.of_type("reconnecting") == []
            assert len(server.connections) == 1


async def test_two_calls_of_one_runner_get_only_their_own_events():
    async with RealtimeServer(["To the first.", "To the second."]) as server:
        runner = RealtimeRunner(AGENT)
        first, second = (
            await runner.run(model_config=connect_options(server)),
            await runner.run(model_config=connect_options(server)),
        )
        async with record_events(first) as one, first, record_events(second) as two, second:
            await first.send_message("I am the first.")
            await one.wait_for("agent_end")
            await second.update_agent(OTHER)
            await second.send_message("I am the second.")
            await two.wait_for("agent_end")
            assert [len(session.history) for session in (first, second)] == [2, 2]
            assert (first.current_agent, second.current_agent) == (AGENT, OTHER)
            await first.close()
            assert (second.state, len(one.of_type("agent_end"))) == (RealtimeState.OPEN, 1)
            assert [connection.session["instructions"] for connection in server.connections] == [
                "I am the host.",
                "I am another.",
            ]


async def test_a_session_cancelled_at_any_await_leaves_no_connection(server_elsewhere):
    async def scenario():
        model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
        async with await RealtimeRunner(AGENT, model=model).run(
            model_config=connect_options(server_elsewhere)
        ) as session:
            await session.send_message("hello")
            await session.update_agent(OTHER)
            await session.interrupt()

    assert await cancel_at_every_await(scenario) >= 4
    await wait_until(lambda: not server_elsewhere.open_connections)


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_an_entry_cancelled_after_so_many_turns_of_the_loop_leaves_no_connection(server_elsewhere, steps):
    model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
    session = await RealtimeRunner(AGENT, model=model).run(model_config=connect_options(server_elsewhere))
    entering = asyncio.ensure_future(session.enter())
    for _ in range(steps):
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait({entering})
    await session.close()
    assert session.state is RealtimeState.CLOSED
    await wait_until(lambda: not server_elsewhere.open_connections)


# Ends from everywhere.


def closing_agent(who, close):
    """An agent of which one part closes the session."""

    @function_tool
    async def act() -> str:
        if who == "tool":
            await close()
        return "done"

    @output_guardrail
    async def guard(context, agent, output):
        if who == "guardrail":
            await close()
        return GuardrailFunctionOutput(None, False)

    class Hooks(AgentHooks):
        async def on_end(self, context, agent, output):
            if who == "hook":
                await close()

    async def on_handoff(context):
        await close()

    return RealtimeAgent(
        name="a",
        tools=[act],
        output_guardrails=[guard],
        hooks=Hooks(),
        handoffs=[realtime_handoff(OTHER, on_handoff=on_handoff)],
    )


@pytest.mark.parametrize("who", ["tool", "guardrail", "hook", "handoff", "listener", "iterator", "task"])
async def test_every_caller_of_close_closes_the_whole_session(who):
    given = []

    async def close():
        given.append(await session.close())

    agent = closing_agent(who, close)
    calls = {"tool": CallTool("act"), "handoff": CallTool("transfer_to_other")}

    class Ear:
        async def on_event(self, event):
            if who == "listener" and event.type == "turn_ended":
                await close()

    async with (
        RealtimeServer([calls.get(who, "Hello."), "More."]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        session.model.add_listener(Ear())
        await session.send_message("Goodbye.")
        if who == "iterator":
            async for event in session.events():
                if event.type == "agent_end":
                    await close()
        elif who == "task":
            await recorded.wait_for("agent_end")
            await asyncio.gather(*(asyncio.create_task(close()) for _ in range(3)))
        report = (await recorded.wait_for("session_closed")).report
        assert (report.reason, report.cancelled, report.still_running, report.error) == ("asked", (), (), None)
        assert session.state is RealtimeState.CLOSED
        await wait_until(lambda: server.open_connections == [])
        assert len(recorded.of_type("session_closed")) == 1
        outside = {"iterator": [report], "task": [report] * 3}
        assert given == outside.get(who, [None]), "parts of the session only send a request"


@pytest.mark.parametrize("how", ["forgotten", "inside the block"])
def test_the_end_of_the_loop_ends_the_call_at_the_server(server_elsewhere, how):
    sessions = []

    async def forgetful():
        sessions.append(await RealtimeRunner(AGENT).run(model_config=connect_options(server_elsewhere)))
        if how == "forgotten":
            await sessions[0].enter()
        else:
            asyncio.ensure_future(staying(sessions[0]))  # noqa: RUF006 - it outlives the test on purpose
            await wait_until(lambda: sessions[0].state is RealtimeState.OPEN)

    async def staying(session):
        async with session:
            async for _ in session.events():
                pass

    asyncio.run(forgetful())
    assert sessions[0].state is RealtimeState.CLOSED
    asyncio.run(wait_until(lambda: not server_elsewhere.open_connections))


async def test_a_server_that_stops_reading_does_not_delay_the_end():
    @function_tool
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    agent = RealtimeAgent(name="a", tools=[slow])
    async with (
        RealtimeServer([CallTool("slow")]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        await session.send_message("hello")
        await recorded.wait_for("tool_start")
        server.connections[0].stall()
        sending = asyncio.ensure_future(session.send_audio(bytes(20_000_000)))
        waiting = asyncio.ensure_future(session.update_agent(OTHER))
        await asyncio.wait({sending}, timeout=0.05)
        assert not sending.done(), "a peer that takes nothing holds up the sender"
        report = await asyncio.wait_for(session.close(deadline=0.6), WAIT_TIMEOUT)
        assert (session.state, report.still_running) == (RealtimeState.CLOSED, ())
        await asyncio.wait({sending, waiting}, timeout=WAIT_TIMEOUT)
        assert sending.done()
        assert waiting.exception() is not None
        assert session.current_agent is agent


async def test_the_final_loss_of_the_connection_is_the_last_event_of_every_iterator():
    async with (
        RealtimeServer() as server,
        open_websocket_session(server, AGENT, reconnect={"attempts": 0}) as (session, _recorded),
    ):
        seen = [asyncio.ensure_future(everything(session)) for _ in range(2)]
        await asyncio.sleep(0)
        server.connections[0].close(1011, "out of order")
        for types, error in await asyncio.gather(*seen):
            assert types[-1] == "session_closed"
            assert isinstance(error, ConnectionLost)
            assert error.close_code == 1011


async def test_a_normal_close_by_the_server_ends_the_session_without_error_if_reconnects_are_off():
    async with (
        RealtimeServer() as server,
        open_websocket_session(server, AGENT, reconnect={"attempts": 0}) as (session, _recorded),
    ):
        reading = asyncio.ensure_future(everything(session))
        await asyncio.sleep(0)
        server.connections[0].close(1000, "goodbye")
        types, error = await reading
        assert (types[-1], error, session.state) == ("session_closed", None, RealtimeState.CLOSED)


async def everything(session):
    """What one iterator hears, and what it raises in the end."""
    recorded = EventRecorder()
    try:
        await recorded.listen(session)
    except ConnectionError as error:
        return recorded.types(), error
    return recorded.types(), None
