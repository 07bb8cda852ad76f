"""Several servers that are connected and cleaned up together."""

import asyncio

import pytest

from factories.mcp import DoublingServer, ServerLog, stdio_server
from standfast.mcp import MCPServerManager, MCPUnavailable


@pytest.mark.parametrize("parallel", [False, True])
async def test_servers_that_fail_do_not_affect_the_others(log: ServerLog, parallel: bool) -> None:
    good, bad = stdio_server(log), stdio_server(log, "crash", name="bad")
    async with MCPServerManager([bad, good], connect_in_parallel=parallel) as manager:
        assert manager.active_servers == [good]
        assert manager.failed_servers == [bad]
        assert isinstance(manager.errors[bad], MCPUnavailable)
        assert await manager.reconnect() == [good]
    assert manager.active_servers == []


async def test_strict_raises_and_cleans_up_all_servers(log: ServerLog) -> None:
    good, bad = stdio_server(log), stdio_server(log, "crash", name="bad")
    manager = MCPServerManager([good, bad], strict=True)
    with pytest.raises(MCPUnavailable, match="'bad'"):
        await manager.connect_all()
    assert manager.active_servers == []


async def test_a_server_that_does_not_connect_in_time_has_failed(log: ServerLog) -> None:
    slow = stdio_server(log, "no_response")
    manager = MCPServerManager([slow], connect_timeout_seconds=0.5, drop_failed_servers=False)
    assert await manager.connect_all() == [slow]
    assert "not connected within 0.5 seconds" in str(manager.errors[slow])
    await manager.cleanup_all()


async def test_the_timeout_error_of_a_server_is_kept() -> None:
    class TimingOutServer(DoublingServer):
        async def connect(self) -> None:
            raise TimeoutError("the tunnel is closed")

    server = TimingOutServer()
    manager = MCPServerManager([server], connect_timeout_seconds=None)
    assert await manager.connect_all() == []
    assert str(manager.errors[server]) == "the tunnel is closed"


class RecordingServer(DoublingServer):
    """Notes in which task it was connected and cleaned up; ``blocked`` never connects."""

    blocked = False

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[tuple[str, object]] = []
        self.begun = asyncio.Event()

    async def connect(self) -> None:
        self.tasks.append(("connect", asyncio.current_task()))
        self.begun.set()
        if self.blocked:
            await asyncio.Event().wait()

    async def cleanup(self) -> None:
        self.tasks.append(("cleanup", asyncio.current_task()))


@pytest.mark.parametrize("parallel", [False, True])
async def test_the_task_that_connected_a_server_cleans_it_up(parallel: bool) -> None:
    servers = [RecordingServer(), RecordingServer()]
    async with MCPServerManager(servers, connect_in_parallel=parallel) as manager:
        await asyncio.gather(manager.connect_all(), manager.reconnect(failed_only=False))  # they wait for each other
    for server in servers:
        assert [name for name, _ in server.tasks] == ["connect", "cleanup"] * 2
        # Without tasks of their own, servers are cleaned up by whoever asks for it.
        assert not parallel or server.tasks[0][1] is server.tasks[1][1]


async def test_a_cancelled_caller_leaves_no_server_connected() -> None:
    servers = [RecordingServer(), RecordingServer()]
    servers[1].blocked = True
    manager = MCPServerManager(servers, connect_in_parallel=True, connect_timeout_seconds=None)
    task = asyncio.create_task(manager.connect_all())
    await servers[1].begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [server.tasks[-1][0] for server in servers] == ["cleanup", "cleanup"]
    assert len({id(task) for _, task in servers[1].tasks}) == 1


@pytest.mark.parametrize(("value", "kind"), [("5", TypeError), (True, TypeError), (0, ValueError), (-1, ValueError)])
def test_timeouts_are_checked(value: object, kind: type[Exception]) -> None:
    manager = MCPServerManager([])
    for name in ("connect_timeout_seconds", "cleanup_timeout_seconds"):
        with pytest.raises(kind, match=name):
            setattr(manager, name, value)
        with pytest.raises(kind, match=name):
            MCPServerManager([], **{name: value})
