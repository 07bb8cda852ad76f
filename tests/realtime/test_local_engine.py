"""The engine by itself: its own clock, and whatever a client may send."""

import asyncio
import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.wire import USER, speech
from realtime.wire_types import SERVER_EVENTS, faults
from standfast.realtime.local.actions import CancelGeneration, CloseConnection, GenerateResponse, TranscribeAudio
from standfast.realtime.local.audio import CODECS, make_silence
from standfast.realtime.local.engine import Engine

SPOKEN = asyncio.run(speech("Stop.", pause_ms=600))


def numbered():
    count = 0

    def name(prefix):
        nonlocal count
        count += 1
        return f"{prefix}_{count}"

    return name


class Bench:
    """An engine with a clock in hand."""

    def __init__(self, **options):
        self.now = 0.0
        self.engine = Engine(now=0.0, new_id=numbered(), **options)
        self.frames, self.wishes = [], []
        self.take()

    def take(self):
        taken = self.engine.drain_outbox()
        frames = [each for each in taken if isinstance(each, dict)]
        self.frames += frames
        self.wishes += [each for each in taken if not isinstance(each, dict)]
        return frames

    def send(self, kind, **parts):
        self.engine.receive({"type": kind, **parts}, self.now)
        return self.take()

    def speak(self, pcm):
        return self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    def wait(self, seconds):
        """Let time pass, waking the engine whenever it wants to be."""
        until = self.now + seconds
        while (due := self.engine.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            self.engine.advance(self.now)
            self.take()
        self.now = until

    def settle(self):
        self.engine.process_ended_responses(self.now)
        return self.take()

    def kinds(self):
        return [frame["type"] for frame in self.frames]


def detection(**parts):
    return {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad", **parts}}}}


def test_audio_is_told_at_the_pace_of_speech_and_each_word_with_its_audio():
    bench = Bench(pace=1.0)
    bench.send("response.create")
    response = bench.engine.active_response
    for word in ("One", " two", " three"):
        response.add_word(word, make_silence(250), bench.now)
    response.finish(bench.now)
    bench.settle()
    words = lambda: "".join(f["delta"] for f in bench.frames if f["type"] == "response.output_audio_transcript.delta")  # noqa: E731
    assert words() == "One"
    bench.wait(0.24)
    assert words() == "One"
    bench.wait(0.02)
    assert words() == "One two"
    bench.wait(0.25)
    assert words() == "One two three"
    assert not response.ended
    bench.wait(0.25)
    assert response.status == "completed"
    spoken = [(word.text, word.start_ms, word.end_ms) for word in bench.engine.conversation.get_entry("item_4").words]
    assert spoken == [("One", 0, 250), (" two", 250, 500), (" three", 500, 750)]


def test_a_cancelled_response_tells_nothing_more_and_its_brain_is_let_go():
    bench = Bench(pace=1.0)
    bench.send("response.create")
    response = bench.engine.active_response
    response.add_word("Hello", make_silence(500), bench.now)
    bench.wait(0.1)
    bench.send("response.cancel")
    response.add_word(" world", make_silence(500), bench.now)
    bench.wait(5)
    assert bench.kinds()[-2:] == ["response.done", "rate_limits.updated"]
    assert bench.wishes == [GenerateResponse(response.id), CancelGeneration(response.id)]


def test_a_turn_that_may_not_interrupt_is_answered_when_the_answer_before_it_is_over():
    bench = Bench()
    bench.send("session.update", session=detection(interrupt_response=False))
    bench.send("response.create")
    first = bench.engine.active_response
    bench.speak(SPOKEN)
    assert not first.ended
    assert bench.kinds().count("response.created") == 1
    first.finish(bench.now)
    bench.settle()
    assert bench.engine.active_response not in (None, first)


def test_a_turn_is_not_answered_unless_the_session_wants_that():
    bench = Bench()
    bench.send("session.update", session=detection(create_response=False))
    bench.speak(SPOKEN)
    assert bench.engine.active_response is None
    assert len(bench.engine.conversation) == 1


def test_settings_that_have_nothing_to_do_with_listening_do_not_cut_a_turn():
    bench = Bench()
    bench.speak(SPOKEN[: len(SPOKEN) // 2])
    bench.send("session.update", session={"type": "realtime", "instructions": "Other."})
    bench.speak(SPOKEN[len(SPOKEN) // 2 :])
    assert bench.kinds().count("input_audio_buffer.speech_started") == 1
    assert bench.kinds().count("input_audio_buffer.committed") == 1


def test_push_to_talk_makes_an_item_of_what_was_appended():
    bench = Bench()
    bench.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    [error] = bench.send("input_audio_buffer.commit")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"
    bench.speak(make_silence(250))
    bench.send("input_audio_buffer.commit")
    [entry] = bench.engine.conversation
    assert entry.audio_ms == 250
    assert isinstance(bench.wishes[-1], TranscribeAudio)
    assert bench.engine.active_response is None
    bench.speak(make_silence(250))
    bench.send("input_audio_buffer.clear")
    assert bench.send("input_audio_buffer.commit")[0]["type"] == "error"


def test_audio_of_long_ago_is_forgotten_and_its_length_is_not():
    bench = Bench()
    bench.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    minute = base64.b64encode(make_silence(60_000)).decode()
    for _ in range(20):
        bench.send("input_audio_buffer.append", audio=minute)
        bench.send("input_audio_buffer.commit")
    entries = list(bench.engine.conversation)
    assert [entry.audio_ms for entry in entries] == [60_000] * 20
    assert sum(len(entry.audio) for entry in entries) <= 16 * 2**20
    for entry, kept in ((entries[0], False), (entries[-1], True)):
        [frame] = bench.send("conversation.item.retrieve", item_id=entry.id)
        assert ("audio" in frame["item"]["content"][0]) is kept


def test_an_answer_whose_audio_is_forgotten_can_be_cut():
    bench = Bench()
    bench.send("response.create")
    response = bench.engine.active_response
    response.add_word("Long.", make_silence(500_000), bench.now)
    response.finish(bench.now)
    bench.engine.process_ended_responses(bench.now)
    [entry] = bench.engine.conversation
    assert (entry.audio_ms, len(entry.audio)) == (500_000, 0)
    bench.send("conversation.item.truncate", item_id=entry.id, content_index=0, audio_end_ms=400_000)
    assert entry.audio_ms == 400_000
    assert "error" not in bench.kinds()


def test_a_long_silence_after_an_answer_asks_for_another():
    bench = Bench()
    bench.send("session.update", session=detection(idle_timeout_ms=6000))
    bench.send("response.create")
    bench.engine.active_response.add_word("Hello", make_silence(2000), bench.now)
    bench.engine.active_response.finish(bench.now)
    bench.settle()
    bench.wait(7.9)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds()
    bench.wait(0.2)
    assert bench.kinds()[-5:] == [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]


def test_somebody_who_speaks_when_an_answer_ends_is_not_silent():
    bench = Bench()
    bench.send("session.update", session=detection(idle_timeout_ms=6000, interrupt_response=False))
    bench.send("response.create")
    first = bench.engine.active_response
    bench.speak(SPOKEN[: len(SPOKEN) // 2])
    assert bench.kinds()[-1] == "input_audio_buffer.speech_started"
    first.finish(bench.now)
    bench.settle()
    bench.wait(7)
    assert "input_audio_buffer.timeout_triggered" not in bench.kinds()


def test_an_answer_that_is_too_long_is_incomplete():
    bench = Bench()
    bench.send("response.create", response={"max_output_tokens": 10})
    response = bench.engine.active_response
    for _ in range(20):
        response.add_word(" word", make_silence(100), bench.now)
    assert response.status == "incomplete"
    done = next(frame for frame in bench.take() if frame["type"] == "response.done")
    assert done["response"]["status_details"]["reason"] == "max_output_tokens"


def test_items_go_where_the_client_says():
    bench = Bench()
    for item_id, after in [("b", None), ("d", None), ("c", "b"), ("a", "root")]:
        frames = bench.send("conversation.item.create", item={**USER, "id": item_id}, previous_item_id=after)
    assert frames[0]["previous_item_id"] is None
    assert [item["id"] for item in bench.engine.conversation.items] == ["a", "b", "c", "d"]
    bench.send("conversation.item.delete", item_id="b")
    assert [item["id"] for item in bench.engine.conversation.items] == ["a", "c", "d"]
    for wrong in (
        {"item": {**USER, "id": "a"}},
        {"item": USER, "previous_item_id": "nobody"},
        {"item": {**USER, "id": "x" * 33}},
        {"item": {"type": "function_call_output", "call_id": "nobody", "output": ""}},
        {"item": {**USER, "role": "assistant"}},
    ):
        assert bench.send("conversation.item.create", **wrong)[0]["type"] == "error"
    assert len(bench.engine.conversation) == 3


def test_after_its_end_a_session_is_silent():
    bench = Bench(limit_seconds=60)
    bench.send("response.create")
    bench.wait(61)
    assert bench.frames[-1]["error"]["code"] == "session_expired"
    assert bench.wishes[-1] == CloseConnection(1001, "session expired")
    assert bench.send("response.create") == []
    assert bench.engine.deadline is None


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_telephone_audio_is_heard_and_spoken(name):
    bench, format = Bench(), CODECS[name]
    audio = {"input": {"format": {"type": name}}, "output": {"format": {"type": name}}}
    bench.send("session.update", session={"type": "realtime", "audio": audio})
    bench.speak(format.from_pcm(SPOKEN))
    assert "input_audio_buffer.committed" in bench.kinds()
    bench.engine.active_response.add_word("Yes", SPOKEN[:48_000], bench.now)
    deltas = [frame["delta"] for frame in bench.take() if frame["type"] == "response.output_audio.delta"]
    assert sum(len(base64.b64decode(delta)) for delta in deltas) == 8000


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_every_byte_of_telephone_audio_comes_back_from_its_own_value(name):
    format = CODECS[name]
    for byte in range(256):
        back = format.from_pcm(format.to_pcm(bytes([byte] * 3)))
        assert format.to_pcm(back)[:2] == format.to_pcm(bytes([byte]))[:2]


def update(**audio_input):
    return {"type": "session.update", "session": {"type": "realtime", "audio": {"input": audio_input}}}


REQUESTS = [
    {"type": "response.create"},
    {"type": "response.create", "response": {"conversation": "none"}},
    {"type": "response.create", "response": {"output_modalities": ["text"]}},
    {"type": "response.cancel"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "session.update", "session": detection(interrupt_response=False)},
    {"type": "session.update", "session": detection(silence_duration_ms=0, idle_timeout_ms=5000)},
    update(turn_detection=None),
    update(format={"type": "audio/pcmu"}),
    {"type": "conversation.item.create", "item": USER},
    {"type": "conversation.item.create", "item": USER, "previous_item_id": "root"},
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call", "name": "f", "arguments": "", "call_id": "c"},
    },
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "call_id": "c", "output": "o"}},
]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.sampled_from(["type", "event_id", "item", "session", "response", "audio", "previous_item_id", "item_id"])
garbage = st.one_of(
    st.dictionaries(fields, junk),
    st.builds(
        lambda frame, more: {**frame, **more}, st.sampled_from(REQUESTS), st.dictionaries(fields, junk, max_size=2)
    ),
    st.text(max_size=20),
    st.binary(max_size=20),
)
audio = st.sampled_from([SPOKEN, SPOKEN[:40_000], make_silence(700), b"", b"\x01"])
place = st.integers(0, 5)
moves = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(REQUESTS) | garbage),
    st.tuples(st.just("speak"), audio),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 1.0, 8.0])),
    st.tuples(st.just("answer"), st.sampled_from(["word", "word", "call", "finish", "fail"])),
    st.tuples(st.sampled_from(["delete", "retrieve", "behind"]), place),
    st.tuples(st.just("truncate"), st.tuples(place, st.integers(-10, 300))),
)


