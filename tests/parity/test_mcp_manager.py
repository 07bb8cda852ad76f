"""Which servers a manager keeps when others fail."""

import asyncio
from typing import Any

import pytest


def make_server(lib: Any, *errors: BaseException) -> Any:
    class Server(lib.MCPServer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors, self.log = list(errors), list[str]()

        @property
        def name(self) -> str:
            return "server"

        async def connect(self) -> None:
            self.log.append("connect")
            if self.errors:
                raise self.errors.pop(0)

        async def cleanup(self) -> None:
            self.log.append("cleanup")

        async def list_tools(self, *_: Any) -> Any:
            return []

        async def call_tool(self, *_: Any) -> Any:
            raise AssertionError

        async def list_prompts(self) -> Any:
            raise AssertionError

        async def get_prompt(self, *_: Any) -> Any:
            raise AssertionError

    return Server()


async def test_a_failing_connect_keeps_the_servers_of_earlier_ones(lib: Any) -> None:
    good, bad = make_server(lib), make_server(lib, OSError("first"), OSError("second"))
    manager = lib.MCPServerManager([good, bad])
    assert await manager.connect_all() == [good]
    manager.strict = True
    with pytest.raises(OSError, match="second"):
        await manager.connect_all()
    assert (manager.active_servers, manager.failed_servers) == ([good], [bad])
    await manager.cleanup_all()


async def test_a_failing_reconnect_keeps_what_it_connected(lib: Any) -> None:
    first, second = make_server(lib, OSError("1")), make_server(lib, OSError("2"), OSError("3"))
    async with lib.MCPServerManager([first, second]) as manager:
        manager.strict = True
        with pytest.raises(OSError, match="3"):
            await manager.reconnect()
        assert (manager.active_servers, manager.failed_servers) == ([first], [second])
        assert first.log[-1] == "connect"


async def test_a_failed_server_stays_active_if_failed_servers_are_kept(lib: Any) -> None:
    server = make_server(lib, OSError("no"))
    manager = lib.MCPServerManager([server], strict=True, drop_failed_servers=False)
    with pytest.raises(OSError, match="no"):
        await manager.connect_all()
    assert manager.active_servers == manager.failed_servers == [server]


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_server_that_cancels_itself_has_failed_also_if_strict(lib: Any, parallel: bool) -> None:
    server = make_server(lib, asyncio.CancelledError())
    async with lib.MCPServerManager([server], strict=True, connect_in_parallel=parallel) as manager:
        assert (manager.active_servers, manager.failed_servers) == ([], [server])


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_cancellation_that_counts_is_recorded_and_cleaned_up_once(lib: Any, parallel: bool) -> None:
    class Fatal(BaseException):
        pass

    cancelled = make_server(lib, asyncio.CancelledError())
    others = [make_server(lib), *([make_server(lib, Fatal())] if parallel else [])]
    manager = lib.MCPServerManager([*others, cancelled], suppress_cancelled_error=False, connect_in_parallel=parallel)
    with pytest.raises(asyncio.CancelledError):
        await manager.connect_all()
    assert cancelled in manager.failed_servers
    assert manager.active_servers == []
    assert others[0].log == cancelled.log == ["connect", "cleanup"]


async def test_a_server_that_is_given_twice_is_connected_once(lib: Any) -> None:
    server = make_server(lib)
    async with lib.MCPServerManager([server, server]) as manager:
        assert manager.all_servers == manager.active_servers == [server]
    assert server.log == ["connect", "cleanup"]


@pytest.mark.parametrize("name", ["connect_timeout_seconds", "cleanup_timeout_seconds"])
def test_seconds_that_no_clock_has_are_refused(lib: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        lib.MCPServerManager([], **{name: 10**400})
