"""Events at inconvenient moments: repeated, late, or missing."""

import asyncio

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    audio_chunk,
    connect_options,
    get_sent_inputs,
    get_texts,
    interrupt,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    user_message_added,
    wait_until,
)
from standfast import function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.base.errors import Closed
from standfast.realtime import (
    LocalRealtimeModel,
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeModel,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeRunner,
    RealtimeState,
    model_events,
)
from standfast.realtime.errors import ConnectionLost
from standfast.realtime.local import CallTool, EnergyDetector, ToneTTS
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Delay, Discard, Reorder
from standfast.testing.virtual_time import run_in_virtual_time

AGENT = RealtimeAgent(name="host")


@function_tool
async def theirs() -> str:
    return "done"


OTHER = RealtimeAgent(name="other", tools=[theirs])


@output_guardrail(name="discreet")
async def discreet(context, agent, output):
    await asyncio.sleep(0)
    return GuardrailFunctionOutput(None, "secret" in output)


# Agents that change while a response begins.


async def test_a_response_right_after_the_acknowledgement_belongs_to_the_new_agent():
    async with RealtimeServer([CallTool("theirs"), "Fine."]) as server:
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        async with record_events(session) as recorded, session:
            connection = server.connections[0]
            server.inject("session.updated", Delay(0.05))
            known = len(connection.get_received("session.update"))
            changing = asyncio.ensure_future(session.update_agent(OTHER))
            await connection.wait_for_frame("session.update", count=known + 1)
            connection.start_unsolicited_response()
            await changing
            assert (await recorded.wait_for("tool_end")).output == "done"
            assert recorded.of_type("agent_start")[0].agent is OTHER
            assert recorded.of_type("error") == []


class Forgetful(LocalRealtimeModel):
    """Takes the next settings over and says nothing about it, if ``forgets``."""

    forgets = False

    async def open_transport(self, options):
        link = await super().open_transport(options)
        receive = link.receive

        async def received():
            frame = await receive()
            if self.forgets and "session.updated" in str(frame):
                self.forgets = False
                return await receive()
            return frame

        link.receive = received
        return link


def test_a_switch_cancelled_before_its_acknowledgement_is_reverted():
    async def change():
        host = RealtimeAgent(name="host", instructions="I am the host.")
        model = Forgetful(["Hello."], tts=ToneTTS(), detector=EnergyDetector)
        async with await RealtimeRunner(host, model=model).run() as session:
            model.forgets = True
            changing = asyncio.ensure_future(session.update_agent(OTHER))
            await wait_until(lambda: not model.forgets)
            assert model.engine.to_wire()["instructions"] != "I am the host."
            changing.cancel()
            await asyncio.wait({changing})
            assert changing.cancelled()
            await wait_until(lambda: model.engine.to_wire()["instructions"] == "I am the host.")
            assert session.current_agent is host

    run_in_virtual_time(change())


# Responses out of order.


async def test_the_end_of_an_unknown_response_does_not_end_the_active_one():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(
            response_started(), audio_chunk(), response_ended("some other"), audio_chunk(), response_ended()
        )
        await recorded.wait_for("agent_end")
        assert [event.response_id for event in recorded.of_type("agent_end")] == ["r1"]
        assert len(recorded.of_type("audio")) == 2


async def test_a_response_reported_twice_or_after_its_end_starts_once_and_ends_once():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(response_started(), response_started(), response_ended(), response_started())
        await model.emit(audio_chunk(response_id="r2"), response_ended("r2"), response_started("r2"))
        await model.emit(response_started("r3"), response_ended("r3"))
        await recorded.wait_for("agent_end", 3)
        assert [event.response_id for event in recorded.of_type("agent_start")] == ["r1", "r2", "r3"]
        await interrupt(session, recorded)


