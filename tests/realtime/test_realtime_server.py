"""The sequences of frames of the server, as a raw client sees them."""

import pytest
from websockets.exceptions import ConnectionClosed

from factories.realtime_protocol import USER, make_speech, open_raw_client
from standfast.realtime.local.responder import CallTool, Pause
from standfast.realtime.local.speech import ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Discard, Insert, Reject

START_OF_AUDIO = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
END_OF_AUDIO = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
    "rate_limits.updated",
]


async def test_a_connection_starts_with_session_created_and_acknowledges_settings():
    async with RealtimeServer() as server, open_raw_client(server, model="some-model") as client:
        created = await client.read_until("session.created")
        assert created["session"]["model"] == "some-model"
        for instructions in ("Be kind.", "Be brief."):
            await client.send("session.update", session={"type": "realtime", "instructions": instructions})
            updated = await client.read_until("session.updated")
            assert updated["session"]["instructions"] == instructions
        assert updated["session"]["id"] == created["session"]["id"]
        assert server.connections[0].session["instructions"] == "Be brief."


async def test_a_text_message_is_answered_in_audio_with_a_transcript():
    async with RealtimeServer(["Good morning."]) as server, open_raw_client(server) as client:
        await client.read_until("conversation.created")
        await client.send("conversation.item.create", item=USER)
        assert await client.read_types_until("conversation.item.done") == [
            "conversation.item.added",
            "conversation.item.done",
        ]
        await client.send("response.create")
        types = await client.read_types_until("rate_limits.updated")
        assert types[:4] == START_OF_AUDIO
        assert set(types[4:-7]) == {"response.output_audio_transcript.delta", "response.output_audio.delta"}
        assert types[-7:] == END_OF_AUDIO
        done = next(frame for frame in client.frames if frame["type"] == "response.done")["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Good morning."}]
        assert done["usage"]["output_token_details"]["audio_tokens"] > 0
        deltas = [
            frame["delta"] for frame in client.frames if frame["type"] == "response.output_audio_transcript.delta"
        ]
        assert deltas == ["Good", " morning."]


async def test_a_text_message_is_answered_in_text_on_request():
    async with RealtimeServer(["Good morning."]) as server, open_raw_client(server) as client:
        await client.send("conversation.item.create", item=USER)
        await client.send("response.create", response={"output_modalities": ["text"], "metadata": {"owner": "me"}})
        done = (await client.read_until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "Good morning."}]
        assert done["metadata"] == {"owner": "me"}


async def test_speech_is_detected_committed_transcribed_and_answered():
    transcriber = ScriptedTranscriber(["What time is it?"])
    async with (
        RealtimeServer([[Pause(0.02), "Noon."]], transcriber=transcriber) as server,
        open_raw_client(server) as client,
    ):
        transcription = {"model": "any"}
        await client.send(
            "session.update", session={"type": "realtime", "audio": {"input": {"transcription": transcription}}}
        )
        await client.read_until("session.updated")
        await client.send_speech(await make_speech())
        assert await client.read_types_until("response.created") == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        completed = await client.read_until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == "What time is it?"
        await client.read_until("response.done")
        started, stopped, committed = (
            frame for frame in client.frames if frame["type"].startswith("input_audio_buffer")
        )
        assert started["item_id"] == stopped["item_id"] == committed["item_id"] == completed["item_id"]
        assert started["audio_start_ms"] < 300 < stopped["audio_end_ms"]
        assert [entry.text for entry in server.connections[0].conversation] == ["What time is it?", "Noon."]
        assert server.responder.requests[0].items[0]["content"] == [{"type": "input_text", "text": "What time is it?"}]


