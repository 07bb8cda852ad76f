"""Which events an iteration over a session yields."""

import typing
from typing import Any

import agents.realtime

import standfast.realtime
from factories.realtime import audio_chunk, open_scripted_session, response_ended, response_started, text_delta
from standfast.realtime import RealtimeAgent


def list_names(union: Any) -> set[str]:
    return {kind.__name__ for kind in typing.get_args(union)}


def test_the_events_are_those_of_openai_agents() -> None:
    expected = list_names(agents.realtime.RealtimeSessionEvent)
    assert list_names(standfast.realtime.RealtimeSessionEvent) == expected
    assert not list_names(standfast.realtime.RealtimeAdditionalEvent) & expected


async def test_additional_events_must_be_requested() -> None:
    async with open_scripted_session(RealtimeAgent(name="host")) as (session, model, recorded):
        plain = aiter(session)
        await model.emit(response_started(), text_delta("hi"), audio_chunk(), response_ended())
        await recorded.wait_for("agent_end")
        await session.close()
        kinds = {event.type async for event in plain}
    assert {"agent_start", "audio", "agent_end"} <= kinds
    assert not kinds & {"transcript_delta", "usage", "metric", "session_closed"}
    assert {"transcript_delta", "session_closed"} <= {event.type for event in recorded.events}
