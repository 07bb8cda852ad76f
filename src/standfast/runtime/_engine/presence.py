"""The document by which a runtime announces itself: it renews it like a lease, and removes it when it closes."""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from standfast.base.errors import StandfastError
from standfast.base.log import get_logger
from standfast.runtime._engine.context import RuntimeContext, list_queue_names
from standfast.runtime._engine.scheduler import Scheduler
from standfast.runtime.types import NOTICE_KIND, QueueInfo, RuntimeInfo
from standfast.store.backend import Backend
from standfast.store.operations import DeleteDocument, PutDocument

_PAGE_SIZE = 200
_FORGET_AFTER = 10.0
_log = get_logger(__name__)


class RuntimeNotice(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime as it described itself at ``at``, the time of the store. The id is new in each process."""

    runtime_id: str
    host: str
    process: int
    queues: tuple[str, ...]
    executing: int
    lease: float
    max_runs: int | None = None
    at: float = 0.0

    def is_alive(self, now: float) -> bool:
        """Return whether it may still execute runs."""
        return self.at + 2 * self.lease > now


class Presence:
    """Writes the notice of this runtime."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._ctx = scheduler, scheduler.ctx
        self._written = False

    async def run(self) -> None:
        """Renew the notice until cancelled. The first one is written when a short-lived runtime would have ended."""
        if self._ctx.max_runs is None:
            await asyncio.sleep(self._ctx.lease_ttl / 3)
        while True:
            try:
                await self._write()
                await self._forget_dead()
            except StandfastError as problem:
                _log.info("this runtime could not be announced, retrying: %s", problem)
            await asyncio.sleep(self._ctx.lease_ttl / 3)

    async def _write(self) -> None:
        ctx = self._ctx
        notice = RuntimeNotice(
            runtime_id=ctx.runtime_id,
            host=socket.gethostname(),
            process=os.getpid(),
            queues=tuple(ctx.list_queues()),
            executing=len(self._scheduler.executors),
            lease=ctx.lease_ttl,
            max_runs=ctx.max_runs,
        )
        self._written = True
        await ctx.backend.commit(PutDocument(kind=NOTICE_KIND, key=ctx.runtime_id, data=msgspec.json.encode(notice)))

    async def _forget_dead(self) -> None:
        now = await self._ctx.backend.get_time()
        for notice in await list_runtimes(self._ctx.backend):
            if notice.at + _FORGET_AFTER * notice.lease < now:
                await self._ctx.backend.commit(DeleteDocument(kind=NOTICE_KIND, key=notice.runtime_id))

    async def withdraw(self) -> None:
        """Remove the notice: this runtime closes."""
        if self._written:
            with suppress(StandfastError):
                await self._ctx.backend.commit(DeleteDocument(kind=NOTICE_KIND, key=self._ctx.runtime_id))


async def list_runtimes(backend: Backend) -> list[RuntimeNotice]:
    """Return the notices of all runtimes, also of those that died recently."""
    notices, after = list[RuntimeNotice](), ""
    while page := await backend.list_documents(NOTICE_KIND, limit=_PAGE_SIZE, after=after):
        after = page[-1].key
        for document in page:
            with suppress(msgspec.MsgspecError):
                notice = msgspec.json.decode(document.data, type=RuntimeNotice)
                notices.append(msgspec.structs.replace(notice, at=document.at))
        if len(page) < _PAGE_SIZE:
            break
    return notices


async def describe_runtimes(backend: Backend) -> list[RuntimeInfo]:
    """Return the runtimes that execute runs of this store, those that died recently included."""
    now = await backend.get_time()
    return [
        RuntimeInfo(
            runtime_id=notice.runtime_id,
            host=notice.host,
            process=notice.process,
            executing=notice.executing,
            max_runs=notice.max_runs,
            is_alive=notice.is_alive(now),
            age=max(now - notice.at, 0.0),
        )
        for notice in await list_runtimes(backend)
    ]


async def describe_queues(ctx: RuntimeContext) -> list[QueueInfo]:
    """Return the queues in which runs wait."""
    now, served = await ctx.backend.get_time(), set(await list_served_queues(ctx))
    agents = {queue: agent for agent in ctx.graphs for queue in list_queue_names(agent, ctx.cipher)}
    found: dict[str, QueueInfo] = {}
    for depth in await ctx.backend.list_queue_depths():
        name = depth.queue
        agent = agents.get(name) or (None if ctx.cipher is not None else name or None)
        queue = found.get(name) or QueueInfo(queue=name, agent=agent, is_served=name in served)
        if depth.behind:
            queue = msgspec.structs.replace(queue, behind=queue.behind + depth.count)
        else:
            waited = max(queue.oldest_wait, now - depth.oldest_at)
            queue = msgspec.structs.replace(queue, ready=queue.ready + depth.count, oldest_wait=waited)
        found[name] = queue
    return list(found.values())


async def list_served_queues(ctx: RuntimeContext) -> Sequence[str]:
    """Return the queues of the agents of all runtimes that are alive, including this one."""
    now = await ctx.backend.get_time()
    alive = [notice for notice in await list_runtimes(ctx.backend) if notice.is_alive(now)]
    return [*ctx.list_queues(), *(queue for notice in alive for queue in notice.queues)]
