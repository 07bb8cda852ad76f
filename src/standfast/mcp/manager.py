"""Connect and clean up several servers together."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Self

from standfast.base.log import get_logger
from standfast.lifecycle import Scope
from standfast.mcp.errors import MCPUnavailable
from standfast.mcp.interface import MCPServer

_log = get_logger("standfast.mcp")


class _ServerTask:
    """One task that connects and cleans up a server: some libraries must be left by the task that entered them."""

    def __init__(self, name: str) -> None:
        self._work: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(), name=f"standfast MCP server {name}")

    async def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work in the task. Cancelling the caller cancels the work."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._work.put_nowait((work, done))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done():
                self._task.cancel()
                await asyncio.wait([done])
            raise

    async def stop(self) -> None:
        self._work.put_nowait(None)
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while (item := await self._work.get()) is not None:
            work, done = item
            try:
                result = await work()
            except BaseException as error:  # noqa: BLE001 - raised to the caller of ``call``
                task = asyncio.current_task()
                while task is not None and task.cancelling():
                    task.uncancel()
                if isinstance(error, asyncio.CancelledError):
                    done.cancel()
                else:
                    done.set_exception(error)
            else:
                done.set_result(result)


def _check_seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a positive number of seconds or None, got {value!r}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"{name} must be a positive finite number of seconds or None, got {value!r}")
    return value


class MCPServerManager:
    """Connects several servers. Pass ``active_servers`` to the agent.

    A server that cannot be connected is listed in ``failed_servers``, with its error in ``errors``. With ``strict`` the
    first such error is raised, after the servers that the call connected were cleaned up. With
    ``drop_failed_servers=False`` failed servers stay in ``active_servers``, for servers that connect on demand. With
    ``suppress_cancelled_error`` a server that cancels its own connection attempt counts as failed; a cancellation of
    the caller is never suppressed. With ``connect_in_parallel`` each server has a task of its own that connects it and
    cleans it up. Calls wait for each other.
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
        self._servers = list({id(server): server for server in servers}.values())
        self._connect_timeout = _check_seconds("connect_timeout_seconds", connect_timeout_seconds)
        self._cleanup_timeout = _check_seconds("cleanup_timeout_seconds", cleanup_timeout_seconds)
        self.strict, self.drop_failed_servers = strict, drop_failed_servers
        self.suppress_cancelled_error, self.connect_in_parallel = suppress_cancelled_error, connect_in_parallel
        self._tasks: dict[MCPServer, _ServerTask] = {}
        self._lock = asyncio.Lock()
        self._started = False
        self._connected: list[MCPServer] = []
        self._errors: dict[MCPServer, BaseException] = {}

    @property
    def all_servers(self) -> list[MCPServer]:
        """All servers, connected or not."""
        return list(self._servers)

    @property
    def active_servers(self) -> list[MCPServer]:
        """The servers to pass to an agent, in the order of their declaration; all of them before they are connected."""
        if not self._started:
            return list(self._servers)
        return [
            server
            for server in self._servers
            if server in self._connected or (server in self._errors and not self.drop_failed_servers)
        ]

    @property
    def failed_servers(self) -> list[MCPServer]:
        """The servers that could not be connected."""
        return [server for server in self._servers if server in self._errors]

    @property
    def errors(self) -> dict[MCPServer, BaseException]:
        """Why servers are not connected."""
        return dict(self._errors)

    @property
    def connect_timeout_seconds(self) -> float | None:
        """Seconds that a server has to connect. None: no limit."""
        return self._connect_timeout

    @connect_timeout_seconds.setter
    def connect_timeout_seconds(self, value: float | None) -> None:
        """Seconds that a server has to connect. None: no limit."""
        self._connect_timeout = _check_seconds("connect_timeout_seconds", value)

    @property
    def cleanup_timeout_seconds(self) -> float | None:
        """Seconds that a server has to disconnect. None: no limit."""
        return self._cleanup_timeout

    @cleanup_timeout_seconds.setter
    def cleanup_timeout_seconds(self, value: float | None) -> None:
        """Seconds that a server has to disconnect. None: no limit."""
        self._cleanup_timeout = _check_seconds("cleanup_timeout_seconds", value)

    async def __aenter__(self) -> Self:
        await self.connect_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup_all()

    async def connect_all(self) -> list[MCPServer]:
        """Connect every server that is not connected, and return the active servers."""
        async with self._lock:
            return await self._connect([server for server in self._servers if server not in self._connected])

    async def reconnect(self, *, failed_only: bool = True) -> list[MCPServer]:
        """Connect the failed servers again, or with ``failed_only=False`` clean up and connect all servers.

        If an error is raised, the servers that could be connected stay so.
        """
        async with self._lock:
            if failed_only:
                return await self._connect(self.failed_servers, keep=True)
            await self._cleanup()
            return await self._connect(self._servers, keep=True)

    async def cleanup_all(self) -> None:
        """Clean up all servers in reverse order.

        An error of one server is logged and the others are still cleaned up. A cancellation is raised after all servers
        were cleaned up.
        """
        async with self._lock:
            await self._cleanup()

    async def _cleanup(self) -> None:
        try:
            await self._disconnect(self._servers)
        finally:
            self._errors.clear()

    async def _disconnect(self, servers: Iterable[MCPServer]) -> None:
        """Clean up servers in reverse order; raise a cancellation once all are cleaned up."""
        cancelled = None
        for server in reversed(list(servers)):
            task = self._tasks.pop(server, None)
            if task is None:
                cancelled = await self._cleanup_one(server) or cancelled
            else:
                try:
                    await task.call(partial(self._cleanup_one, server))
                except asyncio.CancelledError as error:
                    cancelled = error
                finally:
                    await task.stop()
            if server in self._connected:
                self._connected.remove(server)
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

    async def _connect(self, servers: list[MCPServer], *, keep: bool = False) -> list[MCPServer]:
        self._started = True
        for server in servers:
            self._errors.pop(server, None)
        try:
            if self.connect_in_parallel:
                async with Scope() as scope:
                    for server in servers:
                        if server not in self._tasks:
                            self._tasks[server] = _ServerTask(server.name)
                        scope.start(self._tasks[server].call(partial(self._connect_one, server)))
            else:
                for server in servers:
                    await self._connect_one(server)
                    if server in self._errors and self._is_raised(self._errors[server]):
                        break
            raised = [error for server in servers if (error := self._errors.get(server)) and self._is_raised(error)]
            # A cancellation comes first: whoever asked for it must not take another error for its answer.
            for error in sorted(raised, key=lambda each: not isinstance(each, asyncio.CancelledError)):
                raise error
        except BaseException:
            if not keep:  # nobody enters the manager, so nobody would leave it
                failed = [each for each in servers if each in self._errors]  # they are cleaned up already
                for task in [self._tasks.pop(each) for each in failed if each in self._tasks]:
                    await task.stop()
                await self._disconnect([each for each in servers if each not in self._errors])
            raise
        return self.active_servers

    def _is_raised(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            return not self.suppress_cancelled_error
        return self.strict or not isinstance(error, Exception)

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
        except BaseException as error:  # noqa: BLE001 - available as `errors`, and raised there if it has to be
            self._errors[server] = error
        else:
            self._connected.append(server)
            return
        _log.warning("an MCP server could not be connected: %s", self._errors[server])
        await self._cleanup_one(server)
