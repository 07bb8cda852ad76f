"""The history writer: a session is written to a history, and later sessions and runs continue from it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    audio_chunk,
    get_sent_inputs,
    get_texts,
    in_virtual_time,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    user_message_added,
    wait_until,
)
from standfast import Agent, Runner, function_tool, open_store
from standfast.base.item_pairs import find_unpaired
from standfast.realtime import (
    LocalRealtimeModel,
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimePlaybackTracker,
    RealtimeRunner,
)
from standfast.realtime._session.history_writer import TRANSCRIPT_TIMEOUT
from standfast.realtime._session.playback_clock import MAX_PLAYER_LAG
from standfast.realtime.items import InputAudio, InputImage, InputText, UserMessageItem
from standfast.realtime.model_events import (
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelInputAudioTranscriptionFailedEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelItemUpdatedEvent,
)
from standfast.testing import ScriptedModel, assistant_message

AGENT = RealtimeAgent(name="host")


def texts(items):
    found = []
    for item in items:
        content = item.get("content", item.get("name") or item.get("output"))
        found.append(content if isinstance(content, str) else content[-1]["text"])
    return found


@asynccontextmanager
async def remembered(tracker=None):
    """Open a session with a history, optionally with a playback tracker; yields the history and the model."""
    config = {} if tracker is None else {"playback_tracker": tracker}
    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(AGENT, session=history, model_config=config) as (_session, model, _recorded):
            yield history, model


async def grown(session, count):
    async with asyncio.timeout(WAIT_TIMEOUT):
        while len(items := await session.get_items()) < count:  # noqa: ASYNC110 - a history has no event
            await asyncio.sleep(0.001)
    return items


@function_tool
async def weather(city: str) -> str:
    return f"sunny in {city}"


async def test_a_call_is_written_while_it_continues_and_ended_with_the_session():
    async with open_store("memory://") as store:
        history = store.session("call-1")
        agent = RealtimeAgent(name="a", tools=[weather])
        async with open_scripted_session(agent, session=history) as (_session, model, recorded):
            await model.emit(
                user_message_added("weather?"),
                response_started(),
                tool_call("weather", arguments='{"city": "Rome"}'),
                response_ended(),
            )
            await recorded.wait_for("tool_end")
            items = await grown(history, 3)
            assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
            await model.emit(
                response_started("r2"),
                text_delta("Sunny.", "i2", "r2"),
                audio_chunk(100, "i2", "r2"),
                response_ended("r2"),
            )
            await recorded.wait_for("agent_end", 2)
            assert len(await history.get_items()) == 3  # It may still be interrupted.
        items = await history.get_items()
        assert texts(items) == ["weather?", "weather", "sunny in Rome", "Sunny."]
        assert find_unpaired(items) == []


async def test_only_what_was_heard_is_written():
    async with remembered() as (history, model):
        await model.emit(response_started(), text_delta("one two three four"), audio_chunk(1000), response_ended())
        await model.emit(RealtimeModelItemTruncatedEvent("i1", 0, 500), user_message_added("stop", previous="i1"))
        assert texts(await grown(history, 2)) == ["one two", "stop"]


@in_virtual_time
async def test_an_answer_that_still_plays_is_not_written_although_the_conversation_continued():
    async with remembered() as (history, model):
        await model.emit(
            response_started(),
            text_delta("one two three four"),
            audio_chunk(10_000),
            response_ended(),
            user_message_added("and?"),
        )
        await asyncio.sleep(5)
        assert await history.get_items() == []
        stopped = RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=5_000)
        await model.emit(stopped)
        assert texts(await grown(history, 2)) == ["one two", "and?"]
        await model.emit(
            response_started("r2"),
            text_delta("five six", "i2", "r2"),
            audio_chunk(10_000, "i2", "r2"),
            response_ended("r2"),
        )
        await model.emit(user_message_added("so?", "u2"))
        await asyncio.sleep(10)
        assert texts(await grown(history, 4)) == ["one two", "and?", "five six", "so?"]


@in_virtual_time
async def test_a_message_that_was_heard_is_written_although_the_conversation_does_not_continue():
    async with remembered() as (history, model):
        await model.emit(
            user_message_added("say"),
            response_started(),
            text_delta("one two three four"),
            audio_chunk(10_000),
            response_ended(),
        )
        await asyncio.sleep(10)
        assert texts(await history.get_items()) == ["say"]
        await asyncio.sleep(3)
        assert texts(await history.get_items()) == ["say", "one two three four"]


@in_virtual_time
async def test_an_answer_that_its_player_has_not_finished_waits_for_it():
    async with remembered(tracker := RealtimePlaybackTracker()) as (history, model):
        tracker.on_play_ms("i1", 0, 100)
        await model.emit(
            response_started(),
            text_delta("one two three four"),
            audio_chunk(10_000),
            response_ended(),
            user_message_added("and?"),
        )
        tracker.on_play_ms("i1", 0, 4_900)
        await asyncio.sleep(15)
        assert await history.get_items() == []
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=5_000))
        assert texts(await grown(history, 2)) == ["one two", "and?"]
        await model.emit(
            response_started("r2"),
            text_delta("five six", "i2", "r2"),
            audio_chunk(10_000, "i2", "r2"),
            response_ended("r2"),
        )
        await model.emit(user_message_added("so?", "u2"))
        await asyncio.sleep(15)
        assert len(await history.get_items()) == 2
        tracker.on_play_ms("i2", 0, 9_990)
        await asyncio.sleep(2)
        assert texts(await history.get_items()) == ["one two", "and?", "five six", "so?"]


@in_virtual_time
async def test_an_answer_that_its_player_has_not_begun_waits_for_it():
    async with remembered(tracker := RealtimePlaybackTracker()) as (history, model):
        await model.emit(response_started(), text_delta("one two"), audio_chunk(1_000), response_ended())
        await asyncio.sleep(MAX_PLAYER_LAG / 2)
        assert await history.get_items() == []
        tracker.on_play_ms("i1", 0, 1_000)
        await asyncio.sleep(2)
        assert texts(await history.get_items()) == ["one two"]


@in_virtual_time
async def test_an_answer_waits_for_a_player_that_has_not_begun_to_play():
    async with remembered(tracker := RealtimePlaybackTracker()) as (history, model):
        await model.emit(
            response_started(), text_delta("one two"), audio_chunk(1_000), response_ended(), user_message_added("and?")
        )
        await asyncio.sleep(3)
        assert await history.get_items() == []
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500))
        assert texts(await grown(history, 2)) == ["one", "and?"]
        await model.emit(
            response_started("r2"),
            text_delta("three", "i2", "r2"),
            audio_chunk(1_000, "i2", "r2"),
            response_ended("r2"),
        )
        await model.emit(user_message_added("so?", "u2"))
        await asyncio.sleep(3)
        assert len(await history.get_items()) == 2
        tracker.on_play_ms("i2", 0, 1_000)
        await asyncio.sleep(2)
        assert texts(await history.get_items()) == ["one", "and?", "three", "so?"]


@in_virtual_time
async def test_an_answer_stopped_just_after_the_next_one_is_written_as_heard():
    async with remembered(RealtimePlaybackTracker()) as (history, model):
        await model.emit(response_started(), text_delta("one two"), audio_chunk(300), response_ended())
        await model.emit(
            response_started("r2"), text_delta("three", "i2", "r2"), audio_chunk(300, "i2", "r2"), response_ended("r2")
        )
        await asyncio.sleep(1)
        await model.emit(RealtimeModelAudioInterruptedEvent("i2", 0, response_id="r2", audio_end_ms=0))
        await asyncio.sleep(0.5)
        assert await history.get_items() == []
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=200))
        assert texts(await grown(history, 1)) == ["one"]


@in_virtual_time
async def test_an_answer_that_was_played_does_not_wait_when_the_next_one_is_stopped():
    async with remembered(tracker := RealtimePlaybackTracker()) as (history, model):
        await model.emit(response_started(), text_delta("one two"), audio_chunk(100), response_ended())
        await asyncio.sleep(0.2)
        tracker.on_play_ms("i1", 0, 100)
        await model.emit(response_started("r2"), text_delta("three four", "i2", "r2"), audio_chunk(1_000, "i2", "r2"))
        tracker.on_interrupted()
        await model.emit(
            RealtimeModelAudioInterruptedEvent("i2", 0, response_id="r2", audio_end_ms=500), response_ended("r2")
        )
        assert texts(await grown(history, 2)) == ["one two", "three"]


@in_virtual_time
async def test_a_player_that_stops_reporting_delays_the_history_for_a_limited_time():
    async with remembered(tracker := RealtimePlaybackTracker()) as (history, model):
        await model.emit(
            response_started(), text_delta("one two"), audio_chunk(1_000), response_ended(), user_message_added("and?")
        )
        tracker.on_play_ms("i1", 0, 500)
        await asyncio.sleep(MAX_PLAYER_LAG / 2)
        assert await history.get_items() == []
        await asyncio.sleep(MAX_PLAYER_LAG)
        assert texts(await history.get_items()) == ["one two", "and?"]


@in_virtual_time
async def test_a_stopped_answer_does_not_make_later_ones_count_as_heard_earlier():
    def stopped(item_id, response_id, recorded):
        return RealtimeModelAudioInterruptedEvent(item_id, 0, response_id=response_id, audio_end_ms=recorded)

    async with remembered() as (history, model):
        await model.emit(response_started(), text_delta("one two"), audio_chunk(4_000), response_ended())
        await model.emit(
            response_started("r2"),
            text_delta("refused", "i2", "r2"),
            audio_chunk(4_000, "i2", "r2"),
            response_ended("r2"),
        )
        await model.emit(stopped("i2", "r2", 0))
        await model.emit(
            response_started("r3"),
            text_delta("three four", "i3", "r3"),
            audio_chunk(2_000, "i3", "r3"),
            response_ended("r3"),
        )
        await asyncio.sleep(5)
        await model.emit(user_message_added("hm?"))
        await asyncio.sleep(0.1)
        assert texts(await history.get_items()) == ["one two"]
        await model.emit(stopped("i3", "r3", 1_100))
        assert texts(await grown(history, 3)) == ["one two", "three", "hm?"]


async def test_a_user_message_waits_for_its_transcript_and_keeps_its_position():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(AGENT, session=history) as (_session, model, recorded):
            await model.emit(
                RealtimeModelItemUpdatedEvent(spoken), response_started(), text_delta("hello"), response_ended()
            )
            await recorded.wait_for("agent_end")
            await model.emit(user_message_added("more", "u2", "i1"))
            assert await history.get_items() == []
            await model.emit(RealtimeModelInputAudioTranscriptionCompletedEvent("u1", "good day"))
            assert texts(await grown(history, 3)) == ["good day", "hello", "more"]


async def test_audio_that_cannot_be_transcribed_does_not_delay_later_items():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with remembered() as (history, model):
        await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_message_added("written", "u2", "u1"))
        await model.emit(RealtimeModelInputAudioTranscriptionFailedEvent("u1", 0, {"code": "x"}))
        assert texts(await grown(history, 2)) == ["[inaudible]", "written"]


@in_virtual_time
async def test_audio_that_is_never_transcribed_delays_later_items_for_a_limited_time():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with remembered() as (history, model):
        await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_message_added("two", "u2", "u1"))
        await asyncio.sleep(TRANSCRIPT_TIMEOUT - 1)
        assert await history.get_items() == []
        await asyncio.sleep(2)
        assert texts(await history.get_items()) == ["[inaudible]", "two"]


@in_virtual_time
async def test_later_writes_do_not_shorten_the_wait_for_a_transcript():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with remembered() as (history, model):
        await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_message_added("two", "u2", "u1"))
        await model.emit(user_message_added("three", "u3", "u2"), user_message_added("four", "u4", "u3"))
        await asyncio.sleep(1)
        await model.emit(RealtimeModelInputAudioTranscriptionCompletedEvent("u1", "one"))
        assert texts(await grown(history, 4)) == ["one", "two", "three", "four"]


async def test_transcripts_of_a_lost_connection_are_not_waited_for():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(AGENT, session=history) as (_session, model, recorded):
            await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_message_added("two", "u2", "u1"))
            await model.drop()
            await recorded.wait_for("reconnected")
            assert texts(await grown(history, 2)) == ["[inaudible]", "two"]


async def test_late_and_deleted_items_do_not_confuse_the_writer():
    async with remembered() as (history, model):
        await model.emit(user_message_added("one", "u1"), user_message_added("three", "u3", "u1"))
        await grown(history, 2)
        await model.emit(
            user_message_added("two", "u2", "u1"), RealtimeModelItemDeletedEvent("u1"), user_message_added("four", "u4")
        )
        assert texts(await grown(history, 4)) == ["one", "three", "two", "four"]


async def test_pictures_are_written_with_their_text():
    item = UserMessageItem(item_id="u1", content=[InputImage(image_url="data:x"), InputText(text="look")])
    async with remembered() as (history, model):
        await model.emit(RealtimeModelItemUpdatedEvent(item))
        (written,) = await grown(history, 1)
        assert [part["type"] for part in written["content"]] == ["input_image", "input_text"]


async def test_a_call_that_was_never_answered_leaves_no_half_pair():
    @function_tool(needs_approval=True)
    async def delete() -> str:
        return ""

    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(RealtimeAgent(name="a", tools=[delete]), session=history) as (
            _session,
            model,
            recorded,
        ):
            await model.emit(response_started(), tool_call("delete"), response_ended())
            await recorded.wait_for("tool_approval_required")
        items = await history.get_items()
        assert [item["type"] for item in items] == ["function_call", "function_call_output"]
        assert find_unpaired(items) == []


async def test_a_later_call_continues_from_the_history():
    async with open_store("memory://") as store:
        history = store.session("s")
        await history.add_items(
            [
                {"role": "user", "content": "I am Ann."},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello Ann."}]},
                {"type": "function_call", "call_id": "c0", "name": "note", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c0", "output": "noted"},
                {"type": "function_call", "call_id": "dangling", "name": "note", "arguments": "{}"},
            ]
        )
        async with open_scripted_session(AGENT, session=history) as (session, model, _recorded):
            raw = [event.message["other_data"]["item"] for event in get_sent_inputs(model, RealtimeModelSendRawMessage)]
            assert [item["type"] for item in raw] == ["message", "message", "function_call", "function_call_output"]
            assert [item.get("role") for item in raw[:2]] == ["user", "assistant"]
            assert len(session.history) == 3
            await model.emit(user_message_added("Who am I?", "u9"))
            await grown(history, 6)
        assert len(await history.get_items()) == 6


async def test_a_call_that_continues_from_a_history_with_tools_has_it_in_its_order():
    async with open_store("memory://") as store:
        history = store.session("s")
        await history.add_items(
            [
                {"role": "user", "content": "weather?"},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
                {"role": "assistant", "content": "Sunny."},
                {"role": "user", "content": "Thanks."},
                {"role": "assistant", "content": "Welcome."},
            ]
        )
        model = LocalRealtimeModel(["Again?"], pace=None)
        session = await RealtimeRunner(AGENT, model=model).run(session=history)
        async with record_events(session) as recorded, session:
            await session.send_message("Hello.")
            await recorded.wait_for("agent_end")
            names = [item.item_id for item in session.history]
            held = [entry.item["id"] for entry in model.engine.conversation]
            assert names == [name for name in held if name in names]
            assert get_texts(session) == ["weather?", "Sunny.", "Thanks.", "Welcome.", "Hello.", "Again?"]


async def test_a_text_run_continues_from_a_call():
    async with open_store("memory://") as store:
        history = store.session("s")
        async with open_scripted_session(RealtimeAgent(name="a", tools=[weather]), session=history) as (
            _session,
            model,
            recorded,
        ):
            await model.emit(
                user_message_added("weather?"),
                response_started(),
                tool_call("weather", arguments='{"city": "Rome"}'),
                response_ended(),
            )
            await recorded.wait_for("tool_end")
            await model.emit(response_started("r2"), text_delta("Sunny.", "i2", "r2"), response_ended("r2"))
        text = ScriptedModel([[assistant_message("In Rome.")]])
        result = await Runner.run(Agent(name="t", model=text), "Where was that?", session=history)
        assert result.final_output == "In Rome."
        assert texts(text.first_call.input) == ["weather?", "weather", "sunny in Rome", "Sunny.", "Where was that?"]


class Failing:
    """A history whose database is away for a while."""

    session_settings = None
    session_id = "failing"

    def __init__(self, failures):
        self.failures, self.items = failures, []

    async def get_items(self, limit=None):
        return list(self.items)

    async def add_items(self, items):
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        self.items += items

    async def pop_item(self):
        return None

    async def clear_session(self):
        self.items.clear()


async def test_a_failed_write_is_reported_and_retried():
    history = Failing(1)
    async with open_scripted_session(AGENT, session=history) as (_session, model, recorded):
        await model.emit(user_message_added("one", "u1"))
        assert "away" in str((await recorded.wait_for("error")).error)
        await model.emit(user_message_added("two", "u2"))
        await wait_until(lambda: len(history.items) == 2)
    assert texts(history.items) == ["one", "two"]


async def test_a_history_that_is_unavailable_is_reported_once_each_time():
    history = Failing(20)
    async with open_scripted_session(AGENT, session=history) as (_session, model, recorded):
        for number in range(21):
            await model.emit(user_message_added(str(number), f"u{number}"))
            await wait_until(lambda done=number: history.failures == max(0, 19 - done))
        await wait_until(lambda: len(history.items) == 21)
        assert len(recorded.of_type("error")) == 1
        history.failures = 1
        await model.emit(user_message_added("more", "more"))
        await recorded.wait_for("error", 2)


async def test_items_that_could_not_be_written_are_in_the_report():
    async with open_scripted_session(AGENT, session=Failing(99)) as (session, model, recorded):
        await model.emit(user_message_added("one", "u1"), user_message_added("two", "u2"))
        await recorded.wait_for("error")
        assert (await session.close()).unwritten_count == 2


class Hanging(Failing):
    """A history whose database has stopped to answer."""

    def __init__(self):
        super().__init__(0)
        self.writes, self.most_writes = 0, 0

    async def add_items(self, items):
        self.writes += 1
        self.most_writes = max(self.writes, self.most_writes)
        try:
            await asyncio.sleep(1_000)
        finally:
            self.writes -= 1


@pytest.mark.parametrize("deadline", [0.2, 2.0])
@in_virtual_time
async def test_a_hanging_history_delays_the_end_up_to_the_deadline(deadline):
    history, now = Hanging(), asyncio.get_running_loop().time
    async with open_scripted_session(AGENT, session=history) as (session, model, _recorded):
        await model.emit(user_message_added("one", "u1"))
        await asyncio.sleep(1)
        began = now()
        report = await session.close(deadline)
        assert now() - began <= deadline + 0.01
        assert (report.cancelled, report.still_running, report.unwritten_count) == (("history",), (), 1)
    assert (history.writes, history.most_writes) == (0, 1)
