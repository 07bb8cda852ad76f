"""What is opened with ``async with``, or with ``await`` and closed by the program."""

import asyncio
from typing import Any

import pytest

from standfast import Agent, FunctionModel, InvalidInput, Runtime, open_store
from standfast.workers import SessionPool, WorkerSession


def make_agent() -> Agent[None]:
    return Agent("clerk", model=FunctionModel(lambda request: "done"))


async def test_a_runtime_can_be_awaited_and_closed_by_any_task() -> None:
    runtime = await Runtime.open("memory://", agents=[make_agent()])
    outcome = await (await runtime.start("clerk", "hello")).wait()
    assert outcome.final_output == "done"
    await asyncio.create_task(runtime.close())
    await runtime.close()


async def test_a_runtime_that_was_entered_is_closed_by_leaving() -> None:
    async with Runtime.open("memory://", agents=[make_agent()]) as runtime:
        with pytest.raises(InvalidInput, match="opened with `async with`"):
            await runtime.close()
        assert (await (await runtime.start("clerk", "hello")).wait()).final_output == "done"


async def test_a_failure_to_open_is_raised_by_await() -> None:
    with pytest.raises(InvalidInput, match="unknown kind of store"):
        await Runtime.open("warehouse://x")


@pytest.mark.parametrize(("opener", "name"), [(Runtime.open, "Runtime.open"), (open_store, "open_store")])
async def test_what_was_not_opened_says_how_to(opener: Any, name: str) -> None:
    not_open = [opener("memory://")]
    with pytest.raises(AttributeError, match=rf"write `async with {name}\(\.\.\.\) as opened:`"):
        not_open[0].session("s")
    with pytest.warns(RuntimeWarning, match=rf"{name}\(\.\.\.\) was called and never opened"):
        not_open.clear()


async def test_workers_that_were_not_started_say_how_to() -> None:
    with pytest.raises(Exception, match="use it in `async with pool:`"):
        await SessionPool().lease()
    with pytest.raises(Exception, match="use it in `async with session:`"):
        await WorkerSession().run("1")
