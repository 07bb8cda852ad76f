"""The client of the protocol without I/O: frames to model events and model inputs to frames."""

import base64
import json
from typing import Any

import pytest

from standfast.base.usage import InputTokensDetails, Usage
from standfast.realtime import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    BadFrame,
    InputAudio,
    InputImage,
    InputText,
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioEvent,
    RealtimeModelAudioFormatEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelCachedTokensDetails,
    RealtimeModelErrorEvent,
    RealtimeModelInputAudioTimeoutTriggeredEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelInputAudioTranscriptionFailedEvent,
    RealtimeModelInputTokensDetails,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOtherEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelOutputTokensDetails,
    RealtimeModelRawServerEvent,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeModelSpeechStartedEvent,
    RealtimeModelSpeechStoppedEvent,
    RealtimeModelTextDoneEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
    RealtimeModelUsageEvent,
    RealtimePlaybackState,
    RealtimePlaybackTracker,
    RealtimeToolCallItem,
    SystemMessageItem,
    UserMessageItem,
)
from standfast.realtime.openai._protocol.client import RealtimeClient
from standfast.realtime.openai.codec import prepend_raw_event


class ClientHarness:
    """A client with a simulated clock; frames are dicts."""

    def __init__(self, **options: Any) -> None:
        self.now = 50.0
        self.client = RealtimeClient(options, clock=lambda: self.now)

    def receive(self, event_type: str, **fields: Any) -> list[Any]:
        return list(self.client.receive(json.dumps({"type": event_type, "event_id": "e", **fields}).encode()))

    def send(self, event: Any) -> list[Any]:
        return list(self.client.send(event))

    def take_sent(self) -> list[dict[str, Any]]:
        frames = [json.loads(frame) for frame in self.client.outgoing]
        self.client.outgoing.clear()
        return frames

    def receive_audio(self, ms: int, *, item: str = "i1", response: str = "r1", index: int = 0) -> list[Any]:
        delta = base64.b64encode(bytes(48 * ms)).decode()
        return self.receive(
            "response.output_audio.delta", response_id=response, item_id=item, content_index=index, delta=delta
        )

    def start_response(self, response: str = "r1") -> list[Any]:
        return self.receive("response.created", response={"id": response, "metadata": None})

    def end_response(self, response: str = "r1", **parts: Any) -> list[Any]:
        return self.receive(
            "response.done", response={"id": response, "status": "completed", "metadata": None, **parts}
        )


@pytest.fixture
def harness() -> ClientHarness:
    return ClientHarness()


def message(role: str, *content: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"id": "i1", "type": "message", "role": role, "content": list(content), **parts}


DELTA = {"response_id": "r1", "item_id": "i1", "output_index": 0, "content_index": 1}
SPOKEN = {"type": "output_audio", "transcript": "Hi", "audio": "AAAA"}

