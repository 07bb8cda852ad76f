"""Frames in, model events out, and back: the client's half of the protocol without any I/O."""

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
from standfast.realtime.openai._protocol.codec import prepend_raw_event


class Talk:
    """A client with a clock of its own; frames are dicts."""

    def __init__(self, **options: Any) -> None:
        self.now = 50.0
        self.client = RealtimeClient(options, clock=lambda: self.now)

    def hear(self, kind: str, **parts: Any) -> list[Any]:
        return list(self.client.receive(json.dumps({"type": kind, "event_id": "e", **parts}).encode()))

    def send(self, event: Any) -> list[Any]:
        return list(self.client.send(event))

    def said(self) -> list[dict[str, Any]]:
        frames = [json.loads(frame) for frame in self.client.outgoing]
        self.client.outgoing.clear()
        return frames

    def audio(self, ms: int, *, item: str = "i1", response: str = "r1", index: int = 0) -> list[Any]:
        delta = base64.b64encode(bytes(48 * ms)).decode()
        return self.hear(
            "response.output_audio.delta", response_id=response, item_id=item, content_index=index, delta=delta
        )

    def begin(self, response: str = "r1") -> list[Any]:
        return self.hear("response.created", response={"id": response, "metadata": None})

    def end(self, response: str = "r1", **parts: Any) -> list[Any]:
        return self.hear("response.done", response={"id": response, "status": "completed", "metadata": None, **parts})


@pytest.fixture
def talk() -> Talk:
    return Talk()


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
def test_frames_become_events(talk: Talk, frame: dict[str, Any], events: list[Any]) -> None:
    assert list(talk.client.receive(json.dumps(frame))) == events


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
def test_what_cannot_be_understood_is_reported_and_survived(talk: Talk, frame: bytes) -> None:
    assert [type(event.error) for event in talk.client.receive(frame)] == [BadFrame]
    assert talk.begin() == [RealtimeModelTurnStartedEvent(response_id="r1")]


def test_what_a_response_took_is_told_once_however_often_its_end_is_told(talk: Talk) -> None:
    talk.begin()
    usage = {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}
    assert [event.type for event in talk.end(usage=usage)] == ["usage", "turn_ended"]
    assert talk.end(usage=usage) == []
    talk.begin("r2")
    assert [event.type for event in talk.end("r2", usage=usage)] == ["usage", "turn_ended"]


def test_a_response_ends_with_its_usage_status_and_reason(talk: Talk) -> None:
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
    talk.begin()
    details = {"type": "cancelled", "reason": "turn_detected"}
    assert talk.end(status="cancelled", status_details=details, usage=usage) == [
        RealtimeModelUsageEvent(
            Usage(1, 10, InputTokensDetails(3), 5, total_tokens=15),
            RealtimeModelInputTokensDetails(4, 6, None, 3, RealtimeModelCachedTokensDetails(3)),
            RealtimeModelOutputTokensDetails(1, 4),
            response_id="r1",
        ),
        RealtimeModelTurnEndedEvent(response_id="r1", status="cancelled", reason="turn_detected"),
    ]


def test_a_failed_response_says_why(talk: Talk) -> None:
    talk.begin()
    (ended,) = talk.end(status="failed", status_details={"type": "failed", "error": {"code": "overloaded"}})
    assert (ended.status, ended.error) == ("failed", {"code": "overloaded"})


CALL = {"id": "c1", "type": "function_call", "call_id": "call", "name": "add", "arguments": "{}"}


def test_a_call_is_announced_once_with_its_place_and_its_response(talk: Talk) -> None:
    talk.hear("conversation.item.added", item={**CALL, "status": "in_progress"}, previous_item_id="i0")
    done = {"response_id": "r1", "item": {**CALL, "status": "completed"}}
    item = RealtimeToolCallItem(
        item_id="c1", previous_item_id="i0", call_id="call", status="in_progress", arguments="{}", name="add"
    )
    assert talk.hear("response.output_item.done", **done) == [
        RealtimeModelItemUpdatedEvent(item, response_id="r1"),
        RealtimeModelToolCallEvent("add", "call", "{}", "c1", "i0", response_id="r1"),
    ]
    assert talk.hear("response.output_item.done", **done) == []
    assert [event.type for event in talk.end(output=[{**CALL, "status": "completed"}])] == ["turn_ended"]


