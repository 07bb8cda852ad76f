"""Third-party clients against our server: the realtime session of openai-agents, and the ``openai`` package."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import agents
from agents import realtime as agents_realtime
from openai import AsyncOpenAI

from factories.realtime import wait_until
from factories.realtime_protocol import make_speech
from realtime.openai_types import CLIENT_EVENTS, SERVER_EVENTS, find_type_errors
from standfast.realtime.local.responder import CallTool, ResponderRequest, Say
from standfast.testing import RealtimeServer


class ShopResponder:
    """Answers the last message, any number of times."""

    async def respond(self, request: ResponderRequest) -> AsyncIterator[Any]:
        last = request.items[-1]
        if last["type"] == "function_call_output":
            yield Say(f"I see: {last['output']}")
            return
        match last["content"][0].get("text"):
            case "When do you open?":
                yield CallTool("opening_hours", {"day": "Monday"})
                yield CallTool("opening_hours", {"day": "Tuesday"})
            case "It is about my bill.":
                yield CallTool("transfer_to_billing")
            case "Count.":
                yield Say("One two three four five six seven eight nine ten. " * 4)
            case _:
                yield Say("Good morning.")


@asynccontextmanager
async def checked_server(**options: Any) -> AsyncIterator[RealtimeServer]:
    """Run a server, and check that no frame is invalid and no error was sent."""
    async with RealtimeServer(ShopResponder(), **options) as server:
        yield server
    for connection in server.connections:
        assert connection.get_sent("error") == []
        assert [problem for frame in connection.received for problem in find_type_errors(frame, CLIENT_EVENTS)] == []
        assert [problem for frame in connection.sent for problem in find_type_errors(frame, SERVER_EVENTS)] == []


@agents.function_tool
async def opening_hours(day: str) -> str:
    """When the shop is open."""
    return f"9 to 5 on {day}"


@asynccontextmanager
async def open_session(server: RealtimeServer) -> AsyncIterator[tuple[agents_realtime.RealtimeSession, list[Any]]]:
    billing = agents_realtime.RealtimeAgent(name="billing", instructions="You do the billing.")
    front = agents_realtime.RealtimeAgent(name="front", tools=[opening_hours], handoffs=[billing])
    config: Any = {"url": server.url, "api_key": "test"}
    runner = agents_realtime.RealtimeRunner(front, config={"tracing_disabled": True})
    events: list[Any] = []

    async def listen(session: agents_realtime.RealtimeSession) -> None:
        async for event in session:
            events.append(event)  # noqa: PERF401 - the list is read concurrently

    async with await runner.run(model_config=config) as session:
        listener = asyncio.create_task(listen(session))
        try:
            yield session, events
        finally:
            listener.cancel()
            await asyncio.wait({listener})
    assert select(events, "error") == []


def select(events: list[Any], event_type: str) -> list[Any]:
    return [event for event in events if event.type == event_type]


def get_texts(events: list[Any]) -> list[str]:
    """Return the texts of the latest history of the client."""
    history = select(events, "history_updated")[-1].history
    parts = [part for item in history if item.type == "message" for part in item.content]
    return [getattr(part, "text", None) or part.transcript for part in parts]


async def test_openai_agents_can_chat_call_tools_and_hand_off():
    async with checked_server() as server, open_session(server) as (session, events):
        await session.send_message("Hello.")
        await wait_until(lambda: len(select(events, "agent_end")) == 1)
        assert get_texts(events) == ["Hello.", "Good morning."]
        assert select(events, "audio")
        await session.send_message("When do you open?")
        await wait_until(lambda: len(select(events, "agent_end")) == 3)
        assert [event.output for event in select(events, "tool_end")] == ["9 to 5 on Monday", "9 to 5 on Tuesday"]
        assert get_texts(events)[-1] == "I see: 9 to 5 on Tuesday"
        await session.send_message("It is about my bill.")
        await wait_until(lambda: len(select(events, "agent_end")) == 5)
        assert [event.to_agent.name for event in select(events, "handoff")] == ["billing"]
        assert server.connections[0].session["instructions"] == "You do the billing."


async def test_openai_agents_can_speak_and_interrupt():
    async with checked_server(pace=4.0) as server, open_session(server) as (session, events):
        await session.send_message("Count.")
        await wait_until(lambda: len(select(events, "audio")) > 1)
        pcm = await make_speech()
        for start in range(0, len(pcm), 4800):
            await session.send_audio(pcm[start : start + 4800])
        await wait_until(lambda: len(select(events, "agent_end")) == 2)
        assert select(events, "audio_interrupted")
        connection = server.connections[0]
        assert [frame["response"]["status"] for frame in connection.get_sent("response.done")] == [
            "cancelled",
            "completed",
        ]
        assert connection.get_sent("conversation.item.truncated")
        assert [entry.item["role"] for entry in connection.conversation] == ["user", "assistant", "user", "assistant"]


async def test_the_openai_package_can_hold_a_conversation():
    async with checked_server() as server:
        client = AsyncOpenAI(api_key="test", websocket_base_url=server.url.removesuffix("/realtime"))
        async with client, client.realtime.connect(model="gpt-realtime") as connection:
            tool: Any = {"type": "function", "name": "opening_hours", "parameters": {"type": "object"}}
            await connection.session.update(
                session={"type": "realtime", "output_modalities": ["text"], "tools": [tool]}
            )

            async def get_response() -> Any:
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.done":
                        return event.response.output
                raise AssertionError("the connection ended")

            async def send(text: str) -> Any:
                part: Any = {"type": "input_text", "text": text}
                await connection.conversation.item.create(item={"type": "message", "role": "user", "content": [part]})
                return await get_response()

            assert (await send("Hello."))[0].content[0].text == "Good morning."
            calls = await send("When do you open?")
            assert [call.arguments for call in calls] == ['{"day": "Monday"}', '{"day": "Tuesday"}']
            for call in calls:
                output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "always"}
                await connection.conversation.item.create(item=output)
            assert (await get_response())[0].content[0].text == "I see: always"
            assert server.connections[0].session["model"] == "gpt-realtime"