TABLE = [
    (
        {"type": "response.output_audio.delta", **DELTA, "delta": "AAEC"},
        [RealtimeModelAudioEvent(b"\0\1\2", "r1", "i1", 1)],
    ),
    (
        {"type": "response.output_audio_transcript.delta", **DELTA, "delta": "Hi"},
        [RealtimeModelTranscriptDeltaEvent("i1", "Hi", "r1", content_index=1)],
    ),
    (
        {"type": "response.output_text.delta", **DELTA, "delta": "Hi"},
        [RealtimeModelOutputTextDeltaEvent("i1", "Hi", "r1", content_index=1)],
    ),
    (
        {"type": "response.output_audio_transcript.done", **DELTA, "transcript": "Hi you"},
        [RealtimeModelTextDoneEvent("i1", "Hi you", "r1", 1)],
    ),
    ({"type": "response.output_text.done", **DELTA, "text": "Hi"}, [RealtimeModelTextDoneEvent("i1", "Hi", "r1", 1)]),
    ({"type": "response.output_audio.done", **DELTA}, [RealtimeModelAudioDoneEvent("i1", 1, response_id="r1")]),
    (
        {"type": "conversation.item.input_audio_transcription.completed", "item_id": "u", "transcript": "Hello"},
        [RealtimeModelInputAudioTranscriptionCompletedEvent("u", "Hello")],
    ),
    (
        {"type": "conversation.item.input_audio_transcription.failed", "item_id": "u", "error": {"code": "x"}},
        [RealtimeModelInputAudioTranscriptionFailedEvent("u", 0, {"code": "x"})],
    ),
    (
        {"type": "input_audio_buffer.timeout_triggered", "item_id": "u", "audio_start_ms": 1, "audio_end_ms": 2},
        [RealtimeModelInputAudioTimeoutTriggeredEvent("u", 1, 2)],
    ),
    (
        {"type": "input_audio_buffer.speech_started", "item_id": "u", "audio_start_ms": 5},
        [RealtimeModelSpeechStartedEvent("u", 5)],
    ),
    (
        {"type": "input_audio_buffer.speech_stopped", "item_id": "u", "audio_end_ms": 9},
        [RealtimeModelSpeechStoppedEvent("u", 9)],
    ),
    ({"type": "conversation.item.deleted", "item_id": "i1"}, [RealtimeModelItemDeletedEvent("i1")]),
    (
        {"type": "conversation.item.truncated", "item_id": "i1", "content_index": 0, "audio_end_ms": 70},
        [RealtimeModelItemTruncatedEvent("i1", 0, 70)],
    ),
    (
        {"type": "error", "error": {"type": "server_error", "message": "?"}},
        [RealtimeModelErrorEvent({"type": "server_error", "message": "?"})],
    ),
    ({"type": "rate_limits.updated"}, [RealtimeModelOtherEvent({"type": "rate_limits.updated"})]),
    (
        {"type": "conversation.item.added", "item": {"id": "x", "type": "mcp_list_tools"}},
        [RealtimeModelOtherEvent({"type": "conversation.item.added", "item": {"id": "x", "type": "mcp_list_tools"}})],
    ),
    (
        {"type": "response.created", "response": {"id": "r1", "metadata": {"a": "b"}}},
        [RealtimeModelTurnStartedEvent(response_id="r1", metadata={"a": "b"})],
    ),
    (
        {"type": "conversation.item.added", "item": message("assistant", SPOKEN), "previous_item_id": "i0"},
        [
            RealtimeModelItemUpdatedEvent(
                AssistantMessageItem(
                    item_id="i1", previous_item_id="i0", content=[AssistantAudio(transcript="Hi")], status=None
                )
            )
        ],
    ),
    (
        {
            "type": "response.output_item.done",
            "response_id": "r1",
            "item": message("assistant", {"type": "output_text", "text": "Hi"}, status="completed"),
        },
        [
            RealtimeModelItemUpdatedEvent(
                AssistantMessageItem(item_id="i1", content=[AssistantText(text="Hi")], status="completed"),
                response_id="r1",
            )
        ],
    ),
    (
        {
            "type": "conversation.item.retrieved",
            "item": message(
                "user",
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": "data:", "detail": "low"},
                {"type": "input_audio", "transcript": None, "audio": "AAAA"},
                {"type": "input_smell"},
            ),
        },
        [
            RealtimeModelItemUpdatedEvent(
                UserMessageItem(
                    item_id="i1",
                    content=[InputText(text="Look"), InputImage(image_url="data:", detail="low"), InputAudio()],
                )
            )
        ],
    ),
    (
        {"type": "conversation.item.created", "item": message("system", {"type": "input_text", "text": "Be kind"})},
        [RealtimeModelItemUpdatedEvent(SystemMessageItem(item_id="i1", content=[InputText(text="Be kind")]))],
    ),
]


@pytest.mark.parametrize(("frame", "events"), TABLE, ids=lambda value: value["type"] if isinstance(value, dict) else "")
def test_frames_become_events(harness: ClientHarness, frame: dict[str, Any], events: list[Any]) -> None:
    assert list(harness.client.receive(json.dumps(frame))) == events


BROKEN = [
    b"",
    b"nonsense",
    b"\xff\xfe",
    b"[]",
    b"7",
    b"{}",
    b'{"type": 7}',
    b'{"type": "response.output_audio.delta"}',
    b'{"type": "response.output_audio.delta", "response_id": "r", "item_id": "i", "delta": "!!"}',
    b'{"type": "response.created"}',
    b'{"type": "response.done", "response": null}',
    b'{"type": "conversation.item.added", "item": []}',
    b'{"type": "conversation.item.added", "item": {"id": 1, "type": "message", "role": "user", "content": [7]}}',
    b'{"type": "error"}',
    b'{"type": "session.updated"}',
]


