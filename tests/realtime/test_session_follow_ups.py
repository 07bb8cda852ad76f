"""Tool outputs and guardrail messages while the user speaks: sent at once, with the response after the turn."""

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
    RealtimeModelSendAudio,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeRunner,
)
from standfast.realtime.local import CallTool, EnergyDetector, ScriptedTranscriber, ToneTTS
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Discard

QUIET = {"turn_detection": {"type": "server_vad", "create_response": False, "interrupt_response": True}}


class Look:
    """An agent with a tool that waits for an event of the test."""

    def __init__(self):
        self.may = asyncio.Event()

        @function_tool
        async def look() -> str:
            """Looks it up."""
            await self.may.wait()
            return "noon"

        self.agent = RealtimeAgent(name="a", tools=[look])


async def halves():
    voice = await make_speech()
    middle = len(voice) // 4 * 2
    return voice[:middle], voice[middle:]


def creates(connection):
    return len(connection.get_received("response.create"))


async def begin_to_speak(session, recorded):
    """Start to speak, and return the audio that remains."""
    before, after = await halves()
    await send_speech(session, before)
    await wait_until(
        lambda: [event for event in recorded.of_type("raw_model_event") if event.data.type == "speech_started"]
    )
    return after


async def know_while_the_user_speaks(session, recorded, look):
    """Make a tool call whose output is ready while the user speaks; return the audio that remains."""
    await session.send_message("What time is it?")
    await recorded.wait_for("tool_start")
    after = await begin_to_speak(session, recorded)
    look.may.set()
    await recorded.wait_for("tool_end")
    return after


async def go_on(session):
    """Send another message and wait for its response: all earlier responses have ended by then."""
    await session.send_message("And now?")
    await wait_until(lambda: get_texts(session)[-1] == "The end.")


async def test_an_output_during_speech_is_part_of_the_answer_to_the_user():
    look, transcriber = Look(), ScriptedTranscriber(["And by the way?"])
    turns = [CallTool("look"), "It is noon, by the way.", "The end."]
    async with (
        RealtimeServer(turns, transcriber=transcriber) as server,
        open_websocket_session(server, look.agent) as (session, recorded),
    ):
        connection = server.connections[0]
        after = await know_while_the_user_speaks(session, recorded, look)
        await connection.wait_for_frame("conversation.item.create", count=2)
        assert creates(connection) == 1
        await send_speech(session, after)
        await recorded.wait_for("agent_end", 2)
        await go_on(session)
        assert creates(connection) == 2
        assert get_texts(session)[-3:] == ["It is noon, by the way.", "And now?", "The end."]
        assert recorded.of_type("error") == []


async def test_a_trip_during_speech_is_followed_up_in_the_answer_to_the_user():
    may, asked = asyncio.Event(), asyncio.Event()

    @output_guardrail
    async def discreet(context, agent, output):
        if "secret" not in output:
            return GuardrailFunctionOutput(None, False)
        asked.set()
        await may.wait()
        return GuardrailFunctionOutput(None, True)

    agent = RealtimeAgent(name="a", output_guardrails=[discreet])
    turns = ["the secret is out", "Forget it. Yes?", "The end."]
    transcriber = ScriptedTranscriber(["Stop."])
    async with (
        RealtimeServer(turns, transcriber=transcriber) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        connection = server.connections[0]
        await session.send_message("Tell me.")
        await asked.wait()
        after = await begin_to_speak(session, recorded)
        may.set()
        await recorded.wait_for("guardrail_tripped")
        await connection.wait_for_frame("conversation.item.create", count=2)
        assert creates(connection) == 1
        await send_speech(session, after)
        await recorded.wait_for("agent_end", 2)
        await go_on(session)
        assert creates(connection) == 2
        assert get_texts(session)[-3:] == ["Forget it. Yes?", "And now?", "The end."]


@pytest.mark.parametrize("why", ["it does not answer by itself", "its answer is lost"])
async def test_a_response_to_the_output_is_requested_if_the_server_does_not_answer_the_user(why):
    look = Look()
    settings = QUIET if why == "it does not answer by itself" else {}
    turns = [CallTool("look"), "It is noon."] if settings else [CallTool("look"), "Yes?", "It is noon."]
    async with (
        RealtimeServer(turns) as server,
        open_websocket_session(server, look.agent, model_settings=settings) as (
            session,
            recorded,
        ),
    ):
        connection = server.connections[0]
        after = await know_while_the_user_speaks(session, recorded, look)
        if not settings:
            server.inject("response.created", Discard())
        assert creates(connection) == 1
        await send_speech(session, after)
        await wait_until(lambda: get_texts(session)[-1] == "It is noon.")
        assert creates(connection) == 2


async def test_a_message_of_the_program_is_answered_although_the_user_speaks():
    look = Look()
    turns = [CallTool("look"), "At once. It is noon.", "Yes?"]
    async with (
        RealtimeServer(turns, pace=None) as server,
        open_websocket_session(server, look.agent) as (session, recorded),
    ):
        connection = server.connections[0]
        after = await know_while_the_user_speaks(session, recorded, look)
        await session.send_message("Answer now.")
        await wait_until(lambda: get_texts(session)[-1] == "At once. It is noon.")
        await send_speech(session, after)
        await wait_until(lambda: get_texts(session)[-1] == "Yes?")
        assert creates(connection) == 2


@pytest.mark.parametrize(
    "how",
    [
        RealtimeModelSendAudio(b"", commit=True),
        RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear"}),
        RealtimeModelSendSessionUpdate({"turn_detection": None}),
    ],
)
async def test_an_output_does_not_wait_for_a_turn_that_the_program_has_ended(how):
    look = Look()
    async with (
        RealtimeServer([CallTool("look"), "It is noon."]) as server,
        open_websocket_session(server, look.agent) as (session, recorded),
    ):
        connection = server.connections[0]
        await know_while_the_user_speaks(session, recorded, look)
        assert creates(connection) == 1
        await session.model.send_event(how)
        await wait_until(lambda: get_texts(session)[-1] == "It is noon.")


@pytest.mark.parametrize("settings", [{}, QUIET])
def test_the_model_in_the_program_lets_the_user_finish_too(settings):
    @in_virtual_time
    async def scenario():
        look = Look()
        turns = [CallTool("look"), "It is noon.", "Too much."]
        transcriber = ScriptedTranscriber(["By the way."])
        model = LocalRealtimeModel(turns, tts=ToneTTS(), detector=EnergyDetector, transcriber=transcriber)
        session = await RealtimeRunner(look.agent, model=model, config={"model_settings": settings}).run()
        async with record_events(session) as recorded, session:
            after = await know_while_the_user_speaks(session, recorded, look)
            await asyncio.sleep(5)
            assert len(recorded.of_type("agent_start")) == 1
            since = asyncio.get_running_loop().time()
            await send_speech(session, after)
            await recorded.wait_for("agent_start", 2)
            assert asyncio.get_running_loop().time() - since < 1
            await asyncio.sleep(60)
            assert [text for text in get_texts(session) if text] == ["What time is it?", "By the way.", "It is noon."]
            assert recorded.of_type("error") == []

    scenario()
