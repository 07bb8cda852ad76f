"""Work that must finish although its caller is cancelled."""

import asyncio

import pytest

from standfast.lifecycle.scope import run_to_end


async def test_the_result_or_error_of_the_work_is_passed_on() -> None:
    async def work(fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise OSError("no")
        return 7

    assert await run_to_end(work(False), grace=0) == 7
    with pytest.raises(OSError, match="no"):
        await run_to_end(work(True), grace=0)


@pytest.mark.parametrize("cancellations", [1, 5])
async def test_work_that_ends_within_the_grace_is_not_cancelled(cancellations: int) -> None:
    go, notified, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    caller = asyncio.create_task(run_to_end(work(), grace=60, on_cancel=notified.set))
    await asyncio.sleep(0)
    for _ in range(cancellations):
        caller.cancel()
        await asyncio.sleep(0)
    assert notified.is_set()
    assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


async def test_the_clean_up_of_cancelled_work_is_not_interrupted() -> None:
    started, cleaning, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await cleaning.wait()
            cleaned.set()

    caller = asyncio.create_task(run_to_end(work(), grace=0))
    await started.wait()
    for _ in range(5):
        caller.cancel()
        await asyncio.sleep(0)
    cleaning.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert cleaned.is_set()


async def test_an_error_of_cancelled_work_is_the_cause_of_the_cancellation() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("could not clean up") from None

    caller = asyncio.create_task(run_to_end(work(), grace=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await caller
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_timeout_around_it_stays_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_to_end(asyncio.sleep(60), grace=0)