def test_a_call_whose_message_was_lost_is_found_in_the_response(talk: Talk) -> None:
    told = talk.end(output=[{**CALL, "status": "completed"}])
    assert [event.type for event in told] == ["item_updated", "function_call", "turn_ended"]


def test_a_call_that_was_cut_off_is_not_announced(talk: Talk) -> None:
    assert talk.hear("response.output_item.done", response_id="r1", item={**CALL, "status": "incomplete"}) == []
    assert [event.type for event in talk.end(status="cancelled", output=[CALL])] == ["turn_ended"]


def test_the_server_acknowledges_an_output_by_its_call(talk: Talk) -> None:
    talk.hear("response.output_item.done", response_id="r1", item={**CALL, "status": "completed"})
    output = {"id": "o1", "type": "function_call_output", "call_id": "call", "output": "3"}
    (told,) = talk.hear("conversation.item.added", item=output, previous_item_id="c1")
    assert (told.item.item_id, told.item.status, told.item.output) == ("c1", "completed", "3")


def test_a_call_that_the_client_put_into_the_conversation_is_not_made_again(talk: Talk) -> None:
    told = talk.hear("conversation.item.added", item={**CALL, "status": "completed"})
    assert [event.type for event in told] == ["item_updated"]


# --- what is sent


def test_a_message_is_added_and_a_response_asked_for(talk: Talk) -> None:
    talk.send(RealtimeModelSendUserInput("Hi"))
    item, create = talk.said()
    content = [{"type": "input_text", "text": "Hi"}]
    assert item == {
        "type": "conversation.item.create",
        "item": {"type": "message", "role": "user", "content": content},
    }
    assert create["type"] == "response.create"


def test_an_output_is_added_at_once_and_spoken_of_when_it_is_time(talk: Talk) -> None:
    talk.begin()
    call = RealtimeModelToolCallEvent("add", "call", "{}")
    talk.send(RealtimeModelSendToolOutput(call, "3", start_response=True))
    talk.send(RealtimeModelSendToolOutput(call, "4", start_response=False))
    outputs = [message["item"]["output"] for message in talk.said()]
    assert outputs == ["3", "4"]
    talk.end()
    assert [message["type"] for message in talk.said()] == ["response.create"]


def test_audio_of_any_length_is_sent_in_pieces_that_a_server_takes(talk: Talk) -> None:
    audio = bytes(range(256)) * 80_000 + b"end"
    talk.send(RealtimeModelSendAudio(audio, commit=True))
    *pieces, commit = talk.said()
    assert max(len(piece["audio"]) for piece in pieces) < 15 * 2**20
    assert b"".join(base64.b64decode(piece["audio"]) for piece in pieces) == audio
    assert commit["type"] == "input_audio_buffer.commit"


def test_audio_is_appended_and_committed(talk: Talk) -> None:
    talk.send(RealtimeModelSendAudio(b"\0\1\2", commit=True))
    talk.send(RealtimeModelSendAudio(b"", commit=False))
    assert talk.said() == [
        {"type": "input_audio_buffer.append", "audio": "AAEC"},
        {"type": "input_audio_buffer.commit"},
    ]