@pytest.mark.parametrize("frame", BROKEN)
def test_a_malformed_frame_is_reported_and_changes_nothing(harness: ClientHarness, frame: bytes) -> None:
    assert [type(event.error) for event in harness.client.receive(frame)] == [BadFrame]
    assert harness.start_response() == [RealtimeModelTurnStartedEvent(response_id="r1")]


def test_the_usage_of_a_response_is_reported_once(harness: ClientHarness) -> None:
    harness.start_response()
    usage = {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}
    assert [event.type for event in harness.end_response(usage=usage)] == ["usage", "turn_ended"]
    assert harness.end_response(usage=usage) == []
    harness.start_response("r2")
    assert [event.type for event in harness.end_response("r2", usage=usage)] == ["usage", "turn_ended"]


def test_a_response_ends_with_its_usage_status_and_reason(harness: ClientHarness) -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_token_details": {
            "text_tokens": 4,
            "audio_tokens": 6,
            "cached_tokens": 3,
            "cached_tokens_details": {"text_tokens": 3},
        },
        "output_token_details": {"text_tokens": 1, "audio_tokens": 4},
    }
    harness.start_response()
    details = {"type": "cancelled", "reason": "turn_detected"}
    assert harness.end_response(status="cancelled", status_details=details, usage=usage) == [
        RealtimeModelUsageEvent(
            Usage(1, 10, InputTokensDetails(3), 5, total_tokens=15),
            RealtimeModelInputTokensDetails(4, 6, None, 3, RealtimeModelCachedTokensDetails(3)),
            RealtimeModelOutputTokensDetails(1, 4),
            response_id="r1",
        ),
        RealtimeModelTurnEndedEvent(response_id="r1", status="cancelled", reason="turn_detected"),
    ]


def test_a_failed_response_reports_its_error(harness: ClientHarness) -> None:
    harness.start_response()
    (ended,) = harness.end_response(status="failed", status_details={"type": "failed", "error": {"code": "overloaded"}})
    assert (ended.status, ended.error) == ("failed", {"code": "overloaded"})


CALL = {"id": "c1", "type": "function_call", "call_id": "call", "name": "add", "arguments": "{}"}


def test_a_tool_call_is_emitted_once_with_its_position_and_response(harness: ClientHarness) -> None:
    harness.receive("conversation.item.added", item={**CALL, "status": "in_progress"}, previous_item_id="i0")
    done = {"response_id": "r1", "item": {**CALL, "status": "completed"}}
    item = RealtimeToolCallItem(
        item_id="c1", previous_item_id="i0", call_id="call", status="in_progress", arguments="{}", name="add"
    )
    assert harness.receive("response.output_item.done", **done) == [
        RealtimeModelItemUpdatedEvent(item, response_id="r1"),
        RealtimeModelToolCallEvent("add", "call", "{}", "c1", "i0", response_id="r1"),
    ]
    assert harness.receive("response.output_item.done", **done) == []
    assert [event.type for event in harness.end_response(output=[{**CALL, "status": "completed"}])] == ["turn_ended"]


def test_a_tool_call_is_found_in_the_response_if_its_item_was_lost(harness: ClientHarness) -> None:
    events = harness.end_response(output=[{**CALL, "status": "completed"}])
    assert [event.type for event in events] == ["item_updated", "function_call", "turn_ended"]


def test_an_incomplete_tool_call_is_not_emitted(harness: ClientHarness) -> None:
    assert harness.receive("response.output_item.done", response_id="r1", item={**CALL, "status": "incomplete"}) == []
    assert [event.type for event in harness.end_response(status="cancelled", output=[CALL])] == ["turn_ended"]


def test_the_server_acknowledges_an_output_by_its_call(harness: ClientHarness) -> None:
    harness.receive("response.output_item.done", response_id="r1", item={**CALL, "status": "completed"})
    output = {"id": "o1", "type": "function_call_output", "call_id": "call", "output": "3"}
    (event,) = harness.receive("conversation.item.added", item=output, previous_item_id="c1")
    assert (event.item.item_id, event.item.status, event.item.output) == ("c1", "completed", "3")


