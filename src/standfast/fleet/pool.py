"""A pool of worker sessions on the nodes of a Ray cluster, with the methods of a local pool."""

import asyncio
import collections
import contextlib
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from standfast.base.errors import Closed, NotFound, StandfastError
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.fleet import cluster
from standfast.fleet._node import wire
from standfast.fleet._node.link import NodeLink
from standfast.fleet._node.wire import NodeReport, encode_config
from standfast.fleet.session import RemoteWorkerSession
from standfast.workers.config import PoolConfig
from standfast.workers.errors import PoolBroken, PoolExhausted, WorkerDied, WorkerError, WorkerRequestFailed
from standfast.workers.pool import SessionPool
from standfast.workers.results import SessionInfo, WorkspaceReport
from standfast.workers.session import WorkerSession

REFRESH_INTERVAL = 1.0
_HEARTBEAT_TIMEOUT = 20.0
_ANSWER_TIMEOUT = 10.0
_RETRY_SECONDS = 5.0
"""How long a node is left alone whose actor could not be started, for example because its resources do not suffice."""
_HEAD_TIMEOUT = 30.0
"""Seconds without a list of nodes after which a cluster counts as lost although its head accepts connections."""
_log = get_logger("standfast.workers")


class RayPool(SessionPool):
    """``async with RayPool(config) as pool:`` is a :class:`SessionPool` over all nodes of a Ray cluster.

    On each node one actor owns a fork server and at most ``config.max_sessions`` workers, or as many as the node's
    resource ``standfast_workers`` says. Pools with the same configuration, in any process, share them. A session is
    leased on the node that has the smallest part of its workers in use. While there is no cluster, callers wait for it,
    without a timeout; :meth:`info` has the ``problem``.

    ``address`` is that of the cluster, by default the one of this machine (``ray start``). Only nodes with all
    ``labels`` are used. ``resources`` (``num_cpus``, ``memory`` in bytes, or names of the cluster) are what the actor
    of a node reserves there. ``persistent`` actors outlive their pools, so that the next one finds warm workers.
    """

    def __init__(
        self,
        config: PoolConfig | None = None,
        *,
        address: str | None = None,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        persistent: bool = False,
    ) -> None:
        self.config = config or PoolConfig()
        self.metrics = collections.Counter()
        self.address, self.persistent = address, persistent
        self.labels, self.resources = dict(labels or {}), dict(resources or {})
        self.client_id = new_id("pool")
        self._links: dict[str, NodeLink] = {}
        self._heartbeats: dict[str, asyncio.Task[None]] = {}
        self._unusable: dict[str, str] = {}
        """By node: why it is not used."""
        self._retry_at: dict[str, float] = {}
        self._problem = ""
        """Why there is no cluster at the moment."""
        self._directory: Any = None
        self._answered_at = time.monotonic()
        self._sessions: dict[str, RemoteWorkerSession] = {}
        self._waiting = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._work: set[asyncio.Task[Any]] = set()
        self._close_callbacks: list[Callable[[], None]] = []
        self._started = self._draining = False
        self._refresher: asyncio.Task[None] | None = None

    # -- life cycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Join the cluster and start an actor on each node. Returns when the nodes that are there have answered."""
        if self._draining or self._started:
            raise Closed("a pool can be started only once; create another one")
        self._started = True
        await asyncio.to_thread(cluster.join, self.address)
        self._answered_at = time.monotonic()
        await self.refresh()
        await self._wait_for_heartbeats(_HEARTBEAT_TIMEOUT)
        self._refresher = self._create_task(self._keep_refreshing())

    async def close(self) -> None:
        """Close the pool as :meth:`SessionPool.close` does. Its workers end; the cluster goes on."""
        self._draining = True
        for callback in self._close_callbacks:
            callback()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.drain_timeout):
                while self._sessions or self._work:
                    self._changed.clear()
                    if self._work:
                        await asyncio.wait(self._work)
                    elif self._sessions:
                        await self._changed.wait()
        for session in list(self._sessions.values()):
            self._forget(session)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        leaving = [self._leave(link) for link in self._links.values() if link.loss is None]
        await asyncio.gather(*leaving, return_exceptions=True)

    async def _leave(self, link: NodeLink) -> None:
        with contextlib.suppress(WorkerDied, TimeoutError):
            async with asyncio.timeout(self.config.drain_timeout):
                await link.control("", "leave", None, type(None))

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        self._close_callbacks.append(callback)

    def start_work(self, work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = self._create_task(work, name=name)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    # -- nodes

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL)
            try:
                await self.refresh()
            except Exception as problem:  # noqa: BLE001 - of Ray, while the head is away
                _log.warning("the nodes of the Ray cluster cannot be listed, retrying: %s", problem)

    async def refresh(self) -> None:
        """Look for new and lost nodes, and send each a heartbeat; done once a second.

        A node that is slow to answer does not delay the others: it is used when it has answered.
        """
        if self._problem:
            await asyncio.to_thread(cluster.join, self.address)
            self._answered_at = time.monotonic()
        nodes = await self._list_nodes()
        if nodes is None:
            return
        alive = {node.node_id for node in nodes if node.is_alive}
        for node_id, link in list(self._links.items()):
            if node_id not in alive:
                link.lose("Ray reports that it is dead")
            if link.loss is not None:
                del self._links[node_id]
        self._unusable = {node_id: why for node_id, why in self._unusable.items() if node_id in alive}
        fitting = [node for node in nodes if self._fits(node) and node.node_id not in self._links]
        await asyncio.gather(*(self._add_node(node) for node in fitting))
        for node_id, link in self._links.items():
            if node_id not in self._heartbeats:
                self._heartbeats[node_id] = self._create_task(self._send_heartbeat(link))
        await self._wait_for_heartbeats(REFRESH_INTERVAL)
        if self._problem and self._list_usable():
            _log.warning("the Ray cluster is there again")
            self._problem = ""
        self._changed.set()

    async def _wait_for_heartbeats(self, timeout: float) -> None:
        if self._heartbeats:
            await asyncio.wait(list(self._heartbeats.values()), timeout=timeout)

    async def _list_nodes(self) -> list[cluster.ClusterNode] | None:
        """Return the nodes, or ``None`` if they are not known at the moment; note when the cluster is lost."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT):
                if self._directory is None:
                    self._directory = await asyncio.to_thread(cluster.start_directory)
                data = await asyncio.wrap_future(self._directory.list_nodes.remote().future())
        except Exception as problem:  # of Ray, in many kinds
            self._directory = None
            if time.monotonic() - self._answered_at < _HEAD_TIMEOUT and await asyncio.to_thread(_has_head):
                return None  # the node of the directory is lost, and Ray starts it on another
            await self._note_cluster_loss(problem)
            raise
        self._answered_at = time.monotonic()
        return cluster.decode_nodes(data)

    async def _note_cluster_loss(self, problem: Exception) -> None:
        """Leave a cluster whose head does not answer: Ray would end this process after a while."""
        detail = str(problem).strip().splitlines()[0] if str(problem).strip() else "it does not answer in time"
        self._problem = f"the head of the Ray cluster is lost: {detail}"
        _log.warning("%s; sessions are leased again when there is a cluster", self._problem)
        for link in list(self._links.values()):
            link.lose(self._problem)
        self._links.clear()
        await asyncio.to_thread(cluster.leave)

    def _fits(self, node: cluster.ClusterNode) -> bool:
        if not node.is_alive or time.monotonic() < self._retry_at.get(node.node_id, 0.0):
            return False
        return all(node.labels.get(name) == value for name, value in self.labels.items())

    async def _add_node(self, node: cluster.ClusterNode) -> None:
        capacity = node.resources.get(cluster.WORKERS_RESOURCE)
        options = self._make_options(capacity)
        config = self.config
        if capacity is not None and int(capacity) > 0:
            limit = int(capacity)
            config = dataclasses.replace(config, max_sessions=limit, min_idle=min(config.min_idle, limit))
        try:
            data = encode_config(config)
            actor = await asyncio.to_thread(
                lambda: cluster.start_supervisor(data, node, options=options, persistent=self.persistent)
            )
        except Exception as problem:  # noqa: BLE001 - of Ray; the node is tried again at the next refresh
            self._unusable[node.node_id] = str(problem)
            return
        self._links[node.node_id] = NodeLink(node, actor, self.client_id, self._note_loss)
        self._unusable.pop(node.node_id, None)

    def _make_options(self, capacity: float | None) -> dict[str, Any]:
        known = {name: value for name, value in self.resources.items() if name in ("num_cpus", "num_gpus", "memory")}
        custom = {name: value for name, value in self.resources.items() if name not in known}
        if capacity is not None:
            custom.setdefault(cluster.WORKERS_RESOURCE, capacity)
        return {"num_cpus": 0, **known, "resources": custom}

    async def _send_heartbeat(self, link: NodeLink) -> None:
        report, problem = None, ""
        try:
            async with asyncio.timeout(_HEARTBEAT_TIMEOUT):
                report, _ = await link.call("", "heartbeat", None, NodeReport)
            problem = report.problem
        except (StandfastError, TimeoutError) as failure:
            problem = str(failure) or "its actor does not answer"
        finally:
            del self._heartbeats[link.node.node_id]
        link.report = report
        link.has_answered = link.has_answered or report is not None
        if problem:
            self._unusable[link.node.node_id] = problem
        else:
            self._unusable.pop(link.node.node_id, None)
        self._changed.set()

    def _note_loss(self, link: NodeLink) -> None:
        """Forget a lost node: calls that wait have ended, and its sessions are dead."""
        if link.has_answered:
            self.metrics["nodes_lost"] += 1
            _log.warning("%s", link.loss)
        else:
            self._retry_at[link.node.node_id] = time.monotonic() + _RETRY_SECONDS
        if self._links.get(link.node.node_id) is link:
            del self._links[link.node.node_id]
        self._changed.set()

    def list_reports(self) -> list[NodeReport]:
        """Return the last report of each node."""
        return [link.report for link in self._links.values() if link.report is not None]

    async def drain_node(self, node_id: str) -> dict[str, WorkspaceReport]:
        """Lease nothing more on a node, and move the sessions of this pool to others; return a report for each.

        A session keeps its variables and files. What could not be moved is in its report. The error of a session
        that cannot be moved at all is raised when the others were moved. While no other node has room, this waits.
        """
        link = self._links.get(node_id)
        if link is None:
            raise NotFound("node", node_id)
        link.draining = True
        await link.control("", "drain", None, type(None))
        reports, problems = dict[str, WorkspaceReport](), list[StandfastError]()
        for before, session in [(key, one) for key, one in self._sessions.items() if one.link is link]:
            try:
                report = await self._move(session)
            except StandfastError as problem:
                if self._sessions.get(before) is session:
                    problems.append(problem)
            else:
                reports[before] = report
        self.metrics["nodes_drained"] += 1
        if problems:
            raise problems[0]
        return reports

    async def _move(self, session: RemoteWorkerSession) -> WorkspaceReport:
        before, left, leases = session.session_id, session.link, list[tuple[NodeLink, wire.Leased]]()

        async def lease() -> tuple[NodeLink, wire.Leased]:
            leases.append(await self._lease_somewhere(None))
            return leases[0]

        try:
            report = await session.move(lease)
        except BaseException:
            for link, leased in leases:
                link.leased -= 1
                link.notify("release", leased.session_id)
            raise
        self._sessions[session.session_id] = self._sessions.pop(before)
        left.leased -= 1
        return report

    # -- leasing

    @property
    def is_full(self) -> bool:
        return not any(self._count_free(link) > 0 for link in self._list_usable())

    def _list_usable(self) -> list[NodeLink]:
        return [link for link in self._links.values() if link.loss is None and not link.draining and link.report]

    @staticmethod
    def _count_free(link: NodeLink) -> int:
        report = link.report
        if report is None or report.draining:
            return 0
        # What other pools lease is known from the last report.
        return report.capacity - max(link.leased, report.leased)

    @asynccontextmanager
    async def acquire(self, timeout: float | None = None) -> AsyncIterator[RemoteWorkerSession]:
        session = await self.lease(timeout)
        try:
            yield session
        finally:
            self.release(session)

    async def lease(self, timeout: float | None = None) -> RemoteWorkerSession:
        """Lease a session as :meth:`SessionPool.lease` does, on the node that has the most room."""
        started = time.monotonic()
        self.metrics["acquisition_attempts"] += 1
        if self._draining or not self._started:
            forgotten = "the pool was not started: use it in `async with pool:`, or await pool.start() first"
            raise Closed("the pool is closed" if self._draining else forgotten)
        if self._waiting >= self.config.max_waiting and self.is_full:
            self.metrics["acquisition_refused"] += 1
            raise PoolExhausted(f"{self._waiting} callers are already waiting; the limit is {self.config.max_waiting}")
        self._waiting += 1
        try:
            while self._problem and not self._draining:  # however long it takes: nothing else can serve the caller
                self._changed.clear()
                await self._changed.wait()
            async with asyncio.timeout(timeout):
                link, leased = await self._lease_somewhere(timeout)
        except PoolExhausted:
            raise
        except TimeoutError:
            self.metrics["acquisition_timeouts"] += 1
            reasons = "; ".join(f"{node[:12]}: {why}" for node, why in self._unusable.items())
            raise PoolExhausted(
                f"no session became free within {timeout} s" + (f" (not used: {reasons})" if reasons else "")
            ) from None
        finally:
            self._waiting -= 1
        session = RemoteWorkerSession(self.config.session, link, leased)
        self._sessions[leased.session_id] = session
        self.metrics["acquisition_success"] += 1
        self.metrics["acquisition_microseconds"] += int((time.monotonic() - started) * 1e6)
        return session

    async def _lease_somewhere(self, timeout: float | None) -> tuple[NodeLink, wire.Leased]:
        """Lease a session on the node with the most room; if none has room, wait for one."""
        while not self._draining:
            self._changed.clear()
            usable = sorted(self._list_usable(), key=self._get_load)
            for link in usable:
                if self._count_free(link) <= 0:
                    continue
                link.leased += 1
                try:
                    leased, _ = await link.call("", "lease", min(timeout or 10.0, 10.0), wire.Leased)
                except (WorkerDied, PoolExhausted, Closed):
                    link.leased -= 1
                except (PoolBroken, WorkerRequestFailed) as problem:
                    link.leased -= 1
                    self._unusable[link.node.node_id] = str(problem)
                    if len(usable) == 1:
                        raise
                except BaseException:
                    link.leased -= 1
                    raise
                else:
                    return link, leased
            await self._changed.wait()
        raise Closed("the pool is closed")

    def _get_load(self, link: NodeLink) -> tuple[bool, float, float]:
        """Return what the nodes are tried in the order of. One whose workers do not start comes last."""
        capacity = max(1, link.report.capacity) if link.report is not None else 1
        return link.node.node_id in self._unusable, 1 - self._count_free(link) / capacity, random.random()

    def release(self, session: WorkerSession) -> None:
        if not isinstance(session, RemoteWorkerSession) or self._sessions.get(session.session_id) is not session:
            raise WorkerError(f"session {session.session_id} is not leased from this pool")
        self.metrics["sessions_released"] += 1
        self._forget(session)

    def _forget(self, session: RemoteWorkerSession) -> None:
        del self._sessions[session.session_id]
        link = session.link
        session.mark_released()
        link.leased -= 1
        if link.report is not None and link.report.leased > link.leased >= 0:
            link.report = msgspec.structs.replace(link.report, leased=link.report.leased - 1)
        link.notify("release", session.session_id)
        self._changed.set()

    def info(self) -> dict[str, Any]:
        reports = self.list_reports()
        return {
            "idle": sum(report.idle for report in reports),
            "starting": 0,
            "leased": len(self._sessions),
            "waiting": self._waiting,
            "nodes": {
                node_id: self._describe(link, link.report) for node_id, link in self._links.items() if link.report
            },
            "unusable": dict(self._unusable),
            "problem": self._problem,
            "metrics": dict(self.metrics),
        }

    @staticmethod
    def _describe(link: NodeLink, report: NodeReport) -> dict[str, Any]:
        facts: dict[str, Any] = msgspec.to_builtins(report)
        return {**facts, "address": link.node.address, "leased": max(link.leased, report.leased)}

    def list_sessions(self) -> list[tuple[str, SessionInfo]]:
        return [("leased", session.info) for session in self._sessions.values()]

    async def check_health(self) -> None:
        """Ask each node for its state, and each session for its resources."""
        self.metrics["health_check_runs"] += 1
        await self.refresh()
        for session in list(self._sessions.values()):
            with contextlib.suppress(StandfastError):
                await session.measure()

    def _create_task(self, coroutine: Any, *, name: str | None = None) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _has_head() -> bool:
    try:
        cluster.check_head()
    except (cluster.ClusterUnavailable, RuntimeError):
        return False
    return True