def test_any_message_can_be_sent_but_responses_wait_for_their_turn(talk: Talk) -> None:
    talk.begin()
    talk.send(RealtimeModelSendRawMessage({"type": "response.create", "other_data": {"response": {"voice": "x"}}}))
    talk.send(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear", "other_data": {"event_id": "7"}}))
    assert talk.said() == [{"type": "input_audio_buffer.clear", "event_id": "7"}]
    talk.end()
    assert talk.said()[0]["response"]["voice"] == "x"


def test_settings_are_answered_in_order_and_rejected_by_name(talk: Talk) -> None:
    first, second, third = (talk.client.update_settings({"instructions": str(n)}) for n in range(3))
    frames = talk.said()
    assert [frame["session"]["instructions"] for frame in frames] == ["0", "1", "2"]
    talk.hear("error", error={"message": "no", "event_id": frames[1]["event_id"]})
    assert (first.answered, second.answered, third.answered) == (False, True, False)
    assert second.error is not None
    assert second.error.error["message"] == "no"
    talk.hear("session.updated", session={})
    talk.hear("session.updated", session={})
    assert (first.error, third.error, first.answered, third.answered) == (None, None, True, True)


def test_an_answer_that_never_came_does_not_shift_the_next(talk: Talk) -> None:
    lost, next_one = talk.client.update_settings({}), talk.client.update_settings({})
    lost.abandoned = True
    talk.hear("session.updated", session={})
    assert next_one.answered


def updated(talk: Talk, instructions: str, **more: Any) -> None:
    talk.hear("session.updated", session={"type": "realtime", "instructions": instructions, **more})


def test_an_answer_that_comes_late_is_not_taken_for_one_to_the_next_change(talk: Talk) -> None:
    talk.hear("session.created", session={"instructions": ""})
    late, second, third = (talk.client.update_settings({"instructions": text}) for text in ("one", "two", "three"))
    late.abandoned = True
    updated(talk, "one")
    assert not second.answered
    updated(talk, "two")
    assert (second.answered, third.answered) == (True, False)
    updated(talk, "three")
    assert third.answered


def test_a_late_answer_to_a_change_of_something_else_is_told_apart_as_well(talk: Talk) -> None:
    talk.hear("session.created", session={"instructions": "", "tool_choice": "auto"})
    late, second = (
        talk.client.update_settings({"instructions": "one"}),
        talk.client.update_settings({"tool_choice": "none"}),
    )
    late.abandoned = True
    updated(talk, "one", tool_choice="auto")
    assert not second.answered
    updated(talk, "one", tool_choice="none")
    assert second.answered


def test_after_an_answer_that_never_came_changes_are_answered_by_what_they_brought(talk: Talk) -> None:
    lost, second = (talk.client.update_settings({"instructions": text}) for text in ("one", "two"))
    lost.abandoned = True
    updated(talk, "two")
    assert second.answered
    for text in ("three", "four"):
        change = talk.client.update_settings({"instructions": text})
        assert not change.answered
        updated(talk, text)
        assert change.answered


def test_a_change_that_was_taken_over_in_part_is_answered(talk: Talk) -> None:
    talk.hear("session.created", session={"tool_choice": "auto"})
    lost, second = (
        talk.client.update_settings({"instructions": text, "tool_choice": text}) for text in ("auto", "none")
    )
    lost.abandoned = True
    updated(talk, "none", tool_choice="auto")
    assert second.answered


def test_a_change_that_seemed_to_be_answered_leaves_its_own_answer_to_no_other(talk: Talk) -> None:
    late, same, other = (talk.client.update_settings({"instructions": text}) for text in ("one", "one", "two"))
    late.abandoned = True
    updated(talk, "one")
    assert same.answered, "what it wanted holds"
    updated(talk, "one")
    assert not other.answered
    updated(talk, "two")
    assert other.answered


def test_the_refusal_of_a_change_that_seemed_to_be_answered_is_told(talk: Talk) -> None:
    late, same = (talk.client.update_settings({"instructions": "one"}) for _ in range(2))
    late.abandoned = True
    updated(talk, "one")
    error = {"message": "no", "event_id": same.event_id}
    assert talk.hear("error", error=error) == [RealtimeModelErrorEvent(error)]


def test_a_server_that_tells_settings_in_words_of_its_own_is_believed(talk: Talk) -> None:
    lost, second = (talk.client.update_settings({"instructions": text}) for text in ("one", "two"))
    lost.abandoned = True
    updated(talk, "Two.")
    assert second.answered


def test_tracing_is_said_once(talk: Talk) -> None:
    for _ in range(2):
        talk.send(RealtimeModelSendSessionUpdate({"tracing": {"workflow_name": "w"}}))
    assert [frame["session"].get("tracing") for frame in talk.said()] == [{"workflow_name": "w"}, None]


# --- playback and interruption


def truncations(frames: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(f["item_id"], f["audio_end_ms"]) for f in frames if f["type"] == "conversation.item.truncate"]


def test_an_interruption_cuts_cancels_and_silences(talk: Talk) -> None:
    talk.begin()
    talk.audio(1000)
    talk.now += 0.3
    told = talk.send(RealtimeModelSendInterrupt())
    assert told == [RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=300)]
    frames = talk.said()
    assert truncations(frames) == [("i1", 300)]
    assert [frame.get("response_id") for frame in frames if frame["type"] == "response.cancel"] == ["r1"]
    assert talk.audio(1000) == []
    assert talk.hear("response.output_audio.done", **DELTA) == []
    talk.end(status="cancelled")
    assert talk.audio(100) == [], "late audio of a cancelled response"
    assert talk.begin("r2")
    assert talk.audio(100, response="r2", item="i2") != []