def test_a_tool_call_that_the_client_added_is_not_emitted(harness: ClientHarness) -> None:
    events = harness.receive("conversation.item.added", item={**CALL, "status": "completed"})
    assert [event.type for event in events] == ["item_updated"]


# --- client events


def test_sending_a_message_adds_it_and_requests_a_response(harness: ClientHarness) -> None:
    harness.send(RealtimeModelSendUserInput("Hi"))
    item, create = harness.take_sent()
    content = [{"type": "input_text", "text": "Hi"}]
    assert item == {
        "type": "conversation.item.create",
        "item": {"type": "message", "role": "user", "content": content},
    }
    assert create["type"] == "response.create"


def test_a_tool_output_is_sent_at_once_and_its_response_requested_later(harness: ClientHarness) -> None:
    harness.start_response()
    call = RealtimeModelToolCallEvent("add", "call", "{}")
    harness.send(RealtimeModelSendToolOutput(call, "3", start_response=True))
    harness.send(RealtimeModelSendToolOutput(call, "4", start_response=False))
    outputs = [message["item"]["output"] for message in harness.take_sent()]
    assert outputs == ["3", "4"]
    harness.end_response()
    assert [message["type"] for message in harness.take_sent()] == ["response.create"]


def test_long_audio_is_split_into_messages_that_a_server_accepts(harness: ClientHarness) -> None:
    audio = bytes(range(256)) * 50_000 + b"end"
    harness.send(RealtimeModelSendAudio(audio, commit=True))
    *chunks, commit = harness.take_sent()
    assert max(len(chunk["audio"]) for chunk in chunks) < 15 * 2**20
    assert b"".join(base64.b64decode(chunk["audio"]) for chunk in chunks) == audio
    assert commit["type"] == "input_audio_buffer.commit"


def test_audio_is_appended_and_committed(harness: ClientHarness) -> None:
    harness.send(RealtimeModelSendAudio(b"\0\1\2", commit=True))
    harness.send(RealtimeModelSendAudio(b"", commit=False))
    assert harness.take_sent() == [
        {"type": "input_audio_buffer.append", "audio": "AAEC"},
        {"type": "input_audio_buffer.commit"},
    ]


