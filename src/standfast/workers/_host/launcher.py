"""Start a worker, and own the resources that it shares with its forks."""

import asyncio
import dataclasses
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from standfast.workers._host.cgroups import ControlGroups, create_cgroups
from standfast.workers._host.connection import ConnectionListener, WorkerConnection, WorkerEndpoints
from standfast.workers._host.forkserver import ForkServer, fork_server
from standfast.workers._host.process_group import ProcessGroup
from standfast.workers._host.proxy import HttpProxy
from standfast.workers.config import SessionConfig
from standfast.workers.errors import StartFailed
from standfast.workers.wire.control import ForkCommand, SandboxReady, ServerReady
from standfast.workers.wire.frames import encode_frame
from standfast.workers.wire.messages import HelloMessage, encode, new_id


class WorkerResources:
    """A process group, its directory and its fork server. They are released by their last user."""

    def __init__(
        self,
        process_group: ProcessGroup,
        sandbox: SandboxReady,
        server_info: ServerReady,
        exit_stack: AsyncExitStack,
        fallback_reason: str,
    ) -> None:
        self.process_group, self.sandbox, self.server_info = process_group, sandbox, server_info
        self.fallback_reason = fallback_reason
        """Why the worker was started without a shared fork server; empty if it was not."""
        self.user_count = 1
        self._exit_stack = exit_stack

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
        group, connection = await _fork_worker(server, config, session_id, directory, listener, cgroups)
        stack.callback(group.close)
        try:
            sandbox = await asyncio.shield(group.sandbox_ready)
            await _open_proxy(config, group, stack)
        except BaseException:
            connection.close()
            raise
        return WorkerResources(group, sandbox, server_info, stack.pop_all(), fallback_reason), connection


async def _fork_worker(
    server: ForkServer,
    config: SessionConfig,
    session_id: str,
    directory: str,
    listener: ConnectionListener,
    cgroups: ControlGroups,
) -> tuple[ProcessGroup, WorkerConnection]:
    endpoints = WorkerEndpoints()
    ours, theirs = socket.socketpair()
    token = new_id()
    command = ForkCommand(
        id=0,
        token=token,
        session_id=session_id,
        environment=dict(config.environment),
        directory=directory,
        settings=config.worker_settings,
        gated=bool(cgroups.paths),
        counted=cgroups.limits_processes,
    )
    # Sent before the worker exists, which saves a round trip: the worker reads it as soon as it runs.
    endpoints.protocol_socket.send(encode_frame(encode(HelloMessage())))
    try:
        supervisor = await server.fork(command, (*endpoints.remote_fds, theirs.fileno()))
    except BaseException:
        endpoints.close()
        ours.close()
        raise
    finally:
        endpoints.close_remote()
        theirs.close()
    group = ProcessGroup(ours, supervisor.pidfd, supervisor.pid, cgroups)
    connection = WorkerConnection(group, token, endpoints, listener, limit=config.frame_limit)
    if cgroups.paths:
        try:
            group.enter_cgroups()
        except StartFailed:
            connection.close()
            raise
    return group, connection


def _create_directory(uid: int, exit_stack: AsyncExitStack) -> str:
    """Create a private directory on the host, for a worker that has no file system of its own."""
    path = tempfile.mkdtemp(prefix="standfast-")
    exit_stack.callback(shutil.rmtree, path, ignore_errors=True)
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
