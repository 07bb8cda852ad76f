"""The harness that cancels everywhere must itself notice what goes wrong."""

import asyncio

import pytest

from standfast.testing.interruption import cancel_at_every_await


async def test_every_await_is_cancelled_at_both_moments():
    reached = []

    async def three_awaits():
        for n in range(3):
            reached.append(n)
            await asyncio.sleep(0)

    assert await cancel_at_every_await(three_awaits) == 3
    assert reached == 2 * [0, 0, 1, 0, 1, 2, 0, 1, 2]


async def test_a_cancellation_may_come_after_the_result_is_ready():
    found = []

    async def waits():
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: future.done() or future.set_result("there"))
        try:
            await future
        finally:
            found.append("cancelled" if future.cancelled() else future.result())

    await cancel_at_every_await(waits)
    assert found == ["cancelled", "there", "there", "there"]


async def test_swallowing_a_cancellation_is_reported():
    async def swallows():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return

    with pytest.raises(AssertionError, match="cancelled at await 1"):
        await cancel_at_every_await(swallows)


async def test_uncancelling_is_reported():
    async def uncancels():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            raise

    with pytest.raises(AssertionError, match="0 requests were outstanding"):
        await cancel_at_every_await(uncancels)


async def test_a_remaining_task_is_reported():
    left = []

    async def leaves_a_task():
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        left[-1].cancel()
        await asyncio.wait({left[-1]})

    with pytest.raises(AssertionError, match="it left"):
        await cancel_at_every_await(leaves_a_task)
    for task in left:
        task.cancel()
    await asyncio.wait(left)


async def test_a_failing_check_reports_the_await():
    async def one_await():
        await asyncio.sleep(0)

    def check():
        raise AssertionError("wrong")

    with pytest.raises(AssertionError) as caught:
        await cancel_at_every_await(one_await, check=check)
    assert caught.value.__notes__ == ["cancelled at await 1 as it begins to wait"]
