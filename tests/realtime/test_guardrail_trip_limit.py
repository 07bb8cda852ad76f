"""Consecutive guardrail trips: a limit on requests, and the session continues."""

import asyncio

import pytest

from factories.realtime import (
    get_texts,
    in_virtual_time,
    open_websocket_session,
    record_events,
    send_speech,
    wait_until,
)
from factories.realtime_protocol import make_speech
from standfast import function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import (
    LocalRealtimeModel,
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimeRunner,
    TooManyGuardrailTrips,
)
from standfast.realtime.local import CallTool, ScriptedTranscriber
from standfast.testing import RealtimeServer


@output_guardrail
async def discretion(context, agent, output):
    return GuardrailFunctionOutput(None, "secret" in output)


@function_tool
async def look() -> str:
    return "a secret"


AGENT = RealtimeAgent(name="host", tools=[look], output_guardrails=[discretion])
BAD = "It is a secret."


async def refused(recorded, count):
    """Wait until so many responses were rejected and the last trip was announced."""
    await recorded.wait_for("guardrail_tripped", count)
    return await recorded.wait_for("error")


def creates(server):
    return len(server.connections[0].get_received("response.create"))


@pytest.mark.parametrize("held", [False, True])
async def test_after_three_trips_in_a_row_no_other_answer_is_requested(held):
    config = {"guardrails_settings": {"hold_back_audio": held}}
    async with (
        RealtimeServer([BAD] * 9) as server,
        open_websocket_session(server, AGENT, **config) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        error = (await refused(recorded, 3)).error
        assert isinstance(error, TooManyGuardrailTrips)
        assert (error.guardrail, error.count) == ("discretion", 3)
        kinds = [kind for kind in recorded.types() if kind in ("guardrail_tripped", "error")]
        assert kinds == ["guardrail_tripped"] * 3 + ["error"]
        await session.interrupt()
        assert (creates(server), len(recorded.of_type("guardrail_tripped"))) == (3, 3)
        assert get_texts(session).count("guardrail triggered: discretion") == 2


async def test_trips_separated_by_tool_calls_count_as_in_a_row():
    turns = [BAD, CallTool("look"), BAD, CallTool("look"), BAD, CallTool("look"), BAD]
    async with RealtimeServer(turns) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("Tell me.")
        await refused(recorded, 3)
        await session.interrupt()
        assert creates(server) == 5


@pytest.mark.parametrize("way", ["in writing", "speaking"])
async def test_input_of_the_user_resets_the_trip_count(way):
    transcriber = ScriptedTranscriber(["Please?"])
    turns = [BAD] * 4 + ["I must not say that."]
    async with (
        RealtimeServer(turns, transcriber=transcriber) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        await session.send_message("Tell me.")
        await refused(recorded, 3)
        if way == "in writing":
            await session.send_message("Please?")
        else:
            await send_speech(session, await make_speech())
        await wait_until(lambda: get_texts(session)[-1] == "I must not say that.")
        assert (len(recorded.of_type("guardrail_tripped")), len(recorded.of_type("error"))) == (4, 1)


@in_virtual_time
async def test_an_answer_that_passes_resets_the_trip_count():
    model = LocalRealtimeModel([BAD, BAD, "Well.", BAD, BAD, "That is all."], pace=None)
    config = {"model_settings": {"turn_detection": None}}
    session = await RealtimeRunner(AGENT, model=model, config=config).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Tell me.")
        await recorded.wait_for("agent_end", 3)
        await asyncio.sleep(5)
        await model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await wait_until(lambda: get_texts(session)[-1] == "That is all.")
        assert (len(recorded.of_type("guardrail_tripped")), recorded.of_type("error")) == (4, [])