def play(bench, kind, what):
    """One move; places are counted from the end of the conversation."""
    active = bench.engine.active
    known = [entry.id for entry in bench.engine.conversation][::-1] or ["nobody"]
    match kind, what:
        case "send", frame:
            bench.engine.receive(frame, bench.now)
        case "speak", pcm:
            bench.speak(pcm)
        case "wait", seconds:
            bench.wait(seconds)
        case "truncate", (at, ms):
            bench.send("conversation.item.truncate", item_id=known[at % len(known)], content_index=0, audio_end_ms=ms)
        case "behind", at:
            bench.send("conversation.item.create", item=USER, previous_item_id=known[at % len(known)])
        case (("delete" | "retrieve"), at):
            bench.send(f"conversation.item.{kind}", item_id=known[at % len(known)])
        case "answer", "word" if active is not None:
            active.sound(" word", make_silence(120), bench.now) if active.speaks else active.write(" word", bench.now)
        case "answer", "call" if active is not None:
            active.call("f", "{}", bench.now)
        case "answer", "finish" if active is not None:
            active.finish(bench.now)
        case "answer", "fail" if active is not None:
            active.fail("x", "y")
    bench.settle()


def check(bench):
    created = [
        f["response"]["id"]
        for f in bench.frames
        if f["type"] == "response.created" and f["response"]["conversation_id"]
    ]
    done = [
        f["response"]["id"] for f in bench.frames if f["type"] == "response.done" and f["response"]["conversation_id"]
    ]
    assert done == created[: len(done)], "a response ended that had not begun, or twice"
    assert len(created) - len(done) <= 1, "two active responses"
    active = bench.engine.active
    assert (active.id if active else None) == (created[-1] if len(created) > len(done) else None)


