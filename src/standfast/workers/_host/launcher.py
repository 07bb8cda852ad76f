"""Bringing a worker into the world, and the home it shares with its forks."""

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
    """A family, its directory, and the fork-server it came from; given up when the last resident leaves."""

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
        """Why there is no shared fork-server, where one was wanted."""
        self.user_count = 1
        self._exit_stack = exit_stack

    def acquire(self) -> "WorkerResources":
        """One more resident."""
        self.user_count += 1
        return self

    async def release(self, connection: WorkerConnection) -> None:
        connection.close()
        await self._release()

    @asynccontextmanager
    async def hold_directory(self) -> AsyncIterator[int | None]:
        """The directory, open and in its place until the block ends, whoever leaves meanwhile."""
        held = self.process_group.directory_fd
        self.acquire()
        fd = None if held is None else os.dup(held)
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
    """Fork a worker and wait until its walls stand. It has not said hello yet."""
    fallback = ""
    async with AsyncExitStack() as owned:
        try:
            server = await owned.enter_async_context(fork_server(config))
        except StartFailed as problem:
            if config.mode == "spawn":
                raise
            fallback = f"started without a fork-server: {problem}"
            # No fork-server to be had, say because a preload breaks it: a plain start is slower and works.
            plain = dataclasses.replace(config, mode="spawn", preload=())
            server = await owned.enter_async_context(fork_server(plain))
        up = server.ready_message
        directory = "" if up.level == "namespaces" else _create_directory(up.uid, owned)
        groups = await owned.enter_async_context(create_cgroups(config.sandbox, new_id()))
        family, link = await _fork_worker(server, config, session_id, directory, listener, groups)
        owned.callback(family.close)
        try:
            locked = await asyncio.shield(family.sandbox_ready)
            await _open_proxy(config, family, owned)
        except BaseException:
            link.close()
            raise
        return WorkerResources(family, locked, up, owned.pop_all(), fallback), link


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
    order = ForkCommand(
        id=0,
        token=token,
        session_id=session_id,
        environment=dict(config.environment),
        directory=directory,
        settings=config.worker_settings,
        gated=bool(cgroups.paths),
        counted=cgroups.limits_processes,
    )
    # The worker finds our greeting when it opens its eyes: one journey less.
    endpoints.protocol_socket.send(encode_frame(encode(HelloMessage())))
    try:
        offspring = await server.fork(order, (*endpoints.remote_fds, theirs.fileno()))
    except BaseException:
        endpoints.close()
        ours.close()
        raise
    finally:
        endpoints.close_remote()
        theirs.close()
    family = ProcessGroup(ours, offspring.pidfd, offspring.pid, cgroups)
    link = WorkerConnection(family, token, endpoints, listener, limit=config.frame_limit)
    if cgroups.paths:
        try:
            family.enter_cgroups()
        except StartFailed:
            link.close()
            raise
    return family, link


def _create_directory(uid: int, exit_stack: AsyncExitStack) -> str:
    """A private directory on the host, where the worker has no file tree of its own."""
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
