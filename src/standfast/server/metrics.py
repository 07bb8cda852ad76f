"""``/metrics``: what the server and its runtime do, for Prometheus."""

import time
from collections import Counter as Counts
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from standfast.base.errors import StandfastError
from standfast.server.endpoints import OPERATE, EndpointTable

if TYPE_CHECKING:
    from standfast.runtime.queries import RunQueries
    from standfast.runtime.types import RunStatus
    from standfast.server.exchange import Exchange

endpoints = EndpointTable()

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTED_STATUSES: tuple["RunStatus", ...] = ("queued", "running", "waiting", "failed")
MAX_COUNTED = 10_000
"""Runs with one status are counted up to this number, so that a scrape costs little."""


class ServerMetrics:
    """The metrics of one server. Names and labels are listed in the documentation and do not change."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "standfast_http_requests",
            "Requests by endpoint and status.",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "standfast_http_request_seconds",
            "Time until the answer begins, without event streams.",
            ("endpoint",),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self.open_streams = 0
        self.streams = Gauge("standfast_event_streams", "Open event streams.", registry=self.registry)
        self.denied = Counter("standfast_denied_requests", "Denied requests.", ("code",), registry=self.registry)
        self.runs = Gauge(
            "standfast_runs", "Runs by status, counted in the store.", ("status",), registry=self.registry
        )
        self.approvals = Gauge(
            "standfast_approvals_pending", "Approvals that wait for a person.", registry=self.registry
        )
        self.oldest = Gauge(
            "standfast_approval_oldest_seconds", "Age of the oldest pending approval.", registry=self.registry
        )
        self.executing = Gauge("standfast_runs_executing", "Runs that this process executes.", registry=self.registry)
        self.queued = Gauge(
            "standfast_queue_ready", "Runs that wait for a runtime with capacity.", ("agent",), registry=self.registry
        )
        self.behind = Gauge(
            "standfast_queue_behind", "Runs that wait for another of their session.", ("agent",), registry=self.registry
        )
        self.oldest_queued = Gauge(
            "standfast_queue_oldest_seconds", "Wait of the oldest ready run.", ("agent",), registry=self.registry
        )
        self.runtimes = Gauge("standfast_runtimes", "Live runtimes that execute runs.", registry=self.registry)
        self.capacity = Gauge(
            "standfast_runtime_capacity",
            "Runs that live runtimes with a limit execute at most.",
            registry=self.registry,
        )
        self.pool = Gauge(
            "standfast_pool_sessions", "Sessions of worker pools by state.", ("state",), registry=self.registry
        )
        self.node_sessions = Gauge(
            "standfast_node_sessions", "Sessions in use on a node of a fleet.", ("node",), registry=self.registry
        )
        self.node_capacity = Gauge(
            "standfast_node_capacity", "Sessions that a node of a fleet has at most.", ("node",), registry=self.registry
        )

    @contextmanager
    def count_stream(self) -> Any:
        self.streams.inc()
        self.open_streams += 1
        try:
            yield
        finally:
            self.streams.dec()
            self.open_streams -= 1

    def observe(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests.labels(endpoint, status).inc()
        self.seconds.labels(endpoint).observe(seconds)


async def count_runs(runtime: "RunQueries", status: "RunStatus", *, owner: str | None = None) -> int:
    """Return the number of runs with this status, at most :data:`MAX_COUNTED`."""
    after, counted = None, 0
    while counted < MAX_COUNTED:
        page = await runtime.runs(status=status, owner=owner, limit=1000, after=after)
        counted += len(page)
        if len(page) < 1000:
            break
        after = page[-1]
    return counted


async def count_queues(exchange: "Exchange") -> None:
    """Set what an autoscaler needs: how many runs wait, since when, and how many could be executed."""
    metrics, alive = exchange.service.metrics, [one for one in await exchange.runtime.runtimes() if one.is_alive]
    metrics.runtimes.set(len(alive))
    metrics.capacity.set(sum(one.max_runs or 0 for one in alive))
    for gauge in (metrics.queued, metrics.behind, metrics.oldest_queued):
        gauge.clear()
    for queue in await exchange.runtime.queues():
        name = queue.agent or queue.queue
        metrics.queued.labels(name).set(queue.ready)
        metrics.behind.labels(name).set(queue.behind)
        metrics.oldest_queued.labels(name).set(queue.oldest_wait)


def count_pools(exchange: "Exchange") -> None:
    """Set how many workers the pools of this server have; those over Ray also by node."""
    metrics, totals, nodes = exchange.service.metrics, Counts[str](), dict[str, tuple[int, int]]()
    for pool in exchange.service.pools:
        info = pool.info()
        totals.update({state: count for state, count in info.items() if isinstance(count, int)})
        for node_id, node in info.get("nodes", {}).items():
            leased, capacity = nodes.get(node_id, (0, 0))
            nodes[node_id] = leased + node["leased"], capacity + node["capacity"]
    metrics.node_sessions.clear()
    metrics.node_capacity.clear()
    for state, count in totals.items():
        metrics.pool.labels(state).set(count)
    for node_id, (leased, capacity) in nodes.items():
        metrics.node_sessions.labels(node_id).set(leased)
        metrics.node_capacity.labels(node_id).set(capacity)


@endpoints.add("GET", "/metrics", OPERATE, media_type="text/plain")
async def get_metrics(exchange: "Exchange") -> Response:
    """Show metrics in the text format of Prometheus."""
    metrics = exchange.service.metrics
    with suppress(StandfastError):  # the rest is of use while the store is away
        for status in COUNTED_STATUSES:
            metrics.runs.labels(status).set(await count_runs(exchange.runtime, status))
        pending = await exchange.runtime.approvals(status="pending", limit=MAX_COUNTED)
        metrics.approvals.set(len(pending))
        metrics.oldest.set(max(0.0, time.time() - pending[0].requested_at) if pending else 0.0)
        await count_queues(exchange)
    metrics.executing.set(exchange.runtime.count_executing())
    count_pools(exchange)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
