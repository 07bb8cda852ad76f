"""The engine without I/O: a simulated clock, and arbitrary events of a client."""

import asyncio
import base64
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.realtime_protocol import USER, make_speech
from realtime.openai_types import SERVER_EVENTS, find_type_errors
from standfast.realtime.local.actions import CancelGeneration, CloseConnection, GenerateResponse, TranscribeAudio
from standfast.realtime.local.audio import CODECS, make_silence
from standfast.realtime.local.engine import Engine

SPOKEN = asyncio.run(make_speech("Stop.", pause_ms=600))


def make_id_factory():
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


class Bench:
    """An engine with a simulated clock, its frames and its actions."""

    def __init__(self, **options):
        self.now = 0.0
        self.engine = Engine(now=0.0, new_id=make_id_factory(), **options)
        self.frames, self.actions = [], []
        self.take()

    def take(self):
        outgoing = self.engine.drain_outbox()
        frames = [each for each in outgoing if isinstance(each, dict)]
        self.frames += frames
        self.actions += [each for each in outgoing if not isinstance(each, dict)]
        return frames

    def send(self, event_type, **fields):
        self.engine.receive({"type": event_type, **fields}, self.now)
        return self.take()

    def speak(self, pcm):
        return self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    def wait(self, seconds):
        """Advance the clock, and the engine at each of its deadlines."""
        end = self.now + seconds
        while (deadline := self.engine.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.engine.advance(self.now)
            self.take()
        self.now = end

    def settle(self):
        self.engine.process_ended_responses(self.now)
        return self.take()

    def types(self):
        return [frame["type"] for frame in self.frames]


def detection(**fields):
    return {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad", **fields}}}}


def test_audio_is_sent_at_the_pace_of_speech_with_the_transcript_of_each_word():
    bench = Bench(pace=1.0)
    bench.send("response.create")
    response = bench.engine.active_response
    for word in ("One", " two", " three"):
        response.add_word(word, make_silence(250), bench.now)
    response.finish(bench.now)
    bench.settle()

    def transcript():
        return "".join(f["delta"] for f in bench.frames if f["type"] == "response.output_audio_transcript.delta")

    assert transcript() == "One"
    bench.wait(0.24)
    assert transcript() == "One"
    bench.wait(0.02)
    assert transcript() == "One two"
    bench.wait(0.25)
    assert transcript() == "One two three"
    assert not response.ended
    bench.wait(0.25)
    assert response.status == "completed"
    timings = [(word.text, word.start_ms, word.end_ms) for word in bench.engine.conversation.get_entry("item_4").words]
    assert timings == [("One", 0, 250), (" two", 250, 500), (" three", 500, 750)]


def test_a_cancelled_response_sends_no_more_and_stops_its_responder():
    bench = Bench(pace=1.0)
    bench.send("response.create")
    response = bench.engine.active_response
    response.add_word("Hello", make_silence(500), bench.now)
    bench.wait(0.1)
    bench.send("response.cancel")
    response.add_word(" world", make_silence(500), bench.now)
    bench.wait(5)
    assert bench.types()[-2:] == ["response.done", "rate_limits.updated"]
    assert bench.actions == [GenerateResponse(response.id), CancelGeneration(response.id)]


def test_without_interruption_a_turn_is_answered_after_the_active_response():
    bench = Bench()
    bench.send("session.update", session=detection(interrupt_response=False))
    bench.send("response.create")
    first = bench.engine.active_response
    bench.speak(SPOKEN)
    assert not first.ended
    assert bench.types().count("response.created") == 1
    first.finish(bench.now)
    bench.settle()
    assert bench.engine.active_response not in (None, first)


def test_a_turn_creates_no_response_if_the_session_disables_it():
    bench = Bench()
    bench.send("session.update", session=detection(create_response=False))
    bench.speak(SPOKEN)
    assert bench.engine.active_response is None
    assert len(bench.engine.conversation) == 1


def test_changing_other_settings_than_turn_detection_keeps_the_current_turn():
    bench = Bench()
    bench.speak(SPOKEN[: len(SPOKEN) // 2])
    bench.send("session.update", session={"type": "realtime", "instructions": "Other."})
    bench.speak(SPOKEN[len(SPOKEN) // 2 :])
    assert bench.types().count("input_audio_buffer.speech_started") == 1
    assert bench.types().count("input_audio_buffer.committed") == 1


def test_committing_creates_an_item_from_the_appended_audio():
    bench = Bench()
    bench.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    [error] = bench.send("input_audio_buffer.commit")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"
    bench.speak(make_silence(250))
    bench.send("input_audio_buffer.commit")
    [entry] = bench.engine.conversation
    assert entry.audio_ms == 250
    assert isinstance(bench.actions[-1], TranscribeAudio)
    assert bench.engine.active_response is None
    bench.speak(make_silence(250))
    bench.send("input_audio_buffer.clear")
    assert bench.send("input_audio_buffer.commit")[0]["type"] == "error"


def test_old_audio_is_discarded_but_its_duration_is_kept():
    bench = Bench()
    bench.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    minute = base64.b64encode(make_silence(60_000)).decode()
    for _ in range(20):
        bench.send("input_audio_buffer.append", audio=minute)
        bench.send("input_audio_buffer.commit")
    entries = list(bench.engine.conversation)
    assert [entry.audio_ms for entry in entries] == [60_000] * 20
    assert sum(len(entry.audio) for entry in entries) <= 16 * 2**20
    for entry, has_audio in ((entries[0], False), (entries[-1], True)):
        [frame] = bench.send("conversation.item.retrieve", item_id=entry.id)
        assert ("audio" in frame["item"]["content"][0]) is has_audio


def test_an_item_with_discarded_audio_can_be_truncated():
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
    assert "error" not in bench.types()


def test_the_idle_timeout_starts_a_response():
    bench = Bench()
    bench.send("session.update", session=detection(idle_timeout_ms=6000))
    bench.send("response.create")
    bench.engine.active_response.add_word("Hello", make_silence(2000), bench.now)
    bench.engine.active_response.finish(bench.now)
    bench.settle()
    bench.wait(7.9)
    assert "input_audio_buffer.timeout_triggered" not in bench.types()
    bench.wait(0.2)
    assert bench.types()[-5:] == [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]


def test_the_idle_timeout_does_not_start_while_the_user_speaks():
    bench = Bench()
    bench.send("session.update", session=detection(idle_timeout_ms=6000, interrupt_response=False))
    bench.send("response.create")
    first = bench.engine.active_response
    bench.speak(SPOKEN[: len(SPOKEN) // 2])
    assert bench.types()[-1] == "input_audio_buffer.speech_started"
    first.finish(bench.now)
    bench.settle()
    bench.wait(7)
    assert "input_audio_buffer.timeout_triggered" not in bench.types()


def test_a_response_over_the_token_limit_is_incomplete():
    bench = Bench()
    bench.send("response.create", response={"max_output_tokens": 10})
    response = bench.engine.active_response
    for _ in range(20):
        response.add_word(" word", make_silence(100), bench.now)
    assert response.status == "incomplete"
    done = next(frame for frame in bench.take() if frame["type"] == "response.done")
    assert done["response"]["status_details"]["reason"] == "max_output_tokens"


def test_items_are_inserted_at_the_requested_position():
    bench = Bench()
    for item_id, after in [("b", None), ("d", None), ("c", "b"), ("a", "root")]:
        frames = bench.send("conversation.item.create", item={**USER, "id": item_id}, previous_item_id=after)
    assert frames[0]["previous_item_id"] is None
    assert [item["id"] for item in bench.engine.conversation.items] == ["a", "b", "c", "d"]
    bench.send("conversation.item.delete", item_id="b")
    assert [item["id"] for item in bench.engine.conversation.items] == ["a", "c", "d"]
    for invalid in (
        {"item": {**USER, "id": "a"}},
        {"item": USER, "previous_item_id": "unknown"},
        {"item": {**USER, "id": "x" * 33}},
        {"item": {"type": "function_call_output", "call_id": "unknown", "output": ""}},
        {"item": {**USER, "role": "assistant"}},
    ):
        assert bench.send("conversation.item.create", **invalid)[0]["type"] == "error"
    assert len(bench.engine.conversation) == 3


def test_a_closed_session_sends_nothing():
    bench = Bench(limit_seconds=60)
    bench.send("response.create")
    bench.wait(61)
    assert bench.frames[-1]["error"]["code"] == "session_expired"
    assert bench.actions[-1] == CloseConnection(1001, "session expired")
    assert bench.send("response.create") == []
    assert bench.engine.deadline is None


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_telephone_codecs_work_in_both_directions(name):
    bench, codec = Bench(), CODECS[name]
    audio = {"input": {"format": {"type": name}}, "output": {"format": {"type": name}}}
    bench.send("session.update", session={"type": "realtime", "audio": audio})
    bench.speak(codec.from_pcm(SPOKEN))
    assert "input_audio_buffer.committed" in bench.types()
    bench.engine.active_response.add_word("Yes", SPOKEN[:48_000], bench.now)
    deltas = [frame["delta"] for frame in bench.take() if frame["type"] == "response.output_audio.delta"]
    assert sum(len(base64.b64decode(delta)) for delta in deltas) == 8000


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_every_byte_of_telephone_audio_survives_a_round_trip(name):
    codec = CODECS[name]
    for byte in range(256):
        encoded = codec.from_pcm(codec.to_pcm(bytes([byte] * 3)))
        assert codec.to_pcm(encoded)[:2] == codec.to_pcm(bytes([byte]))[:2]


def update_audio_input(**audio_input):
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
    update_audio_input(turn_detection=None),
    update_audio_input(format={"type": "audio/pcmu"}),
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
        lambda frame, extra: {**frame, **extra}, st.sampled_from(REQUESTS), st.dictionaries(fields, junk, max_size=2)
    ),
    st.text(max_size=20),
    st.binary(max_size=20),
)
audio = st.sampled_from([SPOKEN, SPOKEN[:40_000], make_silence(700), b"", b"\x01"])
index = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(REQUESTS) | garbage),
    st.tuples(st.just("speak"), audio),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 1.0, 8.0])),
    st.tuples(st.just("respond"), st.sampled_from(["word", "word", "call", "finish", "fail"])),
    st.tuples(st.sampled_from(["delete", "retrieve", "insert"]), index),
    st.tuples(st.just("truncate"), st.tuples(index, st.integers(-10, 300))),
)


def run_step(bench, kind, argument):
    """Run one step; an index counts items from the end of the conversation."""
    active = bench.engine.active_response
    ids = [entry.id for entry in bench.engine.conversation][::-1] or ["unknown"]
    match kind, argument:
        case "send", frame:
            bench.engine.receive(frame, bench.now)
        case "speak", pcm:
            bench.speak(pcm)
        case "wait", seconds:
            bench.wait(seconds)
        case "truncate", (at, ms):
            bench.send("conversation.item.truncate", item_id=ids[at % len(ids)], content_index=0, audio_end_ms=ms)
        case "insert", at:
            bench.send("conversation.item.create", item=USER, previous_item_id=ids[at % len(ids)])
        case (("delete" | "retrieve"), at):
            bench.send(f"conversation.item.{kind}", item_id=ids[at % len(ids)])
        case "respond", "word" if active is not None and active.has_audio_output:
            active.add_word(" word", make_silence(120), bench.now)
        case "respond", "word" if active is not None:
            active.add_text(" word", bench.now)
        case "respond", "call" if active is not None:
            active.add_call("f", "{}", bench.now)
        case "respond", "finish" if active is not None:
            active.finish(bench.now)
        case "respond", "fail" if active is not None:
            active.fail("x", "y")
    bench.settle()


def check_responses(bench):
    created = [
        f["response"]["id"]
        for f in bench.frames
        if f["type"] == "response.created" and f["response"]["conversation_id"]
    ]
    done = [
        f["response"]["id"] for f in bench.frames if f["type"] == "response.done" and f["response"]["conversation_id"]
    ]
    assert done == created[: len(done)], "a response ended twice or without a start"
    assert len(created) - len(done) <= 1, "two active responses"
    active = bench.engine.active_response
    assert (active.id if active else None) == (created[-1] if len(created) > len(done) else None)


def order_from_frames(frames):
    """Return the order of the items as a client derives it from the frames."""
    order = []
    for frame in frames:
        if frame["type"] == "conversation.item.added":
            previous = frame["previous_item_id"]
            order.insert(0 if previous is None else order.index(previous) + 1, frame["item"]["id"])
        elif frame["type"] == "conversation.item.deleted":
            order.remove(frame["item_id"])
    return order


def check_any_sequence(script, pace):
    bench = Bench(pace=pace)
    for kind, argument in (("send", REQUESTS[0]), ("respond", "word"), ("respond", "word")):
        run_step(bench, kind, argument)
    for kind, argument in script:
        run_step(bench, kind, argument)
        check_responses(bench)
    assert order_from_frames(bench.frames) == [entry.id for entry in bench.engine.conversation]
    assert msgspec.json.decode(msgspec.json.encode(bench.frames))
    assert [problem for frame in bench.frames for problem in find_type_errors(frame, SERVER_EVENTS)] == []
    for entry in bench.engine.conversation:
        assert entry.truncated_at_ms is None or entry.audio_ms <= entry.truncated_at_ms


@pytest.mark.parametrize("examples", [15, pytest.param(400, marks=pytest.mark.soak)])
def test_any_sequence_of_client_events_keeps_the_engine_consistent(examples):
    scripts, paces = st.lists(steps, min_size=4, max_size=40), st.sampled_from([None, 1.0])
    settings(max_examples=examples, deadline=None)(given(scripts, paces)(check_any_sequence))()