async def test_a_response_whose_end_was_not_reported_ends_when_the_next_one_starts():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(
            response_started(),
            text_delta("one"),
            audio_chunk(),
            response_started("r2"),
            response_ended("r1"),
            response_ended("r2"),
        )
        await recorded.wait_for("agent_end", 2)
        turns = [
            (event.type, event.response_id) for event in recorded.events if event.type in ("agent_start", "agent_end")
        ]
        assert turns == [("agent_start", "r1"), ("agent_end", "r1"), ("agent_start", "r2"), ("agent_end", "r2")]
        assert [event.status for event in recorded.of_type("agent_end")] == ["lost", "completed"]
        assert get_texts(session) == ["one"]


async def test_a_response_with_a_late_start_trips_once():
    agent = RealtimeAgent(name="host", output_guardrails=[discreet])
    async with open_scripted_session(agent, guardrails_settings={"debounce_text_length": 1}) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(text_delta("secret"))
        await recorded.wait_for("guardrail_tripped")
        await model.emit(response_started(), text_delta(" secret"), audio_chunk(), response_ended())
        await recorded.wait_for("agent_end")
        await asyncio.sleep(0.01)
        assert len(recorded.of_type("guardrail_tripped")) == 1
        assert recorded.of_type("audio") == []
        assert len(get_sent_inputs(model, RealtimeModelSendUserInput)) == 1


async def test_frames_of_a_response_in_the_wrong_order_over_a_real_connection():
    async with RealtimeServer(["One two.", "Three."]) as server:
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        async with record_events(session) as recorded, session:
            server.inject("response.created", Reorder("response.done"))
            for turn in (1, 2):
                await session.send_message("hello")
                await recorded.wait_for("agent_end", turn)
            await interrupt(session, recorded)
            assert len(recorded.of_type("agent_start")) <= 2


# Words and sounds behind the end of their response.


async def test_text_that_arrives_after_the_end_is_checked():
    agent = RealtimeAgent(name="host", output_guardrails=[discreet])
    async with open_scripted_session(agent) as (_session, model, recorded):
        await model.emit(response_started(), text_delta("nothing"), response_ended(), text_delta(" secret"))
        await recorded.wait_for("guardrail_tripped")


async def test_audio_that_arrives_after_the_end_is_not_held_forever():
    agent = RealtimeAgent(name="host", output_guardrails=[discreet])
    async with open_scripted_session(agent, guardrails_settings={"hold_back_audio": True}) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(response_started(), text_delta("nothing"), audio_chunk(), response_ended())
        await recorded.wait_for("audio")
        await model.emit(audio_chunk())
        await recorded.wait_for("audio", 2)


# Planned roll-overs.


async def test_a_roll_over_during_a_lost_connection_is_not_the_last_one():
    class Dropping(ScriptedRealtimeModel):
        drops = 1

        async def send_event(self, event):
            asks = isinstance(event, RealtimeModelSendRawMessage) and event.message["type"] == "response.create"
            if asks and self.drops:
                self.drops -= 1
                await self.drop()
                raise ConnectionLost("gone again")
            await super().send_event(event)

    config = {"roll_over_after": 0.05, "initial_delay": 0.001}
    async with open_scripted_session(AGENT, Dropping(strict=False), reconnect=config) as (session, model, recorded):
        await session.send_message("hello")
        await model.emit(user_message_added("hello"))
        await recorded.wait_for("reconnected", 4)
        assert sum(event.planned for event in recorded.of_type("reconnected")) >= 2


# Closing at unlucky moments.


@pytest.mark.parametrize("deadline", [0.0, 2.0])
async def test_closing_while_the_entry_is_under_way_ends_the_entry(deadline):
    async with RealtimeServer() as server:
        server.inject("session.update", Discard())
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        entering = asyncio.ensure_future(session.enter())
        await (await server.wait_for_connection()).wait_for_frame("session.update")
        await session.close(deadline=deadline)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await asyncio.wait({entering})
        assert entering.cancelled() or entering.exception() is not None
        assert session.state is RealtimeState.CLOSED
        await wait_until(lambda: server.open_connections == [])
        with pytest.raises(Closed):
            await session.send_message("too late")