async def test_speech_interrupts_a_response_and_truncates_its_item():
    async with (
        RealtimeServer(["One two three four five six seven."], pace=1.0) as server,
        open_raw_client(server) as client,
    ):
        await client.send("conversation.item.create", item=USER)
        await client.send("response.create")
        item_id = (await client.read_until("response.output_audio.delta"))["item_id"]
        for _ in range(4):
            await client.read_until("response.output_audio.delta")
        await client.send_speech(await make_speech(pause_ms=0))
        await client.read_until("input_audio_buffer.speech_started")
        done = (await client.read_until("response.done"))["response"]
        assert done["status"] == "cancelled"
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert done["output"][0]["status"] == "incomplete"
        conversation = server.connections[0].conversation
        length, transcript = conversation.get_entry(item_id).audio_ms, conversation.get_entry(item_id).text
        location = {"item_id": item_id, "content_index": 0}
        await client.send("conversation.item.truncate", **location, audio_end_ms=length + 1)
        assert "already shorter" in (await client.read_until("error"))["error"]["message"]
        await client.send("conversation.item.truncate", **location, audio_end_ms=210)
        assert (await client.read_until("conversation.item.truncated"))["audio_end_ms"] == 210
        await client.send("conversation.item.retrieve", item_id=item_id)
        part = (await client.read_until("conversation.item.retrieved"))["item"]["content"][0]
        assert "transcript" not in part
        assert len(part["audio"]) == 210 * 48 * 4 // 3
        assert transcript.startswith("One two")
        assert conversation.get_entry(item_id).text == "One"


async def test_only_spoken_items_of_the_assistant_can_be_truncated():
    async with RealtimeServer() as server, open_raw_client(server) as client:
        await client.send("conversation.item.create", item={**USER, "id": "mine"})
        await client.send("conversation.item.truncate", item_id="mine", content_index=0, audio_end_ms=0, event_id="e7")
        error = (await client.read_until("error"))["error"]
        assert error["message"] == "Only model output audio messages can be truncated"
        assert error["event_id"] == "e7"


async def test_several_function_calls_in_one_response_and_their_outputs():
    turns = [
        [CallTool("weather", {"city": "Rome"}, "c1"), CallTool("weather", {"city": "Oslo"}, "c2")],
        "Both are fine.",
    ]
    async with RealtimeServer(turns) as server, open_raw_client(server) as client:
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
        await client.send("session.update", session={"type": "realtime", "tools": [tool]})
        await client.send("conversation.item.create", item=USER)
        await client.read_until("conversation.item.done")
        await client.send("response.create")
        assert await client.read_types_until("response.done") == [
            "response.created",
            *[
                "response.output_item.added",
                "conversation.item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "conversation.item.done",
            ]
            * 2,
            "response.done",
        ]
        calls = [frame["item"] for frame in client.frames if frame["type"] == "response.output_item.done"]
        assert [(call["call_id"], call["status"]) for call in calls] == [("c1", "completed"), ("c2", "completed")]
        for call in calls:
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
            await client.send("conversation.item.create", item=output)
        await client.send("response.create")
        await client.read_until("response.done")
        types = [item["type"] for item in server.connections[0].conversation.items]
        assert types == ["message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
        request = server.responder.requests[1]
        assert [item["type"] for item in request.items] == types[:-1]
        assert request.tools[0]["name"] == "weather"


async def test_a_second_response_and_a_cancel_without_a_response_are_rejected():
    async with RealtimeServer([[Pause(30), "Late."]]) as server, open_raw_client(server) as client:
        await client.send("response.create")
        active = (await client.read_until("response.created"))["response"]
        await client.send("response.create", event_id="second")
        error = (await client.read_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
        assert active["id"] in error["message"]
        await client.send("response.cancel", response_id=active["id"])
        done = (await client.read_until("response.done"))["response"]
        assert done["status_details"]["reason"] == "client_cancelled"
        await client.send("response.cancel", event_id="third")
        error = (await client.read_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "third")


async def test_an_expired_session_reports_it_and_closes():
    async with RealtimeServer(session_seconds=0.05) as server, open_raw_client(server) as client:
        assert (await client.read_until("error"))["error"]["code"] == "session_expired"
        with pytest.raises(ConnectionClosed) as closed:
            await client.read()
        assert closed.value.rcvd.code == 1001


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"instructions": "no type"}, "session.type"),
        ({"type": "realtime", "voice": "beta"}, "session.voice"),
        ({"type": "realtime", "output_modalities": ["text", "audio"]}, "session.output_modalities"),
        ({"type": "realtime", "audio": {"output": {"speed": 7}}}, "session.audio.output.speed"),
        ({"type": "realtime", "audio": {"input": {"format": "pcm16"}}}, "session.audio.input.format"),
        (
            {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "psychic"}}}},
            "session.audio.input.turn_detection.type",
        ),
        ({"type": "realtime", "tool_choice": "maybe"}, "session.tool_choice"),
        ({"type": "realtime", "tools": [{"type": "function", "name": "no good"}]}, "session.tools[0].name"),
        ({"type": "realtime", "max_output_tokens": 0}, "session.max_output_tokens"),
        ({"type": "realtime", "prompt": {"version": "1"}}, "session.prompt"),
        ({"type": "realtime", "reasoning": {"efford": "low"}}, "session.reasoning.efford"),
        ({"type": "realtime", "tracing": {"workflow_name": 7}}, "session.tracing.workflow_name"),
        ({"type": "realtime", "truncation": "never"}, "session.truncation"),
        (
            {"type": "realtime", "truncation": {"type": "retention_ratio", "retention_ratio": 2}},
            "session.truncation.retention_ratio",
        ),
    ],
)
async def test_invalid_settings_are_rejected_by_name_and_change_nothing(settings, param):
    async with RealtimeServer() as server, open_raw_client(server) as client:
        before = (await client.read_until("session.created"))["session"]
        await client.send("session.update", session=settings, event_id="u1")
        error = (await client.read_until("error"))["error"]
        assert (error["event_id"], error["param"]) == ("u1", param)
        assert server.connections[0].session == before


