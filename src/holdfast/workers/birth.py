"""Bringing a worker into the world, and the home it shares with its forks."""

import asyncio
import dataclasses
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from holdfast.workers.cgroups import Groups, made_for
from holdfast.workers.config import SessionConfig
from holdfast.workers.errors import StartFailed
from holdfast.workers.family import Family
from holdfast.workers.forkserver import ForkServer
from holdfast.workers.link import Endpoints, Link, Listener
from holdfast.workers.proxy import Proxy
from holdfast.workers.servers import fork_server
from holdfast.workers.wire.frames import frame
from holdfast.workers.wire.messages import HelloMessage, encode, new_id
from holdfast.workers.wire.orders import ForkOrder, Locked, ServerUp


class Home:
    """A family, its directory, and the fork-server it came from; given up when the last resident leaves."""

    def __init__(self, family: Family, locked: Locked, server: ServerUp, owned: AsyncExitStack, fallback: str) -> None:
        self.family, self.locked, self.server = family, locked, server
        self.fallback = fallback
        """Why there is no shared fork-server, where one was wanted."""
        self.residents = 1
        self._owned = owned

    def joined(self) -> "Home":
        """One more resident."""
        self.residents += 1
        return self

    async def leave(self, link: Link) -> None:
        link.close()
        await self._left()

    @asynccontextmanager
    async def directory(self) -> AsyncIterator[int | None]:
        """The directory, open and in its place until the block ends, whoever leaves meanwhile."""
        held = self.family.directory
        self.joined()
        fd = None if held is None else os.dup(held)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)
            await self._left()

    async def _left(self) -> None:
        self.residents -= 1
        if self.residents == 0:
            await self._owned.aclose()


async def bear(config: SessionConfig, session_id: str, listener: Listener) -> tuple[Home, Link]:
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
        up = server.up
        directory = "" if up.level == "namespaces" else _directory(up.uid, owned)
        groups = await owned.enter_async_context(made_for(config.sandbox, new_id()))
        family, link = await _fork(server, config, session_id, directory, listener, groups)
        owned.callback(family.close)
        try:
            locked = await asyncio.shield(family.locked)
            await _open_proxy(config, family, owned)
        except BaseException:
            link.close()
            raise
        return Home(family, locked, up, owned.pop_all(), fallback), link


async def _fork(
    server: ForkServer,
    config: SessionConfig,
    session_id: str,
    directory: str,
    listener: Listener,
    groups: Groups,
) -> tuple[Family, Link]:
    endpoints = Endpoints()
    ours, theirs = socket.socketpair()
    token = new_id()
    order = ForkOrder(
        id=0,
        token=token,
        session_id=session_id,
        environment=dict(config.environment),
        directory=directory,
        settings=config.worker_settings,
        gated=bool(groups.paths),
        counted=groups.counts_processes,
    )
    # The worker finds our greeting when it opens its eyes: one journey less.
    endpoints.protocol.send(frame(encode(HelloMessage())))
    try:
        offspring = await server.fork(order, (*endpoints.theirs, theirs.fileno()))
    except BaseException:
        endpoints.close()
        ours.close()
        raise
    finally:
        endpoints.passed()
        theirs.close()
    family = Family(ours, offspring.pidfd, offspring.pid, groups)
    link = Link(family, token, endpoints, listener, limit=config.frame_limit)
    if groups.paths:
        try:
            family.admit()
        except StartFailed:
            link.close()
            raise
    return family, link


def _directory(uid: int, owned: AsyncExitStack) -> str:
    """A private directory on the host, where the worker has no file tree of its own."""
    path = tempfile.mkdtemp(prefix="holdfast-")
    owned.callback(shutil.rmtree, path, ignore_errors=True)
    for name in ("work", "tmp", "home"):
        os.mkdir(f"{path}/{name}", 0o700)
    if uid != os.geteuid():
        for name in ("", "work", "tmp", "home"):
            os.chown(f"{path}/{name}", uid, uid)
    return path


async def _open_proxy(config: SessionConfig, family: Family, owned: AsyncExitStack) -> None:
    allowed = config.sandbox.network
    if family.proxy is not None and isinstance(allowed, tuple):
        fd, family.proxy = family.proxy, None
        await owned.enter_async_context(Proxy.open(fd, allowed))
