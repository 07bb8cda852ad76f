"""The order in which held audio is released."""

import asyncio

import pytest

from factories.realtime import (
    agent_with_slow_guardrail,
    audio_chunk,
    in_virtual_time,
    open_scripted_session,
    response_ended,
    response_started,
    short_response,
    text_delta,
)
from standfast import open_store
from standfast.realtime import RealtimeAgent
from standfast.realtime.model_events import (
    RealtimeModelAudioDoneEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelSpeechStartedEvent,
)

HOLD = {"hold_back_audio": True, "timeout": None}


def hold_audio(verdicts):
    """Open a session that holds audio until its text has a verdict."""
    return open_scripted_session(agent_with_slow_guardrail(verdicts), guardrails_settings=HOLD)


def list_released_items(recorded):
    return [event.item_id for event in recorded.of_type("audio")]


@in_virtual_time
async def test_an_answer_is_not_released_before_the_previous_one():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
        verdicts["well"].set()
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        verdicts["fine"].set()
        await recorded.wait_for("agent_end", 2)
        assert list_released_items(recorded) == ["i1", "i2"]
        assert [item.content[0].transcript for item in session.history] == ["fine", "well"]


@in_virtual_time
async def test_an_answer_by_an_agent_without_guardrails_waits_as_well():
    verdicts = {"fine": asyncio.Event()}
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(1, "fine"))
        await session.update_agent(RealtimeAgent(name="other"))
        *unfinished, end = short_response(2, "well")
        await model.emit(*unfinished, RealtimeModelAudioDoneEvent("i2", 0, response_id="r2"))
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == recorded.of_type("audio_end") == []
        verdicts["fine"].set()
        await recorded.wait_for("audio_end")
        await model.emit(end, *short_response(3, "so"))
        await recorded.wait_for("audio", 3)
        assert list_released_items(recorded) == ["i1", "i2", "i3"]


@pytest.mark.parametrize("how", ["refused", "interrupted", "stopped", "timed out"])
@in_virtual_time
async def test_audio_does_not_wait_for_a_response_that_will_not_be_released(how):
    verdicts = {"secret": asyncio.Event(), "well": asyncio.Event()}
    settings = HOLD | {"timeout": 5.0 if how == "timed out" else None}
    async with open_scripted_session(agent_with_slow_guardrail(verdicts), guardrails_settings=settings) as (
        session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, "secret"))
        if how == "interrupted":
            await session.interrupt()
        await model.emit(*short_response(2, "well"))
        verdicts["well"].set()
        if how == "refused":
            verdicts["secret"].set()
        if how == "stopped":
            await model.emit(RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1"))
        assert (await recorded.wait_for("audio")).item_id == "i2"
        await recorded.wait_for("agent_end", 2)
        assert len(recorded.of_type("audio")) == 1


@in_virtual_time
async def test_late_audio_is_released_after_audio_that_already_waits():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["fine"].set()
    async with hold_audio(verdicts) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, "fine"))
        await recorded.wait_for("agent_end")
        await model.emit(*short_response(2, "well"), audio_chunk(100, "i1", "r1"))
        await asyncio.sleep(1)
        verdicts["well"].set()
        await recorded.wait_for("audio", 3)
        assert list_released_items(recorded) == ["i1", "i2", "i1"]


@in_virtual_time
async def test_an_active_answer_continues_when_the_previous_one_was_heard():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with open_scripted_session(
        agent_with_slow_guardrail(verdicts), guardrails_settings=HOLD | {"debounce_text_length": 4}
    ) as (_, model, recorded):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well")[:-1])
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        verdicts["fine"].set()
        assert (await recorded.wait_for("audio", 2)).item_id == "i2"


@in_virtual_time
async def test_a_text_response_does_not_wait_for_held_audio():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(
            *short_response(1, "fine"), response_started("r2"), text_delta("well", "i2", "r2"), response_ended("r2")
        )
        await recorded.wait_for("agent_end", 2)
        assert recorded.of_type("audio") == []


@in_virtual_time
async def test_queued_audio_was_not_heard_when_the_session_closes():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
        await asyncio.sleep(1)
        await session.close()
        await recorded.wait_for("session_closed")
    assert (recorded.of_type("audio"), len(recorded.of_type("agent_end"))) == ([], 2)
    assert [item.content[0].transcript for item in session.history] == ["", ""]


@in_virtual_time
async def test_an_interruption_drops_held_audio_and_announces_its_end_at_once():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
        await asyncio.sleep(1)
        assert len(recorded.of_type("agent_end")) == 1
        await session.interrupt()
        await recorded.wait_for("agent_end", 2)
        verdicts["fine"].set()
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        assert [(item.content[0].transcript, item.content[0].audio_end_ms) for item in session.history] == [("", 0)] * 2


