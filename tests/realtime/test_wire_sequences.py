"""What a client sees on the wire, turn by turn, read by a client that knows nothing of standfast."""

import pytest
from websockets.exceptions import ConnectionClosed

from realtime.wire import USER, speech, wired
from standfast.realtime.local.responder import CallTool, Pause
from standfast.realtime.local.stt import ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.faults import Discard, Insert, Reject

ANSWER_IN_AUDIO = [
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


async def test_a_connection_begins_with_its_session_and_acknowledges_settings():
    async with RealtimeServer() as server, wired(server, model="some-model") as wire:
        created = await wire.until("session.created")
        assert created["session"]["model"] == "some-model"
        for instructions in ("Be kind.", "Be brief."):
            await wire.send("session.update", session={"type": "realtime", "instructions": instructions})
            updated = await wire.until("session.updated")
            assert updated["session"]["instructions"] == instructions
        assert updated["session"]["id"] == created["session"]["id"]
        assert server.connections[0].session["instructions"] == "Be brief."


async def test_a_written_turn_is_answered_in_audio_with_its_transcript():
    async with RealtimeServer(["Good morning."]) as server, wired(server) as wire:
        await wire.until("conversation.created")
        await wire.send("conversation.item.create", item=USER)
        assert await wire.types_until("conversation.item.done") == ["conversation.item.added", "conversation.item.done"]
        await wire.send("response.create")
        seen = await wire.types_until("rate_limits.updated")
        assert seen[:4] == ANSWER_IN_AUDIO
        assert set(seen[4:-7]) == {"response.output_audio_transcript.delta", "response.output_audio.delta"}
        assert seen[-7:] == END_OF_AUDIO
        done = next(frame for frame in wire.frames if frame["type"] == "response.done")["response"]
        assert done["status"] == "completed"
        assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Good morning."}]
        assert done["usage"]["output_token_details"]["audio_tokens"] > 0
        deltas = [frame["delta"] for frame in wire.frames if frame["type"] == "response.output_audio_transcript.delta"]
        assert deltas == ["Good", " morning."]


async def test_a_written_turn_is_answered_in_text_when_that_is_asked_for():
    async with RealtimeServer(["Good morning."]) as server, wired(server) as wire:
        await wire.send("conversation.item.create", item=USER)
        await wire.send("response.create", response={"output_modalities": ["text"], "metadata": {"owner": "me"}})
        done = (await wire.until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": "Good morning."}]
        assert done["metadata"] == {"owner": "me"}


async def test_a_spoken_turn_is_heard_committed_transcribed_and_answered():
    heard = ScriptedTranscriber(["What time is it?"])
    async with RealtimeServer([[Pause(0.02), "Noon."]], transcriber=heard) as server, wired(server) as wire:
        transcription = {"model": "any"}
        await wire.send(
            "session.update", session={"type": "realtime", "audio": {"input": {"transcription": transcription}}}
        )
        await wire.until("session.updated")
        await wire.speak(await speech())
        assert await wire.types_until("response.created") == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        told = await wire.until("conversation.item.input_audio_transcription.completed")
        assert told["transcript"] == "What time is it?"
        await wire.until("response.done")
        started, stopped, committed = (frame for frame in wire.frames if frame["type"].startswith("input_audio_buffer"))
        assert started["item_id"] == stopped["item_id"] == committed["item_id"] == told["item_id"]
        assert started["audio_start_ms"] < 300 < stopped["audio_end_ms"]
        assert [entry.text for entry in server.connections[0].conversation] == ["What time is it?", "Noon."]
        assert server.responder.requests[0].items[0]["content"] == [{"type": "input_text", "text": "What time is it?"}]


async def test_speech_interrupts_an_answer_and_what_was_not_heard_is_forgotten():
    async with RealtimeServer(["One two three four five six seven."], pace=1.0) as server, wired(server) as wire:
        await wire.send("conversation.item.create", item=USER)
        await wire.send("response.create")
        item_id = (await wire.until("response.output_audio.delta"))["item_id"]
        for _ in range(4):
            await wire.until("response.output_audio.delta")
        await wire.speak(await speech(pause_ms=0))
        await wire.until("input_audio_buffer.speech_started")
        done = (await wire.until("response.done"))["response"]
        assert done["status"] == "cancelled"
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert done["output"][0]["status"] == "incomplete"
        conversation = server.connections[0].conversation
        length, said = conversation.get_entry(item_id).audio_ms, conversation.get_entry(item_id).text
        where = {"item_id": item_id, "content_index": 0}
        await wire.send("conversation.item.truncate", **where, audio_end_ms=length + 1)
        assert "already shorter" in (await wire.until("error"))["error"]["message"]
        await wire.send("conversation.item.truncate", **where, audio_end_ms=210)
        assert (await wire.until("conversation.item.truncated"))["audio_end_ms"] == 210
        await wire.send("conversation.item.retrieve", item_id=item_id)
        part = (await wire.until("conversation.item.retrieved"))["item"]["content"][0]
        assert "transcript" not in part
        assert len(part["audio"]) == 210 * 48 * 4 // 3
        assert said.startswith("One two")
        assert conversation.get_entry(item_id).text == "One"


async def test_only_spoken_answers_can_be_truncated():
    async with RealtimeServer() as server, wired(server) as wire:
        await wire.send("conversation.item.create", item={**USER, "id": "mine"})
        await wire.send("conversation.item.truncate", item_id="mine", content_index=0, audio_end_ms=0, event_id="e7")
        error = (await wire.until("error"))["error"]
        assert error["message"] == "Only model output audio messages can be truncated"
        assert error["event_id"] == "e7"


async def test_several_function_calls_in_one_response_and_their_outputs():
    turns = [
        [CallTool("weather", {"city": "Rome"}, "c1"), CallTool("weather", {"city": "Oslo"}, "c2")],
        "Both are fine.",
    ]
    async with RealtimeServer(turns) as server, wired(server) as wire:
        tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
        await wire.send("session.update", session={"type": "realtime", "tools": [tool]})
        await wire.send("conversation.item.create", item=USER)
        await wire.until("conversation.item.done")
        await wire.send("response.create")
        assert await wire.types_until("response.done") == [
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
        calls = [frame["item"] for frame in wire.frames if frame["type"] == "response.output_item.done"]
        assert [(call["call_id"], call["status"]) for call in calls] == [("c1", "completed"), ("c2", "completed")]
        for call in calls:
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
            await wire.send("conversation.item.create", item=output)
        await wire.send("response.create")
        await wire.until("response.done")
        kinds = [item["type"] for item in server.connections[0].conversation.items]
        assert kinds == ["message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
        asked = server.responder.requests[1]
        assert [item["type"] for item in asked.items] == kinds[:-1]
        assert asked.tools[0]["name"] == "weather"


async def test_a_second_response_is_refused_while_one_is_active_and_a_cancel_of_none_too():
    async with RealtimeServer([[Pause(30), "Late."]]) as server, wired(server) as wire:
        await wire.send("response.create")
        active = (await wire.until("response.created"))["response"]
        await wire.send("response.create", event_id="second")
        error = (await wire.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
        assert active["id"] in error["message"]
        await wire.send("response.cancel", response_id=active["id"])
        done = (await wire.until("response.done"))["response"]
        assert done["status_details"]["reason"] == "client_cancelled"
        await wire.send("response.cancel", event_id="third")
        error = (await wire.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "third")


async def test_a_session_that_is_too_old_says_so_and_hangs_up():
    async with RealtimeServer(session_seconds=0.05) as server, wired(server) as wire:
        assert (await wire.until("error"))["error"]["code"] == "session_expired"
        with pytest.raises(ConnectionClosed) as closed:
            await wire.read()
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
async def test_wrong_settings_are_refused_by_name_and_change_nothing(settings, param):
    async with RealtimeServer() as server, wired(server) as wire:
        before = (await wire.until("session.created"))["session"]
        await wire.send("session.update", session=settings, event_id="u1")
        error = (await wire.until("error"))["error"]
        assert (error["event_id"], error["param"]) == ("u1", param)
        assert server.connections[0].session == before


async def test_the_voice_cannot_change_once_it_was_heard():
    async with RealtimeServer(["Hello."]) as server, wired(server) as wire:
        await wire.send("response.create")
        await wire.until("response.done")
        await wire.send("session.update", session={"type": "realtime", "audio": {"output": {"voice": "ash"}}})
        assert (await wire.until("error"))["error"]["code"] == "cannot_update_voice"


async def test_a_failing_brain_fails_its_response_and_nothing_else():
    async with (
        RealtimeServer([["So far, so", RuntimeError("no more ideas")], "Better."]) as server,
        wired(server) as wire,
    ):
        await wire.send("response.create")
        failed = (await wire.until("response.done"))["response"]
        assert failed["status"] == "failed"
        assert "no more ideas" in failed["status_details"]["error"]["message"]
        await wire.send("response.create")
        assert (await wire.until("response.done"))["response"]["status"] == "completed"
        assert server.connections[0].is_open


async def test_a_response_outside_the_conversation_leaves_no_trace_and_may_run_beside_another():
    async with RealtimeServer([[Pause(0.05), "Inside."], "Outside."]) as server, wired(server) as wire:
        await wire.send("response.create")
        await wire.send("response.create", response={"conversation": "none", "input": [USER]})
        first, second = (await wire.until("response.done"))["response"], (await wire.until("response.done"))["response"]
        assert (first["conversation_id"], first["output"][0]["content"][0]["transcript"]) == (None, "Outside.")
        assert second["output"][0]["content"][0]["transcript"] == "Inside."
        assert [entry.text for entry in server.connections[0].conversation] == ["Inside."]


async def test_frames_that_nobody_understands_are_answered_and_the_connection_lives_on():
    async with RealtimeServer(["Fine."]) as server, wired(server) as wire:
        for garbage in ("{not json", "[]", "{}", '{"type": 7}', '{"type": "session.dance"}', "null", '"text"'):
            await wire.socket.send(garbage)
            assert (await wire.until("error"))["error"]["type"] == "invalid_request_error"
        await wire.socket.send(b"\xff\xfe")
        await wire.until("error")
        await wire.send("response.create")
        await wire.until("response.done")
        assert server.connections[0].received[0] == "{not json"


async def test_scripted_deviations_malformed_unknown_missing_and_refused():
    async with RealtimeServer(["A.", "B.", "C."]) as server, wired(server) as wire:
        await wire.until("conversation.created")
        server.inject("response.created", Insert("{broken"))
        server.inject("response.created", Insert({"type": "response.sparkle", "event_id": "x"}))
        server.inject("response.created", Discard())
        await wire.send("response.create")
        assert await wire.socket.recv() == "{broken"
        seen = await wire.types_until("rate_limits.updated")
        assert seen[:2] == ["response.sparkle", "response.output_item.added"]
        assert "response.created" not in seen
        server.inject("session.update", Reject(code="server_says_no"))
        await wire.send("session.update", session={"type": "realtime"}, event_id="u")
        error = (await wire.until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("server_says_no", "u")
