"""Playback trackers of the program that raise."""

import asyncio

import pytest

from factories.realtime import get_texts, in_virtual_time, record_events
from standfast import open_store
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimePlaybackTracker, RealtimeRunner

LONG = "One two three four five six seven eight nine ten."


class Fails(RealtimePlaybackTracker):
    """One that fails in one of its methods."""

    def __init__(self, method):
        super().__init__()
        self._method = method

    def get_state(self):
        if self._method == "get_state":
            raise RuntimeError("the player is not there yet")
        return {} if self._method == "no state" else super().get_state()

    def on_interrupted(self):
        super().on_interrupted()
        if self._method == "on_interrupted":
            raise RuntimeError("the browser has gone")


@pytest.mark.parametrize("method", ["get_state", "no state", "on_interrupted"])
@in_virtual_time
async def test_a_failing_playback_tracker_affects_neither_connection_nor_history(method, caplog):
    model = LocalRealtimeModel([LONG, "Two.", "Three."])
    async with open_store("memory://") as store:
        history = store.session("s")
        runner = RealtimeRunner(RealtimeAgent(name="host"), model=model)
        session = await runner.run(model_config={"playback_tracker": Fails(method)}, session=history)
        async with record_events(session) as recorded, session:
            await session.send_message("first")
            await recorded.wait_for("audio", 5)
            await session.interrupt()
            await session.send_message("second")
            await recorded.wait_for("agent_end", 2)
            await session.send_message("third")
            await recorded.wait_for("agent_end", 3)
            await asyncio.sleep(120)
            assert (recorded.of_type("reconnecting"), recorded.of_type("error")) == ([], [])
            assert recorded.of_type("audio_interrupted")
            assert get_texts(session) == ["first", "", "second", "Two.", "third", "Three."]
            assert len(await history.get_items()) == 5
    assert "the playback tracker raised" in caplog.text