def test_raw_messages_are_sent_at_once_except_response_requests(harness: ClientHarness) -> None:
    harness.start_response()
    harness.send(RealtimeModelSendRawMessage({"type": "response.create", "other_data": {"response": {"voice": "x"}}}))
    harness.send(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear", "other_data": {"event_id": "7"}}))
    assert harness.take_sent() == [{"type": "input_audio_buffer.clear", "event_id": "7"}]
    harness.end_response()
    assert harness.take_sent()[0]["response"]["voice"] == "x"


def test_updates_are_accepted_in_order_and_rejected_by_event_id(harness: ClientHarness) -> None:
    first, second, third = (harness.client.update_settings({"instructions": str(n)}) for n in range(3))
    frames = harness.take_sent()
    assert [frame["session"]["instructions"] for frame in frames] == ["0", "1", "2"]
    harness.receive("error", error={"message": "no", "event_id": frames[1]["event_id"]})
    assert (first.answered, second.answered, third.answered) == (False, True, False)
    assert second.error is not None
    assert second.error.error["message"] == "no"
    harness.receive("session.updated", session={})
    harness.receive("session.updated", session={})
    assert (first.error, third.error, first.answered, third.answered) == (None, None, True, True)


def test_a_missing_answer_does_not_shift_the_next_one(harness: ClientHarness) -> None:
    lost, second = harness.client.update_settings({}), harness.client.update_settings({})
    lost.abandoned = True
    harness.receive("session.updated", session={})
    assert second.answered


def receive_updated(harness: ClientHarness, instructions: str, **fields: Any) -> None:
    harness.receive("session.updated", session={"type": "realtime", "instructions": instructions, **fields})


def test_a_late_answer_does_not_acknowledge_the_next_update(harness: ClientHarness) -> None:
    harness.receive("session.created", session={"instructions": ""})
    late, second, third = (harness.client.update_settings({"instructions": text}) for text in ("one", "two", "three"))
    late.abandoned = True
    receive_updated(harness, "one")
    assert not second.answered
    receive_updated(harness, "two")
    assert (second.answered, third.answered) == (True, False)
    receive_updated(harness, "three")
    assert third.answered


def test_a_late_answer_to_an_update_of_other_settings_is_recognised(harness: ClientHarness) -> None:
    harness.receive("session.created", session={"instructions": "", "tool_choice": "auto"})
    late, second = (
        harness.client.update_settings({"instructions": "one"}),
        harness.client.update_settings({"tool_choice": "none"}),
    )
    late.abandoned = True
    receive_updated(harness, "one", tool_choice="auto")
    assert not second.answered
    receive_updated(harness, "one", tool_choice="none")
    assert second.answered


def test_after_a_missing_answer_updates_are_matched_by_their_effect(harness: ClientHarness) -> None:
    lost, second = (harness.client.update_settings({"instructions": text}) for text in ("one", "two"))
    lost.abandoned = True
    receive_updated(harness, "two")
    assert second.answered
    for text in ("three", "four"):
        update = harness.client.update_settings({"instructions": text})
        assert not update.answered
        receive_updated(harness, text)
        assert update.answered


def test_a_partially_applied_update_counts_as_answered(harness: ClientHarness) -> None:
    harness.receive("session.created", session={"tool_choice": "auto"})
    lost, second = (
        harness.client.update_settings({"instructions": text, "tool_choice": text}) for text in ("auto", "none")
    )
    lost.abandoned = True
    receive_updated(harness, "none", tool_choice="auto")
    assert second.answered


def test_the_late_answer_to_an_update_acknowledges_no_other_update(harness: ClientHarness) -> None:
    late, same, other = (harness.client.update_settings({"instructions": text}) for text in ("one", "one", "two"))
    late.abandoned = True
    receive_updated(harness, "one")
    assert same.answered, "its settings apply"
    receive_updated(harness, "one")
    assert not other.answered
    receive_updated(harness, "two")
    assert other.answered


def test_a_late_rejection_of_an_acknowledged_update_is_reported(harness: ClientHarness) -> None:
    late, same = (harness.client.update_settings({"instructions": "one"}) for _ in range(2))
    late.abandoned = True
    receive_updated(harness, "one")
    error = {"message": "no", "event_id": same.event_id}
    assert harness.receive("error", error=error) == [RealtimeModelErrorEvent(error)]


def test_settings_reported_in_another_form_count_as_an_answer(harness: ClientHarness) -> None:
    lost, second = (harness.client.update_settings({"instructions": text}) for text in ("one", "two"))
    lost.abandoned = True
    receive_updated(harness, "Two.")
    assert second.answered


def test_tracing_is_sent_once(harness: ClientHarness) -> None:
    for _ in range(2):
        harness.send(RealtimeModelSendSessionUpdate({"tracing": {"workflow_name": "w"}}))
    assert [frame["session"].get("tracing") for frame in harness.take_sent()] == [{"workflow_name": "w"}, None]


# --- playback and interruption


def truncations(frames: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(f["item_id"], f["audio_end_ms"]) for f in frames if f["type"] == "conversation.item.truncate"]


def test_an_interruption_truncates_cancels_and_mutes(harness: ClientHarness) -> None:
    harness.start_response()
    harness.receive_audio(1000)
    harness.now += 0.3
    events = harness.send(RealtimeModelSendInterrupt())
    assert events == [RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=300)]
    frames = harness.take_sent()
    assert truncations(frames) == [("i1", 300)]
    assert [frame.get("response_id") for frame in frames if frame["type"] == "response.cancel"] == ["r1"]
    assert harness.receive_audio(1000) == []
    assert harness.receive("response.output_audio.done", **DELTA) == []
    harness.end_response(status="cancelled")
    assert harness.receive_audio(100) == [], "late audio of a cancelled response"
    assert harness.start_response("r2")
    assert harness.receive_audio(100, response="r2", item="i2") != []


def test_an_interruption_cancels_even_if_the_server_interrupts_itself(harness: ClientHarness) -> None:
    detection = {"turn_detection": {"type": "semantic_vad", "interrupt_response": True}}
    harness.receive("session.updated", session={"audio": {"input": detection}})
    harness.start_response()
    harness.send(RealtimeModelSendInterrupt())
    assert [frame["type"] for frame in harness.take_sent()] == ["response.cancel"]


