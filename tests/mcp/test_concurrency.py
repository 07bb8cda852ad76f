"""Connecting, calling and letting go at the same time, and cancellations at every moment."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest
from shops import Journal, alive, http_shop, stdio, until

from standfast import Agent, Runner
from standfast.mcp import MCPCallUncertain, MCPNotConnected, MCPServerManager, MCPServerStdio, MCPUnavailable
from standfast.testing import ScriptedModel, assistant_message, function_call


class Steps:
    """Counts how often tasks of a loop go on, and calls ``at_last`` when that has happened so many times."""

    def __init__(self, left: int, at_last: Callable[[], object]) -> None:
        self.left, self.at_last = left, at_last

    def factory(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(self._counted(work), loop=loop, **options)

    async def _counted(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await _Each(work, self._step)

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.at_last()


class _Each:
    def __init__(self, work: Coroutine[Any, Any, Any], step: Callable[[], None]) -> None:
        self.work, self.step = work, step

    def __await__(self) -> Generator[Any, Any, Any]:
        going = self.work.__await__() if hasattr(self.work, "__await__") else self.work
        error: BaseException | None = None
        value = None
        while True:
            try:
                waiting = going.send(value) if error is None else going.throw(error)
            except StopIteration as ended:
                return ended.value
            self.step()
            error, value = None, None
            try:
                value = yield waiting
            except BaseException as thrown:
                error = thrown


async def interrupted(work: Callable[[], Coroutine[Any, Any, Any]], steps: int) -> bool:
    """Cancel the work after so many steps of it and of all tasks that it starts; whether there were that many."""
    loop = asyncio.get_running_loop()
    counted = Steps(steps, lambda: task.cancel())
    loop.set_task_factory(counted.factory)
    task = asyncio.create_task(work())
    try:
        await asyncio.wait({task})
    finally:
        loop.set_task_factory(None)
    if not task.cancelled() and task.exception() is not None:
        raise task.exception()
    return counted.left <= 0


async def test_a_connect_that_is_cancelled_at_any_step_leaves_nothing(journal: Journal) -> None:
    steps = 1
    while True:
        server = stdio(journal)
        again = await interrupted(server.connect, steps)
        if not again:
            await server.cleanup()
            break
        if not server._connection.is_open:
            with pytest.raises(MCPNotConnected):
                await server.list_tools()
        else:
            await server.cleanup()
        assert not any(map(alive, journal.pids())), steps
        assert len(asyncio.all_tasks()) == 1, steps
        steps += 1
    assert steps > 10


async def test_a_connect_over_http_that_is_cancelled_at_many_a_step_leaves_nothing(journal: Journal) -> None:
    steps = 1
    async with http_shop(journal) as shop:
        while True:
            server = shop.server()
            again = await interrupted(server.connect, steps)
            await server.cleanup()
            assert len(asyncio.all_tasks()) == 1, steps
            if not again:
                break
            steps += 2
    assert steps > 10


async def test_a_call_that_is_cancelled_at_any_step_leaves_the_others_alone(journal: Journal) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        steps = 1
        while await interrupted(lambda: server.call_tool("refund", {"order": "A"}), steps):
            result = await server.call_tool("stock", {"item": str(steps)})
            assert result.content[0].text == f"shop has 3 of {steps}"
            steps += 1
    assert steps > 2
    assert len(journal.pids()) == 1


async def test_one_who_gives_up_connecting_does_not_take_it_from_another(journal: Journal) -> None:
    server = stdio(journal)
    first, second = asyncio.create_task(server.connect()), asyncio.create_task(server.connect())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
    await server.cleanup()
    assert first.cancelled()
    assert not any(map(alive, journal.pids()))


async def test_two_who_fail_to_connect_leave_the_server_unconnected(journal: Journal) -> None:
    server = stdio(journal, "crash")
    ended = await asyncio.gather(server.connect(), server.connect(), return_exceptions=True)
    assert [type(error) for error in ended] == [MCPUnavailable, MCPUnavailable]
    with pytest.raises(MCPNotConnected):
        await server.list_tools()


async def test_connecting_and_letting_go_by_many_ends_well(journal: Journal) -> None:
    server = stdio(journal)

    async def user(number: int) -> None:
        for _ in range(3):
            with suppress(MCPNotConnected, MCPCallUncertain):
                await server.connect()
                await server.call_tool("stock", {"item": str(number)})
            if number % 2:
                await server.cleanup()

    async with asyncio.timeout(20):
        await asyncio.gather(*map(user, range(6)))
    await server.cleanup()
    assert not any(map(alive, journal.pids()))


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_server_that_cancels_its_own_connecting_is_not_passed_over(journal: Journal, parallel: bool) -> None:
    class Shy(MCPServerStdio):
        async def connect(self) -> None:
            raise asyncio.CancelledError

    shy, good = Shy({"command": "shy"}), stdio(journal)
    async with MCPServerManager([shy, good], connect_in_parallel=parallel) as manager:
        assert (manager.failed_servers, manager.active_servers) == ([shy], [good])
    manager = MCPServerManager([shy, good], connect_in_parallel=parallel, suppress_cancelled_error=False)
    with pytest.raises(asyncio.CancelledError):
        await manager.connect_all()
    assert manager.active_servers == []
    assert not any(map(alive, journal.pids()))


def test_a_server_may_be_used_in_one_event_loop_after_another(journal: Journal) -> None:
    server = stdio(journal)

    async def use() -> None:
        async with server:
            calls = [server.call_tool("stock", {"item": "tea"}) for _ in range(3)]
            assert len(await asyncio.gather(*calls)) == 3

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(server.connect())  # and is forgotten
    asyncio.run(use())
    assert not any(map(alive, journal.pids()))


async def test_a_run_cancelled_in_a_call_tells_the_server_and_leaves_it_to_others(journal: Journal) -> None:
    async with stdio(journal) as server:
        agent = Agent("clerk", mcp_servers=[server])
        hanging = ScriptedModel([[function_call("hang", {}, call_id="1")]])
        task = asyncio.create_task(Runner.run(agent.clone(model=hanging), "wait"))
        await until(lambda: journal.count("hang"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: journal.count("cancelled"))
        model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="2")], [assistant_message("done")]])
        assert (await Runner.run(agent.clone(model=model), "stock?")).final_output == "done"
    assert len(journal.pids()) == 1


@pytest.mark.parametrize("parallel", [False, True])
async def test_several_that_are_cancelled_while_they_connect_leave_no_process(journal: Journal, parallel: bool) -> None:
    manager = MCPServerManager([stdio(journal), stdio(journal, "silent")], connect_in_parallel=parallel)
    task = asyncio.create_task(manager.connect_all())
    await until(lambda: len(journal.pids()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert manager.active_servers == []
    assert not any(map(alive, journal.pids()))


async def test_several_that_are_cancelled_while_they_are_let_go_are_all_let_go(journal: Journal) -> None:
    manager = MCPServerManager([stdio(journal), stdio(journal), stdio(journal, "slow")])
    await manager.connect_all()
    task = asyncio.create_task(manager.cleanup_all())
    await until(lambda: journal.count("leaving"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, journal.pids()[:2]))
    await manager.cleanup_all()
    assert not any(map(alive, journal.pids()))
