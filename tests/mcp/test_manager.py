"""Several servers that are connected and cleaned up together."""

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