@pytest.mark.parametrize("server_interrupts", [True, False])
def test_speech_of_the_user_interrupts_the_model(harness: ClientHarness, server_interrupts: bool) -> None:
    detection = {"turn_detection": {"type": "server_vad", "interrupt_response": server_interrupts}}
    harness.receive("session.updated", session={"audio": {"input": detection}})
    harness.start_response()
    harness.receive_audio(500)
    harness.now += 0.1
    events = harness.receive("input_audio_buffer.speech_started", item_id="u", audio_start_ms=0)
    assert [event.type for event in events] == ["speech_started", "audio_interrupted"]
    frames = harness.take_sent()
    assert truncations(frames) == [("i1", 100)]
    assert ("response.cancel" in [frame["type"] for frame in frames]) is not server_interrupts
    assert harness.receive_audio(500) == []


def test_each_item_of_a_response_is_truncated_at_its_own_position(harness: ClientHarness) -> None:
    harness.start_response()
    for item in ("i1", "i2", "i3"):
        harness.receive_audio(400, item=item)
    harness.now += 0.5
    events = harness.send(RealtimeModelSendInterrupt())
    assert [(event.item_id, event.audio_end_ms) for event in events] == [("i2", 100), ("i3", 0)]
    assert truncations(harness.take_sent()) == [("i2", 100), ("i3", 0)]


def test_audio_that_was_played_to_the_end_is_not_truncated(harness: ClientHarness) -> None:
    harness.start_response()
    harness.receive_audio(200)
    harness.end_response()
    harness.now += 1
    assert harness.send(RealtimeModelSendInterrupt()) == []
    assert harness.take_sent() == []


def test_unfinished_audio_is_truncated_at_what_arrived(harness: ClientHarness) -> None:
    harness.start_response()
    harness.receive_audio(200)
    harness.now += 1
    harness.receive_audio(100)
    harness.now += 5
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i1", 300)]


def test_a_gap_in_the_stream_does_not_count_as_playback(harness: ClientHarness) -> None:
    harness.start_response()
    harness.receive_audio(100)
    harness.now += 1
    harness.receive_audio(500)
    harness.now += 0.2
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i1", 300)]


def test_a_playback_tracker_overrides_the_estimate() -> None:
    tracker = RealtimePlaybackTracker()
    harness = ClientHarness(playback_tracker=tracker)
    harness.start_response()
    harness.receive_audio(400, item="i1")
    harness.receive_audio(400, item="i2")
    harness.now += 60
    tracker.on_play_bytes("i1", 0, bytes(48 * 400))
    tracker.on_play_ms("i2", 0, 30.5)
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i2", 30)]
    assert tracker.get_state()["current_item_id"] is None


def test_a_playback_tracker_without_progress_truncates_at_zero() -> None:
    harness = ClientHarness(playback_tracker=RealtimePlaybackTracker())
    harness.start_response()
    harness.receive_audio(400)
    harness.now += 60
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i1", 0)]


@pytest.mark.parametrize("elapsed_ms", [-120.0, float("nan")])
def test_a_negative_tracker_position_counts_as_zero(elapsed_ms: float) -> None:
    class InvalidTracker(RealtimePlaybackTracker):
        def get_state(self) -> RealtimePlaybackState:
            return {"current_item_id": "i1", "current_item_content_index": 0, "elapsed_ms": elapsed_ms}

    harness = ClientHarness(playback_tracker=InvalidTracker())
    harness.start_response()
    harness.receive_audio(400)
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i1", 0)]


def test_a_tracker_position_does_not_advance_with_the_next_part() -> None:
    harness = ClientHarness(playback_tracker=RealtimePlaybackTracker())
    harness.start_response()
    harness.receive_audio(400, item="i1")
    harness.now += 0.1
    harness.receive_audio(400, item="i2")
    harness.now += 60
    harness.receive_audio(400, item="i3")
    harness.send(RealtimeModelSendInterrupt())
    assert truncations(harness.take_sent()) == [("i1", 0), ("i2", 0), ("i3", 0)]


