"""Deadlines."""

import asyncio
import math
import time

import pytest

from factories.lifecycle import forever
from standfast.lifecycle import NEVER, Deadline


class TestDeadline:
    async def test_the_remaining_time_counts_down_until_the_deadline_expires(self):
        deadline = Deadline.after(60)
        assert 59 < deadline.remaining() <= 60
        assert not deadline.expired
        assert Deadline.after(0).expired
        assert Deadline.after(-5).remaining() == 0.0

    async def test_never_has_no_remaining_time(self):
        assert Deadline.after(None) == NEVER
        assert NEVER.remaining() is None
        assert not NEVER.expired
        async with NEVER.timeout():
            await asyncio.sleep(0)

    async def test_the_minimum_of_two_deadlines_is_the_earlier_one(self):
        soon, late = Deadline.after(1), Deadline.after(2)
        assert min(late, soon, NEVER) is soon

    async def test_limit_to_never_extends_a_deadline(self):
        whole = Deadline.after(10)
        assert whole.limit_to(60) is whole
        assert whole.limit_to(None) is whole
        assert 4 < whole.limit_to(5).remaining() <= 5

    async def test_its_timeout_interrupts_work_that_takes_longer(self):
        with pytest.raises(TimeoutError):
            async with Deadline.after(0).timeout():
                await forever()

    def test_it_can_be_created_outside_a_loop_and_used_inside(self):
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
