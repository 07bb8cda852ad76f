"""Frames of client and server against the types of the ``openai`` package: no missing, unknown or invalid fields."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.realtime import open_websocket_session, send_speech
from factories.realtime_protocol import USER, make_speech, open_raw_client
from realtime.openai_types import CLIENT_EVENTS, SERVER_EVENTS, enumerate_fields, events, find_type_errors
from standfast import function_tool
from standfast.agents.hosted_tools import HostedMCPTool
from standfast.agents.model_settings import MCPToolChoice
from standfast.realtime import RealtimeAgent
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.responder import CallTool, Pause
from standfast.realtime.local.speech import ScriptedTranscriber
from standfast.realtime.model import RealtimeModelSendRawMessage
from standfast.testing import RealtimeServer

TRANSCRIBED = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
FUNCTION = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}}


@asynccontextmanager
async def checked_server(*turns, **options):
    """Run a server, and check all frames that it and its clients sent."""
    async with RealtimeServer(list(turns), **options) as server:
        yield server
    problems = [
        problem
        for connection in server.connections
        for frames, kinds in ((connection.received, CLIENT_EVENTS), (connection.sent, SERVER_EVENTS))
        for frame in frames
        for problem in find_type_errors(frame, kinds)
    ]
    assert problems == []


async def test_server_frames_of_text_turns_and_items_match_the_types():
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
    async with checked_server("Good morning.", "Hello.") as server, open_raw_client(server) as client:
        for item in items:
            await client.send("conversation.item.create", item=item)
        await client.send("response.create")
        await client.read_until("rate_limits.updated")
        await client.send("response.create", response={"output_modalities": ["text"], "metadata": {"a": "b"}})
        await client.read_until("rate_limits.updated")
        ids = [entry.id for entry in server.connections[0].conversation]
        assert len(ids) == 7
        for item_id in ids:
            await client.send("conversation.item.retrieve", item_id=item_id)
            await client.read_until("conversation.item.retrieved")
            await client.send("conversation.item.delete", item_id=item_id)
            await client.read_until("conversation.item.deleted")


@pytest.mark.parametrize("transcript", ["What time is it?", None])
async def test_server_frames_of_spoken_turns_match_the_types(transcript):
    class FailingTranscriber:
        async def transcribe(self, audio):
            raise RuntimeError("no transcript")

    transcriber = ScriptedTranscriber([transcript]) if transcript else FailingTranscriber()
    async with (
        checked_server([Pause(0.02), "Noon."], transcriber=transcriber) as server,
        open_raw_client(server) as client,
    ):
        await client.send("session.update", session=TRANSCRIBED)
        await client.send_speech(await make_speech())
        await client.read_until("response.done")
        outcome = "completed" if transcript else "failed"
        assert server.connections[0].get_sent(f"conversation.item.input_audio_transcription.{outcome}")
        await client.send("input_audio_buffer.clear")
        await client.read_until("input_audio_buffer.cleared")


async def test_server_frames_of_an_interruption_match_the_types():
    async with (
        checked_server("One two three four five six seven.", pace=4.0) as server,
        open_raw_client(server) as client,
    ):
        await client.send("response.create")
        item_id = (await client.read_until("response.output_audio.delta"))["item_id"]
        await client.send_speech(await make_speech(pause_ms=0))
        assert (await client.read_until("response.done"))["response"]["status"] == "cancelled"
        for audio_end_ms in (50, 99_999):
            location = {"item_id": item_id, "content_index": 0, "audio_end_ms": audio_end_ms}
            await client.send("conversation.item.truncate", **location)
        await client.read_until("error")
        await client.send("conversation.item.retrieve", item_id=item_id)
        await client.read_until("conversation.item.retrieved")


async def test_server_frames_of_calls_failures_and_errors_match_the_types():
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
        checked_server(calls, RuntimeError("none"), failing, "Many words.", [Pause(30), "Late."], "Aside.") as server,
        open_raw_client(server) as client,
    ):
        await client.send("session.update", session=settings)
        for options, status in (
            ({}, "completed"),
            ({}, "failed"),
            ({}, "failed"),
            ({"max_output_tokens": 3}, "incomplete"),
        ):
            await client.send("response.create", response=options)
            assert (await client.read_until("response.done"))["response"]["status"] == status
        await client.send("response.create")
        await client.send("response.create")
        await client.read_until("error")
        await client.send("response.create", response={"conversation": "none", "input": [USER], "metadata": {"a": "b"}})
        await client.read_until("response.done")
        await client.send("output_audio_buffer.clear")
        await client.read_until("output_audio_buffer.cleared")
        await client.send("output_audio_buffer.clear")
        await client.send("response.cancel")
        await client.read_until("error")
        await client.send("session.update", session={"type": "realtime", "max_output_tokens": 0})
        await client.read_until("error")
        server.connections[0].expire()
        await client.read_until("error")


def test_server_frames_of_an_idle_timeout_match_the_types():
    engine = Engine(now=0.0)
    detection = {"type": "server_vad", "idle_timeout_ms": 5000}
    update = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
    engine.receive({"type": "session.update", "session": update}, 0.0)
    engine.start_response(0.0).finish(0.0)
    engine.process_ended_responses(0.0)
    engine.advance(5.5)
    frames = [each for each in engine.drain_outbox() if isinstance(each, dict)]
    assert "input_audio_buffer.timeout_triggered" in [frame["type"] for frame in frames]
    assert [problem for frame in frames for problem in find_type_errors(frame, SERVER_EVENTS)] == []


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CLIENT_EVENTS)).flatmap(lambda kind: events(CLIENT_EVENTS[kind])))
def test_server_answers_to_any_client_event_match_the_types(frame):
    assert find_type_errors(frame, CLIENT_EVENTS) == []
    assert [problem for each in get_answers(frame) for problem in find_type_errors(each, SERVER_EVENTS)] == []


def test_the_server_accepts_every_field_of_every_client_event():
    unknown = set()
    for kind in CLIENT_EVENTS.values():
        for frame in enumerate_fields(kind):
            errors = [each["error"] for each in get_answers(frame) if each["type"] == "error"]
            unknown |= {error["param"] for error in errors if error["code"] == "unknown_parameter"}
    assert unknown == set()


def get_answers(frame):
    """Return the frames with which a new session answers a frame."""
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
async def test_client_settings_match_the_types(settings):
    lab = {"type": "mcp", "server_label": "lab", "server_url": "https://example.com", "require_approval": "never"}
    agent = RealtimeAgent(name="a", instructions="Be brief.", tools=[hours, HostedMCPTool(tool_config=lab)])
    async with checked_server() as server, open_websocket_session(server, agent, model_settings=settings):
        pass


async def test_client_frames_of_a_full_call_match_the_types():
    billing = RealtimeAgent(name="billing", instructions="You do the billing.")
    front = RealtimeAgent(name="front", tools=[hours, cancel], handoffs=[billing])
    calls = [
        CallTool("hours", {"day": "Monday"}),
        CallTool("hours", {"day": "Tuesday"}),
        CallTool("cancel", {"order": "A7"}),
    ]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "high"}
    message = {"type": "message", "role": "user", "content": [picture, {"type": "input_text", "text": "My bill."}]}
    out_of_band = {"conversation": "none", "metadata": {"a": "b"}, "input": [USER]}
    async with (
        checked_server(calls, "Nine to five.", CallTool("transfer_to_billing"), *["Billing."] * 9) as server,
        open_websocket_session(server, front) as (session, recorded),
    ):
        await session.send_message("When do you open?")
        await session.approve_tool_call((await recorded.wait_for("tool_approval_required")).call_id)
        await recorded.wait_for("tool_end", 3)
        await session.send_message(message)
        await recorded.wait_for("agent_changed")
        await recorded.wait_for("audio")
        await send_speech(session, await make_speech())
        await recorded.wait_for("audio_interrupted")
        await session.interrupt()
        await session.send_audio(b"\0" * 9600, commit=True)
        await session.update_agent(front)
        for raw in (
            {"type": "response.create", "other_data": {"response": out_of_band}},
            {"type": "input_audio_buffer.clear"},
        ):
            await session.model.send_event(RealtimeModelSendRawMessage(raw))
        await server.connections[0].wait_for_frame("input_audio_buffer.clear")
        server.connections[0].close(1011)
        await recorded.wait_for("reconnected")
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
