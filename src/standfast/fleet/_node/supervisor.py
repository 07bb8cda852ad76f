"""The actor of one node: it owns the fork server and the workers of that node, and serves them to pools elsewhere."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable
from typing import Any

import msgspec

from standfast.base.errors import Closed, StandfastError
from standfast.base.log import get_logger
from standfast.fleet._node import wire
from standfast.fleet._node.sessions import ServedSession, describe_info
from standfast.fleet._node.wire import (
    NodeReport,
    Reply,
    SessionBrief,
    decode_config,
    encode,
    encode_error,
)
from standfast.workers.errors import Cause, PoolBroken, WorkerDied
from standfast.workers.pool import SessionPool
from standfast.workers.session import WorkerSession

CLIENT_TIMEOUT = 30.0
"""Seconds without a call after which the sessions of a pool are ended: its process is gone, or cannot reach us."""
IDLE_EXIT = 60.0
"""Seconds without any pool after which the actor ends, unless it is persistent."""
_SWEEP_INTERVAL = 1.0
_MAX_ABORTED = 10_000
_log = get_logger(__name__)


class NodeSupervisor:
    """Runs in the actor. Everything happens on one event loop; control calls come in on another and are passed on."""

    def __init__(self, config: bytes, node_id: str, persistent: bool) -> None:
        self._config = decode_config(config)
        self._node_id, self._persistent = node_id, persistent
        self._pool = SessionPool(self._config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Task[None] | None = None
        self._sessions: dict[str, ServedSession] = {}
        self._requests: dict[tuple[str, str], asyncio.Task[bytes]] = {}
        """By pool and request."""
        self._aborted: dict[tuple[str, str], None] = {}
        """Requests that were cancelled before they came, or whose answers had been sent."""
        self._clients: dict[str, float] = {}
        self._last_client_at = time.monotonic()
        self._draining = False
        self._sandbox: tuple[str | None, tuple[str, ...]] = None, ()
        self._problem = ""

    # -- entry points

    async def call(self, client: str, request_id: str, session_id: str, method: str, data: bytes) -> bytes:
        """Call a method of a session, and answer with an encoded :class:`Reply`. It never raises."""
        await self._ensure_started()
        if (client, request_id) in self._aborted:
            return encode(Reply(fault=encode_error(Closed("the call was cancelled"))))
        task = asyncio.ensure_future(self._answer(client, session_id, method, data, request_id))
        self._requests[client, request_id] = task
        try:
            return await task
        except asyncio.CancelledError:
            return encode(Reply(fault=encode_error(Closed("the call was cancelled"))))
        finally:
            self._requests.pop((client, request_id), None)

    async def control(self, client: str, session_id: str, method: str, data: bytes) -> bytes:
        """Call a method that must not wait behind others. These calls have a concurrency group of their own."""
        loop = self._loop
        answer = self._answer(client, session_id, method, data)
        if loop is None or loop is asyncio.get_running_loop():
            return await answer
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, loop))

    async def _ensure_started(self) -> None:
        if self._started is None:
            self._loop = asyncio.get_running_loop()
            self._started = asyncio.create_task(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        await self._pool.start()
        self._sweeper = asyncio.create_task(self._sweep())

    async def _answer(self, client: str, session_id: str, method: str, data: bytes, request_id: str = "") -> bytes:
        brief: SessionBrief | None = None
        try:
            value = await self._call(client, session_id, method, data, request_id)
            served = self._sessions.get(session_id)
            brief = None if served is None else served.brief
            return encode(Reply(msgspec.Raw(encode(value)), None, brief))
        except Exception as problem:  # noqa: BLE001 - it is raised again by the caller, on another machine
            served = self._sessions.get(session_id)
            return encode(Reply(fault=encode_error(problem), brief=None if served is None else served.brief))

    async def _call(self, client: str, session_id: str, method: str, data: bytes, request_id: str) -> Any:
        if client:
            self._clients[client] = self._last_client_at = time.monotonic()
        if session_id:
            served = self._sessions.get(session_id)
            if served is None or served.client != client:
                detail = f"node {self._node_id[:12]} has ended the session: this pool had not called for too long"
                raise WorkerDied(Cause("node-lost", detail, is_external=True))
            if method == "fork":
                return await self._fork(served, request_id)
            return await served.call(method, data)
        if method == "lease":
            return await self._lease(client, data, request_id)
        handler = getattr(self, f"_do_{method}")
        work: Awaitable[Any] = handler(client, data)
        return await work

    # -- requests to the node

    async def _lease(self, client: str, data: bytes, request_id: str) -> wire.Leased:
        if self._draining:
            raise Closed(f"node {self._node_id} is being drained")
        timeout = msgspec.msgpack.decode(data, type=float | None)
        try:
            session = await self._pool.lease(timeout)
        except PoolBroken as problem:
            self._problem = str(problem)
            raise
        self._problem = ""
        metadata = session.info.metadata
        self._sandbox = metadata.get("sandbox"), tuple(metadata.get("sandbox_notes", ()))
        return self._add(session, client, request_id)

    def _add(self, session: WorkerSession, client: str, request_id: str, *, is_fork: bool = False) -> wire.Leased:
        self._sessions[session.session_id] = ServedSession(session, client, request_id, is_fork=is_fork)
        return wire.Leased(session.session_id, describe_info(session.info))

    async def _fork(self, served: ServedSession, request_id: str) -> wire.Leased:
        return self._add(await served.session.fork(), served.client, request_id, is_fork=True)

    async def _do_release(self, client: str, data: bytes) -> None:
        served = self._sessions.get(msgspec.msgpack.decode(data, type=str))
        if served is not None and served.client == client:
            await self._release(served)

    async def _release(self, served: ServedSession) -> None:
        if self._sessions.pop(served.session.session_id, None) is None:
            return
        try:
            await served.close()
        finally:
            if served.is_fork:
                await served.session.terminate()
            else:
                self._pool.release(served.session)

    async def _do_heartbeat(self, client: str, data: bytes) -> NodeReport:
        """Note that the pool is alive, and return the report of the node."""
        await self._ensure_started()
        return self._report()

    async def _do_describe(self, client: str, data: bytes) -> NodeReport:
        """Return the report of the node, for a caller that leases nothing."""
        return self._report()

    async def _do_abort(self, client: str, data: bytes) -> None:
        """Cancel a call whose caller no longer waits; what it runs is stopped as if the caller were here.

        The call may not have come yet, or its answer may be on its way: a session that it has leased has no caller.
        """
        request_id = msgspec.msgpack.decode(data, type=str)
        task = self._requests.get((client, request_id))
        if task is not None and not task.done():
            task.cancel()
            return
        self._aborted[client, request_id] = None
        if len(self._aborted) > _MAX_ABORTED:
            del self._aborted[next(iter(self._aborted))]
        for served in list(self._sessions.values()):
            if (served.client, served.request_id) == (client, request_id):
                await self._release(served)

    async def _do_drain(self, client: str, data: bytes) -> None:
        """Lease no further sessions; those that are leased stay until their pools have moved them."""
        self._draining = True

    async def _do_leave(self, client: str, data: bytes) -> None:
        await self._forget(client)

    def _report(self) -> NodeReport:
        info = self._pool.info()
        level, notes = self._sandbox
        return NodeReport(
            node_id=self._node_id,
            host=socket.gethostname(),
            process=os.getpid(),
            capacity=self._config.max_sessions,
            leased=info["leased"],
            idle=info["idle"],
            waiting=info["waiting"],
            clients=len(self._clients),
            draining=self._draining,
            memory=sum(served.session.usage().memory for served in self._sessions.values()),
            sandbox=level,
            sandbox_notes=notes,
            preload=self._config.session.preload,
            problem=self._problem,
        )

    # -- pools that are gone

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            now = time.monotonic()
            for client, seen_at in list(self._clients.items()):
                if seen_at + CLIENT_TIMEOUT < now:
                    _log.warning("pool %s has not called for %.0f s: its sessions end", client, now - seen_at)
                    await self._forget(client)
            if not self._persistent and not self._clients and self._last_client_at + IDLE_EXIT < now:
                await self._end()

    async def _forget(self, client: str) -> None:
        self._clients.pop(client, None)
        for served in [one for one in self._sessions.values() if one.client == client]:
            try:
                await self._release(served)
            except StandfastError as problem:
                _log.warning("session %s did not end in order: %s", served.session.session_id, problem)

    async def _end(self) -> None:
        import ray

        await self._pool.close()
        actor = ray.get_runtime_context().current_actor
        ray.kill(actor)
