"""Heard audio: whatever is added together, each part plays after the one before it, at the speed of speech."""

import asyncio
import random

import pytest

from factories.realtime import in_virtual_time
from standfast.realtime._session.playback_clock import ReleasedAudioTracker
from standfast.realtime.events import RealtimeAudio
from standfast.realtime.model_events import RealtimeModelAudioEvent

BYTES_PER_MS = 48


class SimplePlayer:
    """Plays one millisecond after the other; slow, and obviously right."""

    def __init__(self):
        self.queue, self.heard, self.at = [], {}, 0

    def add(self, key, ms):
        self.queue.extend([key] * ms)

    def advance(self, until):
        played, self.queue = self.queue[: until - self.at], self.queue[until - self.at :]
        for key in played:
            self.heard[key] = self.heard.get(key, 0) + 1
        self.at = until

    def stop(self, response_id):
        self.queue = [key for key in self.queue if key[0] != response_id]


@pytest.mark.parametrize("seed", range(30))
@in_virtual_time
async def test_audio_released_in_any_rhythm_is_heard_when_it_has_played(seed):
    dice, tracker, player = random.Random(seed), ReleasedAudioTracker(), SimplePlayer()
    loop = asyncio.get_running_loop()
    began, keys = loop.time(), [("r0", "i0", 0)]

    def check(key):
        player.advance(round((loop.time() - began) * 1000))
        assert round(tracker.get_heard_seconds(*key[1:]) * 1000) == player.heard.get(key, 0)

    for number in range(1, 150):
        await asyncio.sleep(dice.choice((0, 0, 1, 5, 20, 300)) / 1000)
        check(dice.choice(keys)) if dice.random() < 0.2 else player.advance(round((loop.time() - began) * 1000))
        response, item, index = keys[-1]
        match dice.randrange(15):
            case 0:
                keys.append((response, item, index + 1))
            case 1:
                keys.append((response, f"i{number}", 0))
            case 2:  # it gets no more audio, as in a session
                tracker.stop_response(response)
                player.stop(response)
                keys.append((f"r{number}", f"i{number}", 0))
            case _:
                ms = dice.choice((1, 10, 40))
                event = RealtimeModelAudioEvent(bytes(ms * BYTES_PER_MS), response, item, index)
                tracker.add_audio(RealtimeAudio(event, item, index, None), ms, loop.time())
                player.add(keys[-1], ms)
    await asyncio.sleep(60)
    for key in keys:
        check(key)