@pytest.mark.parametrize("event_type", ["session.created", "session.updated"])
def test_the_audio_format_of_the_server_is_reported(event_type: str) -> None:
    for format in ({"type": "audio/pcma"}, {"type": "audio/pcm", "rate": 24_000}):
        event, *_ = ClientHarness().receive(event_type, session={"audio": {"output": {"format": format}}})
        assert event == RealtimeModelAudioFormatEvent(format)
    for unknown in ({}, {"output": {}}, {"output": {"format": {"type": "audio/new"}}}):
        assert [event.type for event in ClientHarness().receive(event_type, session={"audio": unknown})] == ["other"]


def test_playback_uses_the_format_of_the_session() -> None:
    tracker = RealtimePlaybackTracker()
    harness = ClientHarness(playback_tracker=tracker)
    harness.receive("session.updated", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    tracker.on_play_bytes("i1", 0, bytes(80))
    assert tracker.get_state()["elapsed_ms"] == 10


def test_interrupting_one_response_does_not_affect_others(harness: ClientHarness) -> None:
    harness.start_response("r1")
    harness.receive_audio(300, item="i1", response="r1")
    harness.end_response("r1")
    harness.start_response("r2")
    harness.receive_audio(300, item="i2", response="r2")
    events = harness.send(RealtimeModelSendInterrupt(response_id="r2", force_response_cancel=True))
    assert [event.item_id for event in events] == ["i2"]
    harness.now += 0.1
    assert [event.item_id for event in harness.send(RealtimeModelSendInterrupt(playback_only=True))] == ["i1"]


def test_cancelling_only_the_response_keeps_playback(harness: ClientHarness) -> None:
    harness.start_response()
    harness.receive_audio(300)
    assert harness.send(RealtimeModelSendInterrupt(response_id="r1", cancel_response_only=True)) == []
    assert [frame["type"] for frame in harness.take_sent()] == ["response.cancel"]


def test_contradictory_interrupt_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="playback_only"):
        RealtimeModelSendInterrupt(playback_only=True, force_response_cancel=True)
    with pytest.raises(ValueError, match="response_id"):
        RealtimeModelSendInterrupt(cancel_response_only=True)


def test_cancelling_nothing_is_harmless(harness: ClientHarness) -> None:
    harness.start_response()
    harness.send(RealtimeModelSendInterrupt())
    (cancel,) = harness.take_sent()
    error = {"code": "response_cancel_not_active", "event_id": cancel["event_id"], "message": "none"}
    assert [(event.type, event.status) for event in harness.receive("error", error=error)] == [("turn_ended", "lost")]
    assert harness.end_response() == [], "its end was reported already"


def test_played_parts_are_dropped_from_memory(harness: ClientHarness) -> None:
    for number in range(1000):
        harness.start_response(f"r{number}")
        harness.receive_audio(10, item=f"i{number}", response=f"r{number}")
        harness.end_response(f"r{number}")
        harness.now += 1
    assert len(harness.client.playback._parts) <= 2


def test_a_lost_connection_ends_the_response_and_refuses_requests(harness: ClientHarness) -> None:
    harness.start_response()
    harness.send(RealtimeModelSendUserInput("Hi"))
    events = list(harness.client.handle_connection_lost(ConnectionError("gone")))
    assert [event.type for event in events] == ["error", "turn_ended"]
    assert events[1].status == "lost"
    assert events[0].error.requesters == ("user",)


# --- raw events


def test_a_raw_event_precedes_its_parsed_events_and_is_decoded_lazily(harness: ClientHarness) -> None:
    frame = json.dumps({"type": "response.created", "response": {"id": "r1"}})
    raw, event = prepend_raw_event(frame, harness.client.receive(frame))
    assert (raw.type, event.type) == ("raw_server_event", "turn_started")
    assert raw.data is raw.data
    assert raw.data == json.loads(frame)
    assert isinstance(raw, RealtimeModelRawServerEvent)


@pytest.mark.parametrize(
    ("frame", "kinds"),
    [
        ("nonsense", ["error"]),
        ('{"type": "response.created"}', ["raw_server_event", "error"]),
        ('{"type": "error", "error": {"message": "?"}}', ["raw_server_event", "error"]),
    ],
)
def test_a_frame_that_is_not_a_message_has_no_raw_event(harness: ClientHarness, frame: str, kinds: list[str]) -> None:
    events = prepend_raw_event(frame, harness.client.receive(frame))
    assert [event.type for event in events] == kinds
    assert all(event.data for event in events if event.type == "raw_server_event")
