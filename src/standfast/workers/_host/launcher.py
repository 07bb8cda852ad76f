"""Start a worker, and own the resources that it shares with its forks."""

import asyncio
import dataclasses
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from standfast.workers._host.cgroups import ControlGroups, create_cgroups
from standfast.workers._host.connection import ConnectionListener, WorkerConnection, WorkerEndpoints
from standfast.workers._host.forkserver import ForkServer, fork_server
from standfast.workers._host.process_group import ProcessGroup
from standfast.workers._host.proxy import HttpProxy
from standfast.workers.child.cleanup import remove_tree
from standfast.workers.config import SessionConfig
from standfast.workers.errors import StartFailed
from standfast.workers.wire.control import SandboxReady, ServerReady, StartWorkerCommand
from standfast.workers.wire.frames import encode_frame
from standfast.workers.wire.messages import HelloMessage, encode, new_id


class WorkerResources:
    """A process group, its directory and its fork server. They are released by their last user."""

    def __init__(
        self,
        process_group: ProcessGroup,
        sandbox: SandboxReady,
        server: ForkServer,
        exit_stack: AsyncExitStack,
        fallback_reason: str,
    ) -> None:
        self.process_group, self.sandbox, self.server = process_group, sandbox, server
        self.fallback_reason = fallback_reason
        """Why the worker was started without a shared fork server; empty if it was not."""
        self.user_count = 1
        self._exit_stack = exit_stack

    @property
    def server_info(self) -> ServerReady:
        return self.server.ready_message

    def acquire(self) -> "WorkerResources":
        """Add a user, which has to ``release`` the resources."""
        self.user_count += 1
        return self

    async def release(self, connection: WorkerConnection) -> None:
        connection.close()
        await self._release()

    @asynccontextmanager
    async def hold_directory(self) -> AsyncIterator[int | None]:
        """Keep the session's directory open until the block ends, even if all users release it meanwhile."""
        original = self.process_group.directory_fd
        self.acquire()
        fd = None if original is None else os.dup(original)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)
            await self._release()

    async def _release(self) -> None:
        self.user_count -= 1
        if self.user_count == 0:
            await self._exit_stack.aclose()


async def start_worker(
    config: SessionConfig, session_id: str, listener: ConnectionListener
) -> tuple[WorkerResources, WorkerConnection]:
    """Fork a worker. Returns once its sandbox is up; the handshake has not happened yet."""
    fallback_reason = ""
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(fork_server(config))
        except StartFailed as problem:
            if config.mode == "spawn":
                raise
            # For example a preloaded module breaks the fork server. A spawned worker starts slower, but it starts.
            fallback_reason = f"started without a fork server: {problem}"
            spawn_config = dataclasses.replace(config, mode="spawn", preload=())
            server = await stack.enter_async_context(fork_server(spawn_config))
        server_info = server.ready_message
        directory = "" if server_info.level == "namespaces" else _create_directory(server_info.uid, stack)
        cgroups = await stack.enter_async_context(create_cgroups(config.sandbox, new_id()))
        command = StartWorkerCommand(
            token=new_id(),
            session_id=session_id,
            environment=dict(config.environment),
            directory=directory,
            settings=config.worker_settings,
            counted=cgroups.limits_processes,
        )
        try:
            group, connection = await _fork_worker(server, command, listener, cgroups, limit=config.frame_limit)
            stack.callback(group.close)
            sandbox = await _finish_start(config, group, connection, stack)
        except StartFailed:
            server.retire()
            raise
        return WorkerResources(group, sandbox, server, stack.pop_all(), fallback_reason), connection


async def _finish_start(
    config: SessionConfig, group: ProcessGroup, connection: WorkerConnection, stack: AsyncExitStack
) -> SandboxReady:
    try:
        sandbox = await asyncio.shield(group.sandbox_ready)
        await _open_proxy(config, group, stack)
    except BaseException:
        connection.close()
        raise
    return sandbox


async def _fork_worker(
    server: ForkServer,
    command: StartWorkerCommand,
    listener: ConnectionListener,
    cgroups: ControlGroups,
    *,
    limit: int,
) -> tuple[ProcessGroup, WorkerConnection]:
    endpoints = WorkerEndpoints()
    ours, theirs = socket.socketpair()
    # Sent before the worker exists, which saves a round trip: the worker reads it as soon as it runs.
    endpoints.protocol_socket.send(encode_frame(encode(HelloMessage())))
    try:
        supervisor = await server.fork((*endpoints.remote_fds, theirs.fileno()))
    except BaseException:
        endpoints.close()
        ours.close()
        raise
    finally:
        endpoints.close_remote()
        theirs.close()
    group = ProcessGroup(ours, supervisor.pidfd, supervisor.pid, cgroups)
    connection = WorkerConnection(group, command.token, endpoints, listener, limit=limit)
    try:
        group.start_worker(command)
    except BaseException:
        connection.close()
        raise
    return group, connection


def _create_directory(uid: int, exit_stack: AsyncExitStack) -> str:
    """Create a private directory on the host, for a worker that has no file system of its own."""
    path = tempfile.mkdtemp(prefix="standfast-")
    exit_stack.callback(remove_tree, path)
    for name in ("work", "tmp", "home"):
        os.mkdir(f"{path}/{name}", 0o700)
    if uid != os.geteuid():
        for name in ("", "work", "tmp", "home"):
            os.chown(f"{path}/{name}", uid, uid)
    return path


async def _open_proxy(config: SessionConfig, process_group: ProcessGroup, exit_stack: AsyncExitStack) -> None:
    allowed = config.sandbox.network
    if process_group.proxy_fd is not None and isinstance(allowed, tuple):
        fd, process_group.proxy_fd = process_group.proxy_fd, None
        await exit_stack.enter_async_context(HttpProxy.open(fd, allowed))
