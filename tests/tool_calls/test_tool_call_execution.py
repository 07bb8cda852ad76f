"""Concurrent execution of calls by ``run_all``."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from standfast.tool_calls.execution import NotStarted, run_all


def returns(value: str) -> Callable[[], Awaitable[str]]:
    async def job() -> str:
        await asyncio.sleep(0)
        return value

    return job


def raises(error: Exception) -> Callable[[], Awaitable[str]]:
    async def job() -> str:
        raise error

    return job


async def test_results_are_in_the_order_of_the_jobs() -> None:
    assert await run_all([returns("a"), returns("b"), returns("c")]) == (["a", "b", "c"], None)


@pytest.mark.parametrize("others", [0, 1])
async def test_an_exception_is_returned_in_the_place_of_its_result(others: int) -> None:
    error = ValueError("no")
    results, cancelled = await run_all([*[returns("a")] * others, raises(error)])
    assert results == [*["a"] * others, error]
    assert cancelled is None


async def test_after_an_exception_running_jobs_finish_and_no_other_is_started() -> None:
    results, _ = await run_all([returns("a"), raises(ValueError("no")), returns("c")], limit=2)
    assert results[0] == "a"
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], NotStarted)


async def test_at_most_the_limit_runs_at_a_time() -> None:
    running, most = 0, 0

    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await run_all([job] * 5, limit=2)
    assert most == 2


@pytest.mark.parametrize("finished", [0, 1])
async def test_cancellation_is_returned_with_the_results_so_far(finished: int) -> None:
    started = asyncio.Event()

    async def wait_forever() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(run_all([*[returns("a")] * finished, wait_forever]))
    await started.wait()
    for _ in range(5):  # the other job needs two steps of the event loop
        await asyncio.sleep(0)
    task.cancel()
    results, cancelled = await task
    assert results[:finished] == ["a"] * finished
    assert isinstance(results[-1], asyncio.CancelledError)
    assert isinstance(cancelled, asyncio.CancelledError)
