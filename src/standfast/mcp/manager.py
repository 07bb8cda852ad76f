"""Connect and clean up several servers together."""

import asyncio
from collections.abc import Iterable
from typing import Self

from standfast.base.log import get_logger
from standfast.lifecycle import Scope
from standfast.mcp.errors import MCPUnavailable
from standfast.mcp.interface import MCPServer

_log = get_logger("standfast.mcp")


class MCPServerManager:
    """Connects several servers. Pass ``active_servers`` to the agent.

    A server that cannot be connected is listed in ``failed_servers``, with its error in ``errors``. With ``strict`` the
    first such error is raised, after the connected servers were cleaned up. With ``drop_failed_servers=False`` failed
    servers stay in ``active_servers``, for servers that connect on demand. With ``suppress_cancelled_error`` a server
    that cancels its own connection attempt counts as failed; a cancellation of the caller is never suppressed.
    """

    def __init__(
        self,
        servers: Iterable[MCPServer],
        *,
        connect_timeout_seconds: float | None = 10.0,
        cleanup_timeout_seconds: float | None = 10.0,
        drop_failed_servers: bool = True,
        strict: bool = False,
        suppress_cancelled_error: bool = True,
        connect_in_parallel: bool = False,
    ) -> None:
        self._servers = list(servers)
        self._connect_timeout, self._cleanup_timeout = connect_timeout_seconds, cleanup_timeout_seconds
        self._drop_failed, self._strict, self._suppress_cancelled = (
            drop_failed_servers,
            strict,
            suppress_cancelled_error,
        )
        self._parallel = connect_in_parallel
        self._started = False
        self._connected: list[MCPServer] = []
        self._errors: dict[MCPServer, BaseException] = {}

    @property
    def all_servers(self) -> list[MCPServer]:
        return list(self._servers)

    @property
    def active_servers(self) -> list[MCPServer]:
        """The servers to pass to an agent, in the order of their declaration; all of them before they are connected."""
        if not self._started:
            return list(self._servers)
        return [
            server
            for server in self._servers
            if server in self._connected or (server in self._errors and not self._drop_failed)
        ]

    @property
    def failed_servers(self) -> list[MCPServer]:
        return [server for server in self._servers if server in self._errors]

    @property
    def errors(self) -> dict[MCPServer, BaseException]:
        return dict(self._errors)

    @property
    def strict(self) -> bool:
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        self._strict = value

    @property
    def connect_timeout_seconds(self) -> float | None:
        return self._connect_timeout

    @connect_timeout_seconds.setter
    def connect_timeout_seconds(self, value: float | None) -> None:
        self._connect_timeout = value

    @property
    def cleanup_timeout_seconds(self) -> float | None:
        return self._cleanup_timeout

    @cleanup_timeout_seconds.setter
    def cleanup_timeout_seconds(self, value: float | None) -> None:
        self._cleanup_timeout = value

    async def __aenter__(self) -> Self:
        await self.connect_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup_all()

    async def connect_all(self) -> list[MCPServer]:
        """Connect every server that is not connected, and return the active servers."""
        return await self._connect([server for server in self._servers if server not in self._connected])

    async def reconnect(self, *, failed_only: bool = True) -> list[MCPServer]:
        """Connect the failed servers again, or with ``failed_only=False`` clean up and connect all servers."""
        if failed_only:
            return await self._connect(self.failed_servers)
        await self.cleanup_all()
        return await self._connect(self._servers)

    async def cleanup_all(self) -> None:
        """Clean up all servers in reverse order.

        An error of one server is logged and the others are still cleaned up. A cancellation is raised after all servers
        were cleaned up.
        """
        cancelled = None
        for server in reversed(self._servers):
            cancelled = await self._cleanup_one(server) or cancelled
        self._connected.clear()
        self._errors.clear()
        if cancelled is not None:
            raise cancelled

    async def _cleanup_one(self, server: MCPServer) -> asyncio.CancelledError | None:
        """Clean up a server; errors are logged, and a cancellation of the caller is returned."""
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._cleanup_timeout):
                await server.cleanup()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the other servers follow
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                return error
            _log.exception("the clean-up of the MCP server %r failed", server.name)
        return None

    async def _connect(self, servers: list[MCPServer]) -> list[MCPServer]:
        self._started = True
        for server in servers:
            self._errors.pop(server, None)
        try:
            if self._parallel:
                async with Scope() as scope:
                    for server in servers:
                        scope.start(self._connect_one(server))
            else:
                for server in servers:
                    await self._connect_one(server)
        except BaseException:
            await self.cleanup_all()
            raise
        for error in [self._errors[server] for server in servers if server in self._errors]:
            if self._strict or (isinstance(error, asyncio.CancelledError) and not self._suppress_cancelled):
                await self.cleanup_all()
                raise error
        return self.active_servers

    async def _connect_one(self, server: MCPServer) -> None:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        timer = asyncio.timeout(self._connect_timeout)
        try:
            async with timer:
                await server.connect()
        except TimeoutError as error:
            reason = f"it was not connected within {self._connect_timeout} seconds"
            self._errors[server] = MCPUnavailable(server.name, reason) if timer.expired() else error
        except asyncio.CancelledError as cancelled:
            if task is not None and task.cancelling() > before:
                raise
            self._errors[server] = cancelled
        except Exception as error:  # noqa: BLE001 - available as `errors`
            self._errors[server] = error
        else:
            self._connected.append(server)
            return
        _log.warning("an MCP server could not be connected: %s", self._errors[server])
        await self._cleanup_one(server)
