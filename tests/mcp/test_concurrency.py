"""Concurrent connects, calls and clean-ups, and cancellations at every step."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest

from factories.mcp import PlainHttpServer, ServerLog, process_exists, stdio_server, wait_until
from standfast import Agent, Runner
from standfast.mcp import MCPCallUncertain, MCPNotConnected, MCPServerManager, MCPServerStdio, MCPUnavailable
from standfast.testing import ScriptedModel, assistant_message, function_call


class Steps:
    """Counts the steps of all tasks of a loop, and calls ``on_last`` after ``remaining`` steps."""

    def __init__(self, remaining: int, on_last: Callable[[], object]) -> None:
        self.remaining, self.on_last = remaining, on_last

    def factory(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(self._counted(work), loop=loop, **options)

    async def _counted(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await _ObservedCoroutine(work, self._step)

    def _step(self) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            self.on_last()


class _ObservedCoroutine:
    def __init__(self, work: Coroutine[Any, Any, Any], step: Callable[[], None]) -> None:
        self.work, self.step = work, step

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator = self.work.__await__() if hasattr(self.work, "__await__") else self.work
        error: BaseException | None = None
        value = None
        while True:
            try:
                future = iterator.send(value) if error is None else iterator.throw(error)
            except StopIteration as stop:
                return stop.value
            self.step()
            error, value = None, None
            try:
                value = yield future
            except BaseException as thrown:
                error = thrown


async def cancel_after(work: Callable[[], Coroutine[Any, Any, Any]], steps: int) -> bool:
    """Cancel ``work`` after so many steps of it and of the tasks it starts. Return False if it ended before that."""
    loop = asyncio.get_running_loop()
    counter = Steps(steps, lambda: task.cancel())
    loop.set_task_factory(counter.factory)
    task = asyncio.create_task(work())
    try:
        await asyncio.wait({task})
    finally:
        loop.set_task_factory(None)
    if not task.cancelled() and task.exception() is not None:
        raise task.exception()
    return counter.remaining <= 0


async def test_a_connect_cancelled_at_any_step_leaves_nothing(log: ServerLog) -> None:
    steps = 1
    while True:
        server = stdio_server(log)
        again = await cancel_after(server.connect, steps)
        if not again:
            await server.cleanup()
            break
        if not server._connection.is_open:
            with pytest.raises(MCPNotConnected):
                await server.list_tools()
        else:
            await server.cleanup()
        assert not log.any_process_exists(), steps
        assert len(asyncio.all_tasks()) == 1, steps
        steps += 1
    assert steps > 10


async def test_a_connect_over_http_cancelled_at_any_second_step_leaves_nothing(plain_http: PlainHttpServer) -> None:
    steps = 1
    while True:
        server = plain_http.server()
        again = await cancel_after(server.connect, steps)
        await server.cleanup()
        assert len(asyncio.all_tasks()) == 1, steps
        if not again:
            break
        steps += 2
    assert steps > 10


async def test_a_call_cancelled_at_any_step_does_not_affect_others(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        steps = 1
        while await cancel_after(lambda: server.call_tool("refund", {"order": "A"}), steps):
            result = await server.call_tool("stock", {"item": str(steps)})
            assert result.content[0].text == f"shop has 3 of {steps}"
            steps += 1
    assert steps > 2
    assert len(log.pids()) == 1


async def test_a_cancelled_connect_does_not_cancel_another(log: ServerLog) -> None:
    server = stdio_server(log)
    first, second = asyncio.create_task(server.connect()), asyncio.create_task(server.connect())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
    await server.cleanup()
    assert first.cancelled()
    assert not log.any_process_exists()


async def test_two_failed_connects_leave_the_server_unconnected(log: ServerLog) -> None:
    server = stdio_server(log, "crash")
    errors = await asyncio.gather(server.connect(), server.connect(), return_exceptions=True)
    assert [type(error) for error in errors] == [MCPUnavailable, MCPUnavailable]
    with pytest.raises(MCPNotConnected):
        await server.list_tools()


async def test_many_tasks_may_connect_and_clean_up_at_the_same_time(log: ServerLog) -> None:
    server = stdio_server(log)

    async def user(number: int) -> None:
        for _ in range(3):
            with suppress(MCPNotConnected, MCPCallUncertain):
                await server.connect()
                await server.call_tool("stock", {"item": str(number)})
            if number % 2:
                await server.cleanup()

    async with asyncio.timeout(120):
        await asyncio.gather(*map(user, range(6)))
    await server.cleanup()
    assert not log.any_process_exists()


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_server_that_cancels_its_own_connect_has_failed(log: ServerLog, parallel: bool) -> None:
    class CancellingServer(MCPServerStdio):
        async def connect(self) -> None:
            raise asyncio.CancelledError

    cancelling, good = CancellingServer({"command": "x"}), stdio_server(log)
    async with MCPServerManager([cancelling, good], connect_in_parallel=parallel) as manager:
        assert (manager.failed_servers, manager.active_servers) == ([cancelling], [good])
    manager = MCPServerManager([cancelling, good], connect_in_parallel=parallel, suppress_cancelled_error=False)
    with pytest.raises(asyncio.CancelledError):
        await manager.connect_all()
    assert manager.active_servers == []
    assert not log.any_process_exists()


def test_a_server_may_be_used_in_one_event_loop_after_another(log: ServerLog) -> None:
    server = stdio_server(log)

    async def use() -> None:
        async with server:
            calls = [server.call_tool("stock", {"item": "tea"}) for _ in range(3)]
            assert len(await asyncio.gather(*calls)) == 3

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(server.connect())  # without cleanup()
    asyncio.run(use())
    assert not log.any_process_exists()


async def test_a_run_cancelled_in_a_call_notifies_the_server_and_does_not_affect_other_runs(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        agent = Agent("clerk", mcp_servers=[server])
        hanging = ScriptedModel([[function_call("hang", {}, call_id="1")]])
        task = asyncio.create_task(Runner.run(agent.clone(model=hanging), "wait"))
        await wait_until(lambda: log.count("hang"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: log.count("cancelled"))
        model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="2")], [assistant_message("done")]])
        assert (await Runner.run(agent.clone(model=model), "stock?")).final_output == "done"
    assert len(log.pids()) == 1


@pytest.mark.parametrize("parallel", [False, True])
async def test_connecting_several_servers_can_be_cancelled_and_leaves_no_process(
    log: ServerLog, parallel: bool
) -> None:
    manager = MCPServerManager([stdio_server(log), stdio_server(log, "no_response")], connect_in_parallel=parallel)
    task = asyncio.create_task(manager.connect_all())
    await wait_until(lambda: len(log.pids()) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert manager.active_servers == []
    assert not log.any_process_exists()


@pytest.mark.usefixtures("long_timeouts")
async def test_a_cancelled_clean_up_of_several_servers_cleans_up_all(log: ServerLog) -> None:
    manager = MCPServerManager([stdio_server(log), stdio_server(log), stdio_server(log, "slow_exit")])
    await manager.connect_all()
    task = asyncio.create_task(manager.cleanup_all())
    await wait_until(lambda: log.count("leaving"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(process_exists, log.pids()[:2]))
    log.release()
    await manager.cleanup_all()
    assert not log.any_process_exists()
