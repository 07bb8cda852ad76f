"""Both halves of the wire protocol against the types of the ``openai`` package: no frame lacks a part, has one that
nobody knows, or has a value that cannot be."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.wire import USER, speech, wired
from realtime.wire_types import CLIENT_EVENTS, SERVER_EVENTS, events, faults, one_by_one
from realtime_kit import calling, speak
from standfast import function_tool
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.model_settings import MCPToolChoice
from standfast.realtime import RealtimeAgent
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.responder import CallTool, Pause
from standfast.realtime.local.stt import ScriptedTranscriber
from standfast.realtime.model_inputs import RealtimeModelSendRawMessage
from standfast.testing import RealtimeServer

TRANSCRIBED = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
FUNCTION = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}}


@asynccontextmanager
async def serving(*turns, **options):
    """A server, of which every frame is looked at in the end, and every frame of its clients."""
    async with RealtimeServer(list(turns), **options) as server:
        yield server
    wrong = [
        fault
        for connection in server.connections
        for frames, kinds in ((connection.received, CLIENT_EVENTS), (connection.sent, SERVER_EVENTS))
        for frame in frames
        for fault in faults(frame, kinds)
    ]
    assert wrong == []


async def test_a_servers_frames_about_written_turns_and_items():
    items = [
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                {"type": "input_audio", "audio": "AAAA", "transcript": "Look."},
            ],
        },
        {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    async with serving("Good morning.", "Hello.") as server, wired(server) as wire:
        for item in items:
            await wire.send("conversation.item.create", item=item)
        await wire.send("response.create")
        await wire.until("rate_limits.updated")
        await wire.send("response.create", response={"output_modalities": ["text"], "metadata": {"a": "b"}})
        await wire.until("rate_limits.updated")
        known = [entry.id for entry in server.connections[0].conversation]
        assert len(known) == 7
        for item_id in known:
            await wire.send("conversation.item.retrieve", item_id=item_id)
            await wire.until("conversation.item.retrieved")
            await wire.send("conversation.item.delete", item_id=item_id)
            await wire.until("conversation.item.deleted")


@pytest.mark.parametrize("heard", ["What time is it?", None])
async def test_a_servers_frames_about_spoken_turns(heard):
    class Deaf:
        async def transcribe(self, audio):
            raise RuntimeError("no ears")

    transcriber = ScriptedTranscriber([heard]) if heard else Deaf()
    async with serving([Pause(0.02), "Noon."], transcriber=transcriber) as server, wired(server) as wire:
        await wire.send("session.update", session=TRANSCRIBED)
        await wire.speak(await speech())
        await wire.until("response.done")
        told = "completed" if heard else "failed"
        assert server.connections[0].get_sent(f"conversation.item.input_audio_transcription.{told}")
        await wire.send("input_audio_buffer.clear")
        await wire.until("input_audio_buffer.cleared")


async def test_a_servers_frames_about_an_interruption():
    async with serving("One two three four five six seven.", pace=4.0) as server, wired(server) as wire:
        await wire.send("response.create")
        item_id = (await wire.until("response.output_audio.delta"))["item_id"]
        await wire.speak(await speech(pause_ms=0))
        assert (await wire.until("response.done"))["response"]["status"] == "cancelled"
        for audio_end_ms in (50, 99_999):
            where = {"item_id": item_id, "content_index": 0, "audio_end_ms": audio_end_ms}
            await wire.send("conversation.item.truncate", **where)
        await wire.until("error")
        await wire.send("conversation.item.retrieve", item_id=item_id)
        await wire.until("conversation.item.retrieved")


async def test_a_servers_frames_about_calls_failures_collisions_and_refusals():
    calls = [CallTool("weather", {"city": "Rome"}), CallTool("weather", {"city": "Oslo"})]
    failing = ["So far", RuntimeError("no more ideas")]
    settings = {
        "type": "realtime",
        "tools": [FUNCTION, {"type": "mcp", "server_label": "a", "server_url": "https://example.com"}],
        "tool_choice": {"type": "function", "name": "weather"},
        "tracing": {"workflow_name": "w"},
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
        "prompt": {"id": "p"},
        "reasoning": {"effort": "low"},
        "include": ["item.input_audio_transcription.logprobs"],
        "audio": {
            "input": {"noise_reduction": {"type": "near_field"}, "turn_detection": {"type": "semantic_vad"}},
            "output": {"voice": {"id": "mine"}, "format": {"type": "audio/pcmu"}},
        },
    }
    async with (
        serving(calls, RuntimeError("none"), failing, "Many words.", [Pause(30), "Late."], "Aside.") as server,
        wired(server) as wire,
    ):
        await wire.send("session.update", session=settings)
        for wanted, status in (
            ({}, "completed"),
            ({}, "failed"),
            ({}, "failed"),
            ({"max_output_tokens": 3}, "incomplete"),
        ):
            await wire.send("response.create", response=wanted)
            assert (await wire.until("response.done"))["response"]["status"] == status
        await wire.send("response.create")
        await wire.send("response.create")
        await wire.until("error")
        await wire.send("response.create", response={"conversation": "none", "input": [USER], "metadata": {"a": "b"}})
        await wire.until("response.done")
        await wire.send("output_audio_buffer.clear")
        await wire.until("output_audio_buffer.cleared")
        await wire.send("output_audio_buffer.clear")
        await wire.send("response.cancel")
        await wire.until("error")
        await wire.send("session.update", session={"type": "realtime", "max_output_tokens": 0})
        await wire.until("error")
        server.connections[0].expire()
        await wire.until("error")


def test_a_servers_frames_about_a_long_silence():
    engine = Engine(now=0.0)
    detection = {"type": "server_vad", "idle_timeout_ms": 5000}
    update = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    engine.receive({"type": "session.update", "session": update}, 0.0)
    engine.start_response(0.0).finish(0.0)
    engine.process_ended_responses(0.0)
    engine.advance(5.5)
    frames = [each for each in engine.drain_outbox() if isinstance(each, dict)]
    assert "input_audio_buffer.timeout_triggered" in [frame["type"] for frame in frames]
    assert [fault for frame in frames for fault in faults(frame, SERVER_EVENTS)] == []


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CLIENT_EVENTS)).flatmap(lambda kind: events(CLIENT_EVENTS[kind])))
def test_a_servers_answer_to_any_frame_that_a_client_may_send(frame):
    assert faults(frame, CLIENT_EVENTS) == []
    assert [fault for each in told(frame) for fault in faults(each, SERVER_EVENTS)] == []


def test_a_server_knows_every_part_of_every_frame_that_a_client_may_send():
    unknown = set()
    for kind in CLIENT_EVENTS.values():
        for frame in one_by_one(kind):
            errors = [each["error"] for each in told(frame) if each["type"] == "error"]
            unknown |= {error["param"] for error in errors if error["code"] == "unknown_parameter"}
    assert unknown == set()


def told(frame):
    """What a server has to say to a frame, first of all."""
    engine = Engine(now=0.0)
    engine.receive(frame, 0.0)
    return [each for each in engine.drain_outbox() if isinstance(each, dict)]


@function_tool
async def hours(day: str) -> str:
    """When the shop is open."""
    return f"9 to 5 on {day}"


@function_tool(needs_approval=True)
async def cancel(order: str) -> str:
    """Cancel an order."""
    return f"{order} is cancelled"


@pytest.mark.parametrize(
    "settings",
    [
        {
            "model_name": "gpt-realtime",
            "instructions": "Be kind.",
            "prompt": {"id": "p", "version": "1", "variables": {"a": "b"}},
            "modalities": ["audio"],
            "voice": "ash",
            "speed": 1.2,
            "max_output_tokens": 100,
            "input_audio_format": "pcm16",
            "output_audio_format": "g711_ulaw",
            "input_audio_transcription": {"model": "gpt-4o-transcribe", "language": "en", "prompt": "Names."},
            "input_audio_noise_reduction": {"type": "near_field"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.4,
                "prefix_padding_ms": 200,
                "silence_duration_ms": 300,
                "idle_timeout_ms": 6000,
                "create_response": True,
                "interrupt_response": False,
            },
            "tool_choice": "hours",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low"},
            "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": "b"}},
        },
        {
            "output_modalities": ["text"],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcma"},
                    "noise_reduction": None,
                    "transcription": {"model": "any", "keywords": ["a"], "languages": ["en"], "delay": "low"},
                    "turn_detection": None,
                },
                "output": {"format": "pcm16", "voice": {"id": "mine"}, "speed": 0.5},
            },
            "max_output_tokens": "inf",
            "tool_choice": "required",
        },
        {"turn_detection": {"eagerness": "high"}, "tool_choice": MCPToolChoice("lab", "n"), "tracing": None},
        {"turn_detection": {"silence_duration_ms": 300}, "tracing": {}, "reasoning": {}},
        {"turn_detection": {"createResponse": False}, "input_audio_transcription": None, "tool_choice": "none"},
    ],
)
async def test_a_clients_settings(settings):
    lab = {"type": "mcp", "server_label": "lab", "server_url": "https://example.com", "require_approval": "never"}
    agent = RealtimeAgent(name="a", instructions="Be brief.", tools=[hours, HostedMCPTool(tool_config=lab)])
    async with serving() as server, calling(server, agent, model_settings=settings):
        pass


async def test_a_clients_frames_in_a_call_with_everything():
    billing = RealtimeAgent(name="billing", instructions="You do the billing.")
    front = RealtimeAgent(name="front", tools=[hours, cancel], handoffs=[billing])
    calls = [
        CallTool("hours", {"day": "Monday"}),
        CallTool("hours", {"day": "Tuesday"}),
        CallTool("cancel", {"order": "A7"}),
    ]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}
    shown = {"type": "message", "role": "user", "content": [picture, {"type": "input_text", "text": "My bill."}]}
    aside = {"conversation": "none", "metadata": {"a": "b"}, "input": [USER]}
    async with (
        serving(calls, "Nine to five.", CallTool("transfer_to_billing"), *["Billing."] * 9) as server,
        calling(server, front) as (session, heard),
    ):
        await session.send_message("When do you open?")
        await session.approve_tool_call((await heard.until("tool_approval_required")).call_id)
        await heard.until("tool_end", 3)
        await session.send_message(shown)
        await heard.until("agent_changed")
        await heard.until("audio")
        await speak(session, await speech())
        await heard.until("audio_interrupted")
        await session.interrupt()
        await session.send_audio(b"\0" * 9600, commit=True)
        await session.update_agent(front)
        for message in (
            {"type": "response.create", "other_data": {"response": aside}},
            {"type": "input_audio_buffer.clear"},
        ):
            await session.model.send_event(RealtimeModelSendRawMessage(message))
        await server.connections[0].wait_for_frame("input_audio_buffer.clear")
        server.connections[0].close(1011)
        await heard.until("reconnected")
        await session.send_message("Are you there?")
        await server.connections[1].wait_for_frame("response.create")
    received = {frame["type"] for connection in server.connections for frame in connection.received}
    assert received == {
        "session.update",
        "conversation.item.create",
        "conversation.item.truncate",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "response.create",
    } | (received & {"response.cancel"})