def mirrored(frames):
    """The order of the items, as a client knows it from the frames alone."""
    order = []
    for frame in frames:
        if frame["type"] == "conversation.item.added":
            before = frame["previous_item_id"]
            order.insert(0 if before is None else order.index(before) + 1, frame["item"]["id"])
        elif frame["type"] == "conversation.item.deleted":
            order.remove(frame["item_id"])
    return order


@settings(max_examples=200, deadline=None)
@given(st.lists(moves, min_size=4, max_size=40), st.sampled_from([None, 1.0]))
def test_whatever_a_client_sends_the_engine_stands_and_its_frames_tell_the_truth(script, pace):
    bench = Bench(pace=pace)
    for beginning in (("send", REQUESTS[0]), ("answer", "word"), ("answer", "word")):
        play(bench, *beginning)
    for kind, what in script:
        play(bench, kind, what)
        check(bench)
    assert mirrored(bench.frames) == [entry.id for entry in bench.engine.conversation]
    assert msgspec.json.decode(msgspec.json.encode(bench.frames))
    assert [fault for frame in bench.frames for fault in faults(frame, SERVER_EVENTS)] == []
    for entry in bench.engine.conversation:
        assert entry.truncated_at_ms is None or entry.audio_ms <= entry.truncated_at_ms
