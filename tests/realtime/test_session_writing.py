"""What was said is written to a history session, and a later call or a text run goes on from it."""

import asyncio

from holdfast import Agent, Runner, function_tool, open_store
from holdfast.base.pairing import unpaired
from holdfast.realtime import RealtimeAgent, RealtimeModelSendRawMessage
from holdfast.realtime.items import InputAudio, InputImage, InputText, UserMessageItem
from holdfast.realtime.model_events import (
    RealtimeModelInputAudioTranscriptionCompletedEvent,
    RealtimeModelInputAudioTranscriptionFailedEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemTruncatedEvent,
    RealtimeModelItemUpdatedEvent,
)
from holdfast.testing import ScriptedModel, assistant_message
from realtime_kit import call, ended, eventually, sent, sound, started, talking, user_said, words

AGENT = RealtimeAgent(name="host")


def texts(items):
    found = []
    for item in items:
        content = item.get("content", item.get("name") or item.get("output"))
        found.append(content if isinstance(content, str) else content[-1]["text"])
    return found


async def grown(session, count):
    async with asyncio.timeout(5):
        while len(items := await session.get_items()) < count:  # noqa: ASYNC110 - a history has no event
            await asyncio.sleep(0.001)
    return items


@function_tool
async def weather(city: str) -> str:
    return f"sunny in {city}"


async def test_a_call_is_written_while_it_goes_on_and_ended_with_the_session():
    async with open_store("memory://") as store:
        history = store.session("call-1")
        agent = RealtimeAgent(name="a", tools=[weather])
        async with talking(agent, session=history) as (_session, model, heard):
            await model.emit(user_said("weather?"), started(), call("weather", arguments='{"city": "Rome"}'), ended())
            await heard.until("tool_end")
            items = await grown(history, 3)
            assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
            await model.emit(started("r2"), words("Sunny.", "i2", "r2"), sound(100, "i2", "r2"), ended("r2"))
            await heard.until("agent_end", 2)
            assert len(await history.get_items()) == 3  # It may still be interrupted.
        items = await history.get_items()
        assert texts(items) == ["weather?", "weather", "sunny in Rome", "Sunny."]
        assert unpaired(items) == []


async def test_only_what_was_heard_is_written():
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, _heard):
            await model.emit(started(), words("one two three four"), sound(1000), ended())
            await model.emit(RealtimeModelItemTruncatedEvent("i1", 0, 500), user_said("stop", previous="i1"))
            assert texts(await grown(history, 2)) == ["one two", "stop"]


async def test_what_the_user_said_waits_for_its_transcript_and_keeps_its_place():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, heard):
            await model.emit(RealtimeModelItemUpdatedEvent(spoken), started(), words("hello"), ended())
            await heard.until("agent_end")
            await model.emit(user_said("more", "u2", "i1"))
            assert await history.get_items() == []
            await model.emit(RealtimeModelInputAudioTranscriptionCompletedEvent("u1", "good day"))
            assert texts(await grown(history, 3)) == ["good day", "hello", "more"]


async def test_what_cannot_be_transcribed_does_not_hold_up_the_rest():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, _heard):
            await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_said("written", "u2", "u1"))
            await model.emit(RealtimeModelInputAudioTranscriptionFailedEvent("u1", 0, {"code": "x"}))
            assert texts(await grown(history, 2)) == ["[inaudible]", "written"]


async def test_what_is_never_transcribed_holds_up_the_rest_for_a_while_only():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, _heard):
            await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_said("two", "u2", "u1"))
            await asyncio.sleep(0.01)
            assert await history.get_items() == []
            await model.emit(user_said("three", "u3", "u2"))
            assert texts(await grown(history, 3)) == ["[inaudible]", "two", "three"]


async def test_a_lost_connection_will_not_transcribe_any_more():
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, heard):
            await model.emit(RealtimeModelItemUpdatedEvent(spoken), user_said("two", "u2", "u1"))
            await model.drop()
            await heard.until("reconnected")
            assert texts(await grown(history, 2)) == ["[inaudible]", "two"]


async def test_an_item_that_comes_late_or_goes_early_does_not_confuse_the_writer():
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, _heard):
            await model.emit(user_said("one", "u1"), user_said("three", "u3", "u1"))
            await grown(history, 2)
            await model.emit(user_said("two", "u2", "u1"), RealtimeModelItemDeletedEvent("u1"), user_said("four", "u4"))
            assert texts(await grown(history, 4)) == ["one", "three", "two", "four"]


async def test_pictures_are_written_with_their_words():
    item = UserMessageItem(item_id="u1", content=[InputImage(image_url="data:x"), InputText(text="look")])
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(AGENT, session=history) as (_session, model, _heard):
            await model.emit(RealtimeModelItemUpdatedEvent(item))
            (written,) = await grown(history, 1)
            assert [part["type"] for part in written["content"]] == ["input_image", "input_text"]


async def test_a_call_that_was_never_answered_leaves_no_half_pair():
    @function_tool(needs_approval=True)
    async def delete() -> str:
        return ""

    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(RealtimeAgent(name="a", tools=[delete]), session=history) as (_session, model, heard):
            await model.emit(started(), call("delete"), ended())
            await heard.until("tool_approval_required")
        items = await history.get_items()
        assert [item["type"] for item in items] == ["function_call", "function_call_output"]
        assert unpaired(items) == []


async def test_a_later_call_goes_on_from_the_history():
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
        async with talking(AGENT, session=history) as (session, model, _heard):
            raw = [event.message["other_data"]["item"] for event in sent(model, RealtimeModelSendRawMessage)]
            assert [item["type"] for item in raw] == ["message", "message", "function_call", "function_call_output"]
            assert [item.get("role") for item in raw[:2]] == ["user", "assistant"]
            assert len(session.history) == 3
            await model.emit(user_said("Who am I?", "u9"))
            await grown(history, 6)
        assert len(await history.get_items()) == 6


async def test_a_text_run_goes_on_from_a_call():
    async with open_store("memory://") as store:
        history = store.session("s")
        async with talking(RealtimeAgent(name="a", tools=[weather]), session=history) as (_session, model, heard):
            await model.emit(user_said("weather?"), started(), call("weather", arguments='{"city": "Rome"}'), ended())
            await heard.until("tool_end")
            await model.emit(started("r2"), words("Sunny.", "i2", "r2"), ended("r2"))
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


async def test_a_write_that_failed_is_told_and_made_later():
    history = Failing(1)
    async with talking(AGENT, session=history) as (_session, model, heard):
        await model.emit(user_said("one", "u1"))
        assert "away" in str((await heard.until("error")).error)
        await model.emit(user_said("two", "u2"))
        await eventually(lambda: len(history.items) == 2)
    assert texts(history.items) == ["one", "two"]


async def test_what_could_not_be_written_is_in_the_report():
    async with talking(AGENT, session=Failing(99)) as (session, model, heard):
        await model.emit(user_said("one", "u1"), user_said("two", "u2"))
        await heard.until("error")
        assert (await session.close()).unwritten == 2
