"""Models that report an interruption without how much was heard: the session's own clock decides."""

import asyncio
from typing import Any

import pytest

from factories.realtime import (
    audio_chunk,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    text_delta,
)
from standfast.realtime import RealtimeAgent, RealtimePlaybackTracker
from standfast.realtime.items import AssistantAudio, AssistantMessageItem, AssistantText
from standfast.realtime.model_events import RealtimeModelAudioInterruptedEvent, RealtimeModelItemUpdatedEvent
from standfast.realtime.testing import ScriptedRealtimeModel

AGENT = RealtimeAgent(name="host")
SENTENCE = "one two three four five six seven eight nine ten"


def announce(*content: Any, status: str = "completed") -> RealtimeModelItemUpdatedEvent:
    item = AssistantMessageItem(item_id="i1", status=status, content=list(content))
    return RealtimeModelItemUpdatedEvent(item, response_id="r1")


def get_words(session: Any) -> str:
    return str(session.history[0].content[0].transcript)


WORDLESS = [
    [AssistantAudio()],
    [AssistantAudio(transcript="")],
    [AssistantAudio(transcript=SENTENCE)],
    [],
    [AssistantText(text=SENTENCE)],
    [AssistantAudio(transcript=SENTENCE[:-1])],
    [AssistantAudio(transcript=SENTENCE.removesuffix(" ten"))],
    [AssistantAudio(transcript=SENTENCE.removesuffix(" nine ten"))],
    [AssistantText(text=SENTENCE[:-1])],
]


@pytest.mark.parametrize("content", WORDLESS)
def test_an_interrupted_item_does_not_regain_unheard_text(content: list[Any]) -> None:
    @in_virtual_time
    async def check() -> None:
        model = ScriptedRealtimeModel(strict=False)
        async with open_scripted_session(AGENT, model) as (session, *_):
            await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000))
            await asyncio.sleep(0.5)
            await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
            assert get_words(session) == "one two three four five"[: len(get_words(session))]
            recorded = get_words(session)
            assert 0 < len(recorded) <= len(SENTENCE) // 2
            await model.emit(announce(*content), response_ended(status="cancelled"))
            assert get_words(session) == recorded
            await model.emit(announce(*content), announce(AssistantAudio()))
            assert get_words(session) == recorded
            assert session.history[0].content[0].audio_end_ms == 500

    check()


@in_virtual_time
async def test_a_more_exact_position_of_the_model_is_used() -> None:
    model = ScriptedRealtimeModel(strict=False)
    async with open_scripted_session(AGENT, model) as (session, *_):
        await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000))
        await asyncio.sleep(0.5)
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
        for words in ("one two", "one two three four five six"):
            await model.emit(announce(AssistantAudio(transcript=words)))
            assert get_words(session) == words


@pytest.mark.parametrize("added", [AssistantAudio(transcript=SENTENCE), AssistantText(text=SENTENCE)])
def test_later_parts_of_an_interrupted_item_were_not_heard(added: Any) -> None:
    @in_virtual_time
    async def check() -> None:
        model = ScriptedRealtimeModel(strict=False)
        async with open_scripted_session(AGENT, model) as (session, *_):
            await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000))
            await asyncio.sleep(0.5)
            await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
            recorded = get_words(session)
            await model.emit(announce(AssistantAudio(), added), response_ended(status="cancelled"))
            assert get_words(session) == recorded
            assert "nine" not in str([part.model_dump().get("transcript") for part in session.history[0].content])
            assert "nine" not in str([part.model_dump().get("text") for part in session.history[0].content])

    check()


@in_virtual_time
async def test_audio_that_had_not_begun_to_play_was_not_heard() -> None:
    model = ScriptedRealtimeModel(strict=False)
    async with open_scripted_session(AGENT, model) as (session, *_):
        await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000))
        await model.emit(text_delta("later", "i2"), audio_chunk(1000, "i2"))
        await asyncio.sleep(0.05)
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0), RealtimeModelAudioInterruptedEvent("i2", 0))
        assert [item.content[0].transcript for item in session.history] == ["", ""]
        assert session.history[0].content[0].audio_end_ms == 50


@in_virtual_time
async def test_a_playback_tracker_takes_precedence() -> None:
    model, tracker = ScriptedRealtimeModel(strict=False), RealtimePlaybackTracker()
    async with open_scripted_session(AGENT, model, model_config={"playback_tracker": tracker}) as (session, *_):
        await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000))
        await asyncio.sleep(0.9)
        tracker.on_play_ms("i1", 0, 200)
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
        assert session.history[0].content[0].audio_end_ms == 200


@in_virtual_time
async def test_an_item_that_was_heard_to_its_end_stays_complete() -> None:
    model = ScriptedRealtimeModel(strict=False)
    async with open_scripted_session(AGENT, model) as (session, *_):
        await model.emit(response_started(), text_delta(SENTENCE), audio_chunk(1000), response_ended())
        await asyncio.sleep(2.0)
        await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0))
        assert get_words(session) == SENTENCE