def test_it_cancels_although_the_server_interrupts_by_itself(talk: Talk) -> None:
    detection = {"turn_detection": {"type": "semantic_vad", "interrupt_response": True}}
    talk.hear("session.updated", session={"audio": {"input": detection}})
    talk.begin()
    talk.send(RealtimeModelSendInterrupt())
    assert [frame["type"] for frame in talk.said()] == ["response.cancel"]


@pytest.mark.parametrize("server_interrupts", [True, False])
def test_speech_of_the_user_stops_the_model(talk: Talk, server_interrupts: bool) -> None:
    detection = {"turn_detection": {"type": "server_vad", "interrupt_response": server_interrupts}}
    talk.hear("session.updated", session={"audio": {"input": detection}})
    talk.begin()
    talk.audio(500)
    talk.now += 0.1
    told = talk.hear("input_audio_buffer.speech_started", item_id="u", audio_start_ms=0)
    assert [event.type for event in told] == ["speech_started", "audio_interrupted"]
    frames = talk.said()
    assert truncations(frames) == [("i1", 100)]
    assert ("response.cancel" in [frame["type"] for frame in frames]) is not server_interrupts
    assert talk.audio(500) == []


def test_several_items_of_one_response_are_cut_each_where_it_stood(talk: Talk) -> None:
    talk.begin()
    for item in ("i1", "i2", "i3"):
        talk.audio(400, item=item)
    talk.now += 0.5
    told = talk.send(RealtimeModelSendInterrupt())
    assert [(event.item_id, event.audio_end_ms) for event in told] == [("i2", 100), ("i3", 0)]
    assert truncations(talk.said()) == [("i2", 100), ("i3", 0)]


def test_nothing_is_cut_that_was_heard_to_the_end(talk: Talk) -> None:
    talk.begin()
    talk.audio(200)
    talk.end()
    talk.now += 1
    assert talk.send(RealtimeModelSendInterrupt()) == []
    assert talk.said() == []


def test_what_is_still_being_generated_is_cut_at_what_arrived(talk: Talk) -> None:
    talk.begin()
    talk.audio(200)
    talk.now += 1
    talk.audio(100)
    talk.now += 5
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i1", 300)]


def test_a_pause_in_the_stream_is_not_taken_for_playing(talk: Talk) -> None:
    talk.begin()
    talk.audio(100)
    talk.now += 1
    talk.audio(500)
    talk.now += 0.2
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i1", 300)]


def test_a_tracker_knows_better() -> None:
    tracker = RealtimePlaybackTracker()
    talk = Talk(playback_tracker=tracker)
    talk.begin()
    talk.audio(400, item="i1")
    talk.audio(400, item="i2")
    talk.now += 60
    tracker.on_play_bytes("i1", 0, bytes(48 * 400))
    tracker.on_play_ms("i2", 0, 30.5)
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i2", 30)]
    assert tracker.get_state()["current_item_id"] is None


def test_a_tracker_that_heard_nothing_yet() -> None:
    talk = Talk(playback_tracker=RealtimePlaybackTracker())
    talk.begin()
    talk.audio(400)
    talk.now += 60
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i1", 0)]


@pytest.mark.parametrize("elapsed_ms", [-120.0, float("nan")])
def test_a_tracker_that_stands_before_the_beginning_has_heard_nothing(elapsed_ms: float) -> None:
    class Late(RealtimePlaybackTracker):
        def get_state(self) -> RealtimePlaybackState:
            return {"current_item_id": "i1", "current_item_content_index": 0, "elapsed_ms": elapsed_ms}

    talk = Talk(playback_tracker=Late())
    talk.begin()
    talk.audio(400)
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i1", 0)]


