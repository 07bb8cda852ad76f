"""What deadlines promise."""

import asyncio
import math
import time

import pytest
from witness import forever

from standfast.lifecycle import NEVER, Deadline


class TestDeadline:
    async def test_it_counts_down_and_passes(self):
        deadline = Deadline.after(60)
        assert 59 < deadline.remaining() <= 60
        assert not deadline.expired
        assert Deadline.after(0).expired
        assert Deadline.after(-5).remaining() == 0.0

    async def test_the_one_that_never_comes_has_no_remaining_time(self):
        assert Deadline.after(None) == NEVER
        assert NEVER.remaining() is None
        assert not NEVER.expired
        async with NEVER.timeout():
            await asyncio.sleep(0)

    async def test_the_earlier_of_two_is_their_minimum(self):
        soon, late = Deadline.after(1), Deadline.after(2)
        assert min(late, soon, NEVER) is soon

    async def test_a_step_ends_with_the_whole_at_the_latest(self):
        whole = Deadline.after(10)
        assert whole.limit_to(60) is whole
        assert whole.limit_to(None) is whole
        assert 4 < whole.limit_to(5).remaining() <= 5

    async def test_its_timeout_interrupts_what_takes_longer(self):
        with pytest.raises(TimeoutError):
            async with Deadline.after(0).timeout():
                await forever()

    def test_it_can_be_made_outside_a_loop_and_used_inside(self):
        deadline = Deadline.after(60)
        assert abs(deadline.at - (time.monotonic() + 60)) < 1

        async def remaining():
            return deadline.remaining()

        assert 59 < asyncio.run(remaining()) <= 60

    def test_it_follows_the_clock_of_the_running_loop(self):
        loop = asyncio.new_event_loop()
        loop.time = lambda: 1000.0

        async def made():
            return Deadline.after(5)

        try:
            assert loop.run_until_complete(made()).at == 1005.0
        finally:
            loop.close()


def test_the_never_deadline_is_infinite():
    assert math.isinf(NEVER.at)