async def test_closing_without_any_time_still_releases_everything():
    async with RealtimeServer() as server:
        session = await RealtimeRunner(AGENT).run(model_config=connect_options(server))
        async with session:
            await session.close(deadline=0)
            assert session.state is RealtimeState.CLOSED
        await wait_until(lambda: server.open_connections == [])


# Tools that the connection's reader waits for.


@pytest.mark.parametrize("what", ["interrupt", "update"])
async def test_a_tool_that_is_waited_for_may_still_use_the_session(what):
    @function_tool
    async def act() -> str:
        await (session.interrupt() if what == "interrupt" else session.update_agent(OTHER))
        return "acted"

    agent = RealtimeAgent(name="host", tools=[act])
    model = OpenAIRealtimeWebSocketModel()
    runner = RealtimeRunner(agent, model=model, config={"async_tool_calls": False})
    async with RealtimeServer([CallTool("act"), "Fine."]) as server:
        session = await runner.run(model_config=connect_options(server))
        async with record_events(session) as recorded, session, asyncio.timeout(WAIT_TIMEOUT):
            await session.send_message("hello")
            assert (await recorded.wait_for("tool_end")).output == "acted"
            await recorded.wait_for("agent_end", 2)
            assert recorded.of_type("error") == []


# A third-party model with only the required methods.


class Foreign(RealtimeModel):
    """It names no responses at their beginning and acknowledges nothing."""

    def __init__(self):
        self.listeners, self.sent = [], []

    async def connect(self, options):
        self.options = options

    def add_listener(self, listener):
        self.listeners.append(listener)

    def remove_listener(self, listener):
        self.listeners.remove(listener)

    async def send_event(self, event):
        self.sent.append(event)

    async def close(self):
        pass

    async def deliver(self, *events):
        for event in events:
            for listener in tuple(self.listeners):
                await listener.on_event(event)

    def sent_of(self, kind):
        return [event for event in self.sent if isinstance(event, kind)]


async def test_a_model_without_response_ids_can_speak_call_hand_off_and_be_interrupted():
    model = Foreign()
    agent = RealtimeAgent(name="host", tools=[theirs], handoffs=[OTHER])
    session = await RealtimeRunner(agent, model=model).run()
    async with record_events(session) as recorded, session:
        await session.send_message("hello")
        await model.deliver(
            model_events.RealtimeModelTurnStartedEvent(), text_delta("Hello."), audio_chunk(), tool_call("theirs")
        )
        await recorded.wait_for("tool_end")
        await model.deliver(model_events.RealtimeModelTurnEndedEvent())
        await recorded.wait_for("agent_end")
        await model.deliver(model_events.RealtimeModelTurnStartedEvent(), tool_call("transfer_to_other", "c2"))
        await recorded.wait_for("handoff")
        await model.deliver(model_events.RealtimeModelTurnEndedEvent())
        await wait_until(lambda: len(model.sent_of(RealtimeModelSendToolOutput)) == 2)
        assert len(model.sent_of(RealtimeModelSendSessionUpdate)) == 1
        assert session.current_agent is OTHER
        await model.deliver(model_events.RealtimeModelTurnStartedEvent(), audio_chunk(response_id="r9", item_id="i9"))
        await recorded.wait_for("audio", 2)
        stopping = asyncio.ensure_future(session.interrupt())
        await wait_until(lambda: model.sent_of(RealtimeModelSendInterrupt))
        await model.deliver(audio_chunk(response_id="r9", item_id="i9"), model_events.RealtimeModelTurnEndedEvent())
        await asyncio.wait_for(stopping, WAIT_TIMEOUT)
        assert recorded.of_type("error") == []
        assert len(recorded.of_type("audio")) == 2
        assert [event.agent.name for event in recorded.of_type("agent_end")] == ["host", "host", "other"]
    assert model.listeners == []