def test_no_time_passes_for_a_tracker_when_the_next_part_comes() -> None:
    talk = Talk(playback_tracker=RealtimePlaybackTracker())
    talk.begin()
    talk.audio(400, item="i1")
    talk.now += 0.1
    talk.audio(400, item="i2")
    talk.now += 60
    talk.audio(400, item="i3")
    talk.send(RealtimeModelSendInterrupt())
    assert truncations(talk.said()) == [("i1", 0), ("i2", 0), ("i3", 0)]


@pytest.mark.parametrize("kind", ["session.created", "session.updated"])
def test_what_the_server_says_about_its_audio_is_told(kind: str) -> None:
    for format in ({"type": "audio/pcma"}, {"type": "audio/pcm", "rate": 24_000}):
        told, *_ = Talk().hear(kind, session={"audio": {"output": {"format": format}}})
        assert told == RealtimeModelAudioFormatEvent(format)
    for unknown in ({}, {"output": {}}, {"output": {"format": {"type": "audio/new"}}}):
        assert [event.type for event in Talk().hear(kind, session={"audio": unknown})] == ["other"]


def test_the_format_of_the_session_counts() -> None:
    tracker = RealtimePlaybackTracker()
    talk = Talk(playback_tracker=tracker)
    talk.hear("session.updated", session={"audio": {"output": {"format": {"type": "audio/pcmu"}}}})
    tracker.on_play_bytes("i1", 0, bytes(80))
    assert tracker.get_state()["elapsed_ms"] == 10


def test_an_interruption_of_one_response_leaves_the_others(talk: Talk) -> None:
    talk.begin("r1")
    talk.audio(300, item="i1", response="r1")
    talk.end("r1")
    talk.begin("r2")
    talk.audio(300, item="i2", response="r2")
    told = talk.send(RealtimeModelSendInterrupt(response_id="r2", force_response_cancel=True))
    assert [event.item_id for event in told] == ["i2"]
    talk.now += 0.1
    assert [event.item_id for event in talk.send(RealtimeModelSendInterrupt(playback_only=True))] == ["i1"]


def test_cancelling_only_the_response_leaves_playback_alone(talk: Talk) -> None:
    talk.begin()
    talk.audio(300)
    assert talk.send(RealtimeModelSendInterrupt(response_id="r1", cancel_response_only=True)) == []
    assert [frame["type"] for frame in talk.said()] == ["response.cancel"]


def test_interruptions_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="playback_only"):
        RealtimeModelSendInterrupt(playback_only=True, force_response_cancel=True)
    with pytest.raises(ValueError, match="response_id"):
        RealtimeModelSendInterrupt(cancel_response_only=True)


def test_cancelling_nothing_is_harmless(talk: Talk) -> None:
    talk.begin()
    talk.send(RealtimeModelSendInterrupt())
    (cancel,) = talk.said()
    error = {"code": "response_cancel_not_active", "event_id": cancel["event_id"], "message": "none"}
    assert [(event.type, event.status) for event in talk.hear("error", error=error)] == [("turn_ended", "lost")]
    assert talk.end() == [], "it was reported as over"


def test_heard_parts_are_forgotten(talk: Talk) -> None:
    for number in range(1000):
        talk.begin(f"r{number}")
        talk.audio(10, item=f"i{number}", response=f"r{number}")
        talk.end(f"r{number}")
        talk.now += 1
    assert len(talk.client.playback._parts) <= 2


def test_a_lost_connection_ends_what_was_under_way(talk: Talk) -> None:
    talk.begin()
    talk.send(RealtimeModelSendUserInput("Hi"))
    lost = list(talk.client.handle_connection_lost(ConnectionError("gone")))
    assert [event.type for event in lost] == ["error", "turn_ended"]
    assert lost[1].status == "lost"
    assert lost[0].error.owners == ("user",)


# --- messages as they came


def test_a_message_comes_before_its_meaning_and_is_read_when_somebody_looks(talk: Talk) -> None:
    frame = json.dumps({"type": "response.created", "response": {"id": "r1"}})
    raw, told = prepend_raw_event(frame, talk.client.receive(frame))
    assert (raw.type, told.type) == ("raw_server_event", "turn_started")
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
def test_what_is_no_message_has_no_raw_event(talk: Talk, frame: str, kinds: list[str]) -> None:
    told = prepend_raw_event(frame, talk.client.receive(frame))
    assert [event.type for event in told] == kinds
    assert all(event.data for event in told if event.type == "raw_server_event")
