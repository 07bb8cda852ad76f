"""The clients of other people against our server: openai-agents' realtime session, and the ``openai`` package."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import agents
from agents import realtime as peer
from openai import AsyncOpenAI

from realtime.wire import speech
from realtime.wire_types import CLIENT_EVENTS, SERVER_EVENTS, faults
from realtime_kit import eventually
from standfast.realtime.local.responder import CallTool, ResponderRequest, Say
from standfast.testing import RealtimeServer


class Clerk:
    """Answers by what was said last, however often it is asked."""

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
async def serving(**options: Any) -> AsyncIterator[RealtimeServer]:
    """A server that is understood and that understands: no frame is wrong, and nothing is refused."""
    async with RealtimeServer(Clerk(), **options) as server:
        yield server
    for connection in server.connections:
        assert connection.get_sent("error") == []
        assert [fault for frame in connection.received for fault in faults(frame, CLIENT_EVENTS)] == []
        assert [fault for frame in connection.sent for fault in faults(frame, SERVER_EVENTS)] == []


@agents.function_tool
async def opening_hours(day: str) -> str:
    """When the shop is open."""
    return f"9 to 5 on {day}"


@asynccontextmanager
async def calling(server: RealtimeServer) -> AsyncIterator[tuple[peer.RealtimeSession, list[Any]]]:
    billing = peer.RealtimeAgent(name="billing", instructions="You do the billing.")
    front = peer.RealtimeAgent(name="front", tools=[opening_hours], handoffs=[billing])
    config: Any = {"url": server.url, "api_key": "test"}
    runner = peer.RealtimeRunner(front, config={"tracing_disabled": True})
    heard: list[Any] = []

    async def listen(session: peer.RealtimeSession) -> None:
        async for event in session:
            heard.append(event)  # noqa: PERF401 - it is read meanwhile

    async with await runner.run(model_config=config) as session:
        listener = asyncio.create_task(listen(session))
        try:
            yield session, heard
        finally:
            listener.cancel()
            await asyncio.wait({listener})
    assert [event for event in heard if event.type == "error"] == []


def of(heard: list[Any], kind: str) -> list[Any]:
    return [event for event in heard if event.type == kind]


def said(heard: list[Any]) -> list[str]:
    """The words in the history as the peer has it now."""
    history = of(heard, "history_updated")[-1].history
    parts = [part for item in history if item.type == "message" for part in item.content]
    return [getattr(part, "text", None) or part.transcript for part in parts]


async def test_openai_agents_holds_written_turns_calls_tools_and_hands_over():
    async with serving() as server, calling(server) as (session, heard):
        await session.send_message("Hello.")
        await eventually(lambda: len(of(heard, "agent_end")) == 1)
        assert said(heard) == ["Hello.", "Good morning."]
        assert of(heard, "audio")
        await session.send_message("When do you open?")
        await eventually(lambda: len(of(heard, "agent_end")) == 3)
        assert [event.output for event in of(heard, "tool_end")] == ["9 to 5 on Monday", "9 to 5 on Tuesday"]
        assert said(heard)[-1] == "I see: 9 to 5 on Tuesday"
        await session.send_message("It is about my bill.")
        await eventually(lambda: len(of(heard, "agent_end")) == 5)
        assert [event.to_agent.name for event in of(heard, "handoff")] == ["billing"]
        assert server.connections[0].session["instructions"] == "You do the billing."


async def test_openai_agents_speaks_and_interrupts():
    async with serving(pace=4.0) as server, calling(server) as (session, heard):
        await session.send_message("Count.")
        await eventually(lambda: len(of(heard, "audio")) > 1)
        pcm = await speech()
        for start in range(0, len(pcm), 4800):
            await session.send_audio(pcm[start : start + 4800])
        await eventually(lambda: len(of(heard, "agent_end")) == 2)
        assert of(heard, "audio_interrupted")
        connection = server.connections[0]
        assert [frame["response"]["status"] for frame in connection.get_sent("response.done")] == [
            "cancelled",
            "completed",
        ]
        assert connection.get_sent("conversation.item.truncated")
        assert [entry.item["role"] for entry in connection.conversation] == ["user", "assistant", "user", "assistant"]


async def test_the_openai_package_holds_a_conversation():
    async with serving() as server:
        client = AsyncOpenAI(api_key="test", websocket_base_url=server.url.removesuffix("/realtime"))
        async with client, client.realtime.connect(model="gpt-realtime") as connection:
            tool: Any = {"type": "function", "name": "opening_hours", "parameters": {"type": "object"}}
            await connection.session.update(
                session={"type": "realtime", "output_modalities": ["text"], "tools": [tool]}
            )

            async def answered() -> Any:
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.done":
                        return event.response.output
                raise AssertionError("the connection ended")

            async def tell(text: str) -> Any:
                part: Any = {"type": "input_text", "text": text}
                await connection.conversation.item.create(item={"type": "message", "role": "user", "content": [part]})
                return await answered()

            assert (await tell("Hello."))[0].content[0].text == "Good morning."
            calls = await tell("When do you open?")
            assert [call.arguments for call in calls] == ['{"day": "Monday"}', '{"day": "Tuesday"}']
            for call in calls:
                output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "always"}
                await connection.conversation.item.create(item=output)
            assert (await answered())[0].content[0].text == "I see: always"
            assert server.connections[0].session["model"] == "gpt-realtime"