@in_virtual_time
async def test_queued_audio_is_dropped_when_the_user_speaks():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(
            *short_response(1, "fine"), *short_response(2, "well"), response_started("r3"), audio_chunk(100, "i3", "r3")
        )
        await asyncio.sleep(1)
        cuts = [
            RealtimeModelAudioInterruptedEvent(f"i{number}", 0, response_id=f"r{number}", audio_end_ms=0)
            for number in (1, 2, 3)
        ]
        await model.emit(RealtimeModelSpeechStartedEvent("u1", 0), *cuts, response_ended("r3", status="cancelled"))
        verdicts["fine"].set()
        await recorded.wait_for("agent_end", 3)
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        assert [item.content[0].transcript for item in session.history] == ["", ""]


@in_virtual_time
async def test_a_queued_answer_by_an_agent_without_guardrails_was_not_heard_if_stopped():
    verdicts = {"fine": asyncio.Event()}
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(1, "fine"))
        await session.update_agent(RealtimeAgent(name="other"))
        await model.emit(*short_response(2, "well"))
        await model.emit(RealtimeModelAudioInterruptedEvent("i2", 0, response_id="r2"))
        verdicts["fine"].set()
        await asyncio.sleep(1)
        assert list_released_items(recorded) == ["i1"]
        assert [item.content[0].transcript for item in session.history] == ["fine", ""]


@pytest.mark.parametrize("good", [True, False])
@in_virtual_time
async def test_an_answer_over_the_next_connection_follows_the_rest_of_the_lost_one(good):
    text = "fine" if good else "secret"
    verdicts = {text: asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(*short_response(1, text)[:-1])
        await model.drop()
        await recorded.wait_for("reconnected")
        await model.emit(*short_response(2, "well"))
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        verdicts[text].set()
        await recorded.wait_for("agent_end", 2)
        assert list_released_items(recorded) == (["i1", "i2"] if good else ["i2"])


@in_virtual_time
async def test_queued_audio_counts_as_heard_from_its_release():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with open_store("memory://") as store:
        history = store.session("call")
        agent = agent_with_slow_guardrail(verdicts)
        async with open_scripted_session(agent, session=history, guardrails_settings=HOLD) as (
            session,
            model,
            recorded,
        ):
            await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
            await asyncio.sleep(5)
            assert await history.get_items() == []
            verdicts["fine"].set()
            await recorded.wait_for("audio", 2)
            waited = [(metric.subject, round(metric.ms)) for metric in recorded.of_type("metric")]
            assert waited == [("r1", 5000), ("r2", 5000)]
            await asyncio.sleep(0.13)
            played = model.connect_calls[0]["playback_tracker"].get_state()
            assert (played["current_item_id"], round(played["elapsed_ms"])) == ("i2", 30)
            await asyncio.sleep(1)
            assert [item.content[0].transcript for item in session.history] == ["fine", "well"]
        assert [item["content"][0]["text"] for item in await history.get_items()] == ["fine", "well"]


@pytest.mark.parametrize("interrupted", [False, True])
@in_virtual_time
async def test_any_number_of_responses_may_wait(interrupted):
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (session, model, recorded):
        await model.emit(*short_response(0, "fine"))
        for number in range(1, 200):
            await model.emit(*short_response(number, "well"))
        await asyncio.sleep(1)
        assert recorded.of_type("audio") == []
        if interrupted:
            await session.interrupt()
        verdicts["fine"].set()
        await recorded.wait_for("agent_end", 200)
        await asyncio.sleep(1)
        assert list_released_items(recorded) == ([] if interrupted else [f"i{number}" for number in range(200)])


@in_virtual_time
async def test_a_response_whose_end_never_arrives_blocks_no_other_and_gets_its_turn():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with open_scripted_session(
        agent_with_slow_guardrail(verdicts), guardrails_settings=HOLD | {"debounce_text_length": 4}
    ) as (_, model, recorded):
        await model.emit(
            *short_response(1, "fine"),
            *short_response(2, "well")[:-1],
            response_started("r3"),
            audio_chunk(100, "i3", "r3"),
        )
        await asyncio.sleep(1)
        verdicts["fine"].set()
        await recorded.wait_for("audio", 2)
        assert list_released_items(recorded) == ["i1", "i2"]
        await model.emit(text_delta("well", "i3", "r3"), response_ended("r3"))
        assert (await recorded.wait_for("audio", 3)).item_id == "i3"


@in_virtual_time
async def test_unread_audio_is_dropped_by_an_interruption():
    verdicts = {"fine": asyncio.Event(), "well": asyncio.Event()}
    verdicts["well"].set()
    async with hold_audio(verdicts) as (session, model, recorded):
        reader = session.events()
        await model.emit(*short_response(1, "fine"), *short_response(2, "well"))
        verdicts["fine"].set()
        await recorded.wait_for("audio", 2)
        await session.interrupt()
        await session.close()
        assert [event async for event in reader if event.type == "audio"] == []
