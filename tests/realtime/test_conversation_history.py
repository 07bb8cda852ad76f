"""The conversation history: pure, ordered, and limited to what was heard."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.realtime import CallCounter
from standfast.realtime._session.history import ConversationHistory
from standfast.realtime._session.history_entries import estimate_heard_text
from standfast.realtime._session.playback_clock import PlaybackClock
from standfast.realtime.items import (
    AssistantAudio,
    AssistantMessageItem,
    AssistantText,
    InputAudio,
    InputImage,
    InputText,
    RealtimeToolCallItem,
    UserMessageItem,
)
from standfast.realtime.model_events import RealtimeModelToolCallEvent


def user(name, text="hi", previous=None):
    return UserMessageItem(item_id=name, previous_item_id=previous, content=[InputText(text=text)])


def answer(name, *parts, previous=None, status="in_progress"):
    return AssistantMessageItem(item_id=name, previous_item_id=previous, status=status, content=list(parts))


def answered_call(name, call_id, output_item_id):
    call = {"item_id": name, "call_id": call_id, "status": "completed", "name": "f", "arguments": "{}"}
    return RealtimeToolCallItem(**call, output="ok", output_item_id=output_item_id)


def names(history):
    return [item.item_id for item in history.get_items()]


@pytest.mark.parametrize("by", ["words", "item"])
def test_a_message_reported_before_its_response_ends_with_its_own_response(by):
    history = ConversationHistory(PlaybackClock())
    history.upsert_item(answer("a1"))
    if by == "words":
        history.append_delta("a1", "one", "r1", spoken=True)
    else:
        history.upsert_item(answer("a1"), response_id="r1")
    assert history.end_response("r2", complete=True) == []
    assert history.get_item("a1").status == "in_progress"
    assert history.end_response("r1", complete=True) == ["a1"]


def test_items_keep_the_positions_of_the_server():
    history = ConversationHistory(PlaybackClock())
    assert history.upsert_item(user("a"))
    assert history.upsert_item(user("c", previous="a"))
    assert history.upsert_item(user("b", previous="a"))
    assert names(history) == ["a", "b", "c"]
    assert not history.upsert_item(user("b", "again"))
    assert names(history) == ["a", "b", "c"]


@given(st.permutations(range(8)))
@settings(max_examples=200, deadline=None)
def test_the_order_does_not_depend_on_the_order_of_arrival(order):
    history = ConversationHistory(PlaybackClock())
    for place in order:
        history.upsert_item(user(f"i{place}", previous=f"i{place - 1}" if place else None))
    assert names(history) == [f"i{place}" for place in range(8)]


def test_an_answer_whose_text_arrived_first_is_ordered_later():
    history = ConversationHistory(PlaybackClock())
    history.upsert_item(user("u1"))
    history.append_delta("a1", "hello", "r1", spoken=True)
    history.upsert_item(user("u2", previous="u1"))
    history.upsert_item(answer("a1", previous="u2"))
    assert names(history) == ["u1", "u2", "a1"]


def test_an_item_after_an_output_follows_everything_before_the_output():
    history = ConversationHistory(PlaybackClock())
    history.add_tool_call(RealtimeModelToolCallEvent("f", "c1", "{}", "f1"))
    history.upsert_item(user("u1", previous="f1"))
    history.upsert_item(answered_call("f1", "c1", "o1"))
    history.upsert_item(user("u2", previous="o1"))
    assert names(history) == ["f1", "u1", "u2"]
    assert history.get_items()[0].output == "ok"


def test_an_item_that_moves_takes_the_items_after_its_output_along():
    history = ConversationHistory(PlaybackClock())
    history.append_delta("a1", "hello", "r1", spoken=True)
    history.add_tool_call(RealtimeModelToolCallEvent("f", "c1", "{}", "f1", "a1"))
    history.upsert_item(answered_call("f1", "c1", "o1"))
    history.upsert_item(user("u2", previous="o1"))
    history.upsert_item(user("u1"))
    history.upsert_item(answer("a1", previous="u1"))
    assert names(history) == ["u1", "a1", "f1", "u2"]


def test_deltas_add_up_and_the_final_text_replaces_them():
    history = ConversationHistory(PlaybackClock())
    assert history.append_delta("a1", "hel", "r1", spoken=True)
    assert not history.append_delta("a1", "lo", "r1", spoken=True)
    assert history.get_items()[0].content[0].transcript == "hello"
    history.set_text("a1", "hello!")
    history.upsert_item(answer("a1", AssistantAudio(transcript=None), status="completed"))
    assert history.get_items()[0].content[0].transcript == "hello!"
    assert history.end_response("r1", complete=True) == ["a1"]
    assert history.get_items()[0].status == "completed"


def test_written_and_spoken_parts_stay_what_they_are():
    history = ConversationHistory(PlaybackClock())
    history.append_delta("a1", "seen", "r1", spoken=False)
    history.append_delta("a1", "heard", "r1", content_index=1, spoken=True)
    assert [part.type for part in history.get_items()[0].content] == ["text", "audio"]
    history.upsert_item(answer("a1", AssistantText(text="seen"), AssistantAudio(transcript="heard")))
    assert [part.type for part in history.get_items()[0].content] == ["text", "audio"]


def test_text_that_was_not_heard_is_not_in_the_transcript():
    clock = PlaybackClock()
    history = ConversationHistory(clock)
    history.append_delta("a1", "one two three four", "r1", spoken=True)
    clock.receive("a1", 0, 48 * 1000)
    assert history.truncate("a1", 0, 500) == 500
    part = history.get_items()[0].content[0]
    assert (part.transcript, part.generated_transcript, part.audio_end_ms) == ("one two", "one two three four", 500)
    assert history.get_items()[0].status == "incomplete"
    history.append_delta("a1", " five", "r1", spoken=True)
    history.upsert_item(answer("a1", AssistantAudio(transcript=None), status="incomplete"))
    history.upsert_item(answer("a1", AssistantAudio(transcript="one two three four five"), status="incomplete"))
    assert history.get_items()[0].content[0].transcript == "one two"
    assert history.get_items()[0].content[0].generated_transcript == "one two three four five"
    assert history.truncate("a1", 0, 800) is None
    assert history.truncate("unknown", 0, 800) is None


def test_an_answer_truncated_before_its_first_audio_was_not_heard():
    history = ConversationHistory(PlaybackClock())
    history.append_delta("a1", "one two", "r1", spoken=True)
    history.truncate("a1", 0, 0)
    assert history.get_items()[0].content[0].transcript == ""


@given(st.text(max_size=60), st.integers(0, 2000), st.integers(0, 2000))
@settings(deadline=None)
def test_the_heard_text_is_a_prefix_that_ends_at_a_word(text, recorded, sent):
    part = estimate_heard_text(text, recorded, sent)
    assert text.startswith(part)
    rest = text[len(part) :]
    assert not part or not rest or rest[0].isspace()


def test_a_late_transcript_is_added_to_its_item():
    history = ConversationHistory(PlaybackClock())
    history.upsert_item(UserMessageItem(item_id="u1", content=[InputAudio()]))
    history.append_delta("a1", "hello", "r1", spoken=True)
    assert not history.set_transcript("u1", "good day")
    assert history.get_items()[0].content[0].transcript == "good day"
    history.upsert_item(UserMessageItem(item_id="u1", content=[InputAudio()]))
    assert history.get_items()[0].content[0].transcript == "good day"
    assert history.set_transcript("u9", "who am I")
    assert history.get_items()[-1].content[0].text == "who am I"


def test_a_transcript_that_arrives_before_its_item_is_kept():
    history = ConversationHistory(PlaybackClock())
    assert history.set_transcript("u1", "good day")
    assert not history.upsert_item(UserMessageItem(item_id="u1", content=[InputAudio()]))
    assert [part.transcript for part in history.get_items()[0].content] == ["good day"]


def test_a_transcript_of_what_the_user_did_not_say_changes_nothing():
    history = ConversationHistory(PlaybackClock())
    history.append_delta("a1", "hello", "r1", spoken=True)
    assert not history.set_transcript("a1", "good day")
    assert [item.role for item in history.get_items()] == ["assistant"]
    assert history.delete("a1")
    assert history.get_items() == []


def test_pictures_that_the_server_leaves_out_are_kept():
    history = ConversationHistory(PlaybackClock())
    history.upsert_item(UserMessageItem(item_id="u1", content=[InputImage(image_url="data:x"), InputText(text="see")]))
    history.upsert_item(UserMessageItem(item_id="u1", content=[InputText(text="see")]))
    assert [part.type for part in history.get_items()[0].content] == ["input_image", "input_text"]


def test_an_item_can_be_deleted():
    history = ConversationHistory(PlaybackClock())
    history.upsert_item(user("a"))
    history.upsert_item(user("b"))
    assert history.delete("a")
    assert not history.delete("a")
    assert names(history) == ["b"]


def test_a_snapshot_never_changes():
    history = ConversationHistory(PlaybackClock())
    history.append_delta("a1", "one", "r1", spoken=True)
    before, revision = history.get_items(), history.revision
    history.append_delta("a1", " two", "r1", spoken=True)
    assert before[0].content[0].transcript == "one"
    assert history.get_items()[0].content[0].transcript == "one two"
    assert history.revision > revision


def measure_delta(length):
    """Return the function calls and the peak of allocated bytes of a delta in a history of so many items."""
    clock = PlaybackClock()
    history = ConversationHistory(clock)
    for number in range(length):
        history.upsert_item(user(f"u{number}"))
    history.append_delta("a1", "x", "r1", spoken=True)
    tracemalloc.start()
    with CallCounter() as calls:
        history.append_delta("a1", "word ", "r1", spoken=True)
        clock.receive("a1", 0, 480)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return calls.count, peak


def test_a_delta_costs_the_same_however_long_the_call():
    (short_calls, _), (long_calls, long_peak) = measure_delta(10), measure_delta(2_000)
    assert long_calls == short_calls
    assert long_peak < 2_000, "less than one byte for each item"
