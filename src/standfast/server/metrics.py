"""``/metrics``: what the server and its runtime do, for Prometheus."""

import time
from collections.abc import AsyncIterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from standfast.base.errors import StandfastError
from standfast.server.access import OPERATE
from standfast.server.endpoints import EndpointTable

if TYPE_CHECKING:
    from standfast.server.exchange import Exchange

endpoints = EndpointTable()

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTED_STATUSES = ("queued", "running", "waiting", "failed")
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
        self.pool = Gauge(
            "standfast_pool_sessions", "Sessions of worker pools by state.", ("state",), registry=self.registry
        )

    @contextmanager
    def count_stream(self) -> Any:
        self.streams.inc()
        try:
            yield
        finally:
            self.streams.dec()

    def observe(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests.labels(endpoint, status).inc()
        self.seconds.labels(endpoint).observe(seconds)


async def iterate_pages(exchange: "Exchange", status: str) -> AsyncIterator[int]:
    """Yield the sizes of the pages of runs with this status."""
    after, counted = None, 0
    while counted < MAX_COUNTED:
        page = await exchange.runtime.runs(status=status, limit=1000, after=after)  # type: ignore[arg-type]
        yield len(page)
        if len(page) < 1000:
            return
        after, counted = page[-1], counted + len(page)


@endpoints.add("GET", "/metrics", OPERATE, media_type="text/plain")
async def get_metrics(exchange: "Exchange") -> Response:
    """Show metrics in the text format of Prometheus."""
    metrics = exchange.service.metrics
    with suppress(StandfastError):  # the rest is of use while the store is away
        for status in COUNTED_STATUSES:
            metrics.runs.labels(status).set(sum([size async for size in iterate_pages(exchange, status)]))
        pending = await exchange.runtime.approvals(status="pending", limit=MAX_COUNTED)
        metrics.approvals.set(len(pending))
        metrics.oldest.set(max(0.0, time.time() - pending[0].requested_at) if pending else 0.0)
    metrics.executing.set(exchange.runtime.count_executing())
    for pool in exchange.service.pools:
        for state, count in pool.info().items():
            if isinstance(count, int):
                metrics.pool.labels(state).set(count)
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
