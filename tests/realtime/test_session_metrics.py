"""The metrics of a session over a real websocket, as events and in ``session.metrics``."""

import asyncio
import random

from factories.realtime import (
    audio_chunk,
    in_virtual_time,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
)
from standfast import function_tool
from standfast.realtime import OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool
from standfast.testing import RealtimeServer

LONG = "This answer goes on for so long that nobody will wait for the end of it, whoever it is."


@function_tool
async def look_up() -> str:
    await asyncio.sleep(0.02)
    return "found"


AGENT = RealtimeAgent(name="host", tools=[look_up])


async def test_each_measurement_is_an_event_and_in_the_metrics():
    async with RealtimeServer([CallTool("look_up"), "Found.", LONG, "Back."], pace=1.0) as server:
        config = {"reconnect": {"initial_delay": 0.01}}
        runner = RealtimeRunner(AGENT, model=OpenAIRealtimeWebSocketModel(), config=config)
        session = await runner.run(model_config={"url": server.url, "api_key": "test"})
        async with record_events(session) as recorded, session:
            await session.send_message("Look it up.")
            await recorded.wait_for("agent_end", 2)
            await session.send_message("Tell me everything.")
            count = len(recorded.of_type("audio"))
            await recorded.wait_for("audio", count + 3)
            await session.interrupt()
            await recorded.wait_for("agent_end", 3)
            server.connections[0].close()
            await recorded.wait_for("reconnected")
            await session.send_message("Are you there?")
            await recorded.wait_for("agent_end", 4)
            intervals = {}
            for event in recorded.of_type("metric"):
                intervals.setdefault(event.name, []).append(event.ms)
            assert set(intervals) == {"time_to_first_audio", "interruption", "tool_gap", "truncated", "reconnect_gap"}
            for name, values in intervals.items():
                summary = session.metrics[name]
                assert (summary.count, summary.last, summary.maximum) == (len(values), values[-1], max(values)), name
                assert min(values) > 0, name
            assert session.metrics.summaries() == {name: session.metrics[name] for name in intervals}
            assert intervals["tool_gap"][0] >= 20
            assert {name: len(values) for name, values in intervals.items()} == {
                "time_to_first_audio": 3,
                "interruption": 1,
                "tool_gap": 1,
                "truncated": 1,
                "reconnect_gap": 1,
            }


@in_virtual_time
async def test_a_summary_has_the_percentiles_of_what_was_measured():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        for number in random.Random(1).sample(range(1, 21), 20):
            await model.emit(response_started(f"r{number}"))
            await asyncio.sleep(number / 10)
            await model.emit(audio_chunk(1, f"i{number}", f"r{number}"), response_ended(f"r{number}"))
        await recorded.wait_for("metric", 20)
        summary = session.metrics.summaries()["time_to_first_audio"]
        assert [round(ms) for ms in (summary.p50, summary.p95, summary.maximum)] == [1000, 1900, 2000]
        assert summary.count == 20


async def test_what_each_response_consumed_is_an_event_and_the_sum_is_in_the_metrics():
    async with RealtimeServer(["One.", "Two and a bit."]) as server:
        session = await RealtimeRunner(AGENT).run(model_config={"url": server.url, "api_key": "test"})
        async with record_events(session) as recorded, session:
            for number in (1, 2):
                await session.send_message("Go on.")
                await recorded.wait_for("agent_end", number)
            spent = recorded.of_type("usage")
            assert [event.response_id for event in spent] == [
                event.response_id for event in recorded.of_type("agent_end")
            ]
            assert all(event.usage.output_tokens > 0 and event.usage.requests == 1 for event in spent)
            assert spent[0].output_tokens_details.audio_tokens > 0
            assert session.metrics.usage.output_tokens == sum(event.usage.output_tokens for event in spent)
            assert session.metrics.usage.requests == session.usage.requests == 2