async def test_the_voice_cannot_change_after_assistant_audio():
    async with RealtimeServer(["Hello."]) as server, open_raw_client(server) as client:
        await client.send("response.create")
        await client.read_until("response.done")
        await client.send("session.update", session={"type": "realtime", "audio": {"output": {"voice": "ash"}}})
        assert (await client.read_until("error"))["error"]["code"] == "cannot_update_voice"


async def test_a_failing_responder_fails_its_response_only():
    async with (
        RealtimeServer([["So far, so", RuntimeError("no more ideas")], "Better."]) as server,
        open_raw_client(server) as client,
    ):
        await client.send("response.create")
        failed = (await client.read_until("response.done"))["response"]
        assert failed["status"] == "failed"
        assert "no more ideas" in failed["status_details"]["error"]["message"]
        await client.send("response.create")
        assert (await client.read_until("response.done"))["response"]["status"] == "completed"
        assert server.connections[0].is_open


async def test_an_out_of_band_response_may_run_beside_another_and_adds_no_items():
    async with RealtimeServer([[Pause(0.05), "Inside."], "Outside."]) as server, open_raw_client(server) as client:
        await client.send("response.create")
        await client.send("response.create", response={"conversation": "none", "input": [USER]})
        first = (await client.read_until("response.done"))["response"]
        second = (await client.read_until("response.done"))["response"]
        assert (first["conversation_id"], first["output"][0]["content"][0]["transcript"]) == (None, "Outside.")
        assert second["output"][0]["content"][0]["transcript"] == "Inside."
        assert [entry.text for entry in server.connections[0].conversation] == ["Inside."]


async def test_malformed_frames_are_answered_with_errors_and_keep_the_connection():
    async with RealtimeServer(["Fine."]) as server, open_raw_client(server) as client:
        for garbage in ("{not json", "[]", "{}", '{"type": 7}', '{"type": "session.dance"}', "null", '"text"'):
            await client.socket.send(garbage)
            assert (await client.read_until("error"))["error"]["type"] == "invalid_request_error"
        await client.socket.send(b"\xff\xfe")
        await client.read_until("error")
        await client.send("response.create")
        await client.read_until("response.done")
        assert server.connections[0].received[0] == "{not json"


async def test_inserted_discarded_and_rejected_frames():
    async with RealtimeServer(["A.", "B.", "C."]) as server, open_raw_client(server) as client:
        await client.read_until("conversation.created")
        server.inject("response.created", Insert("{broken"))
        server.inject("response.created", Insert({"type": "response.sparkle", "event_id": "x"}))
        server.inject("response.created", Discard())
        await client.send("response.create")
        assert await client.socket.recv() == "{broken"
        types = await client.read_types_until("rate_limits.updated")
        assert types[:2] == ["response.sparkle", "response.output_item.added"]
        assert "response.created" not in types
        server.inject("session.update", Reject(code="server_says_no"))
        await client.send("session.update", session={"type": "realtime"}, event_id="u")
        error = (await client.read_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("server_says_no", "u")
